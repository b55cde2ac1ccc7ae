"""The result's blocks on a case worked by hand."""

import numpy as np
import pytest

from probe.evaluation.significance import holm
from probe.evaluation.summary import (
    EvaluationSet,
    MethodOutcome,
    corrected,
    gain_over,
    overall_gain,
    summarise,
)

NAMES = ("cat", "dog", "fox")
EVAL_SET = EvaluationSet(np.repeat([0, 1, 2], 10), NAMES, {"easy": [0], "medium": [1], "hard": [2]})
BENCH_OF_NINE = {"easy": [0, 1, 2], "medium": [3, 4, 5], "hard": [6, 7, 8]}


def correct(*right):
    return np.concatenate([np.arange(10) < r for r in right])[None]


def test_what_a_method_achieved():
    result = summarise(MethodOutcome("erm", correct(10, 5, 2), correct(10, 10, 10)), EVAL_SET)
    assert result["top1"] == pytest.approx(17 / 30)
    assert result["top5"] == 1
    assert result["groups"]["hard"]["accuracy"] == pytest.approx(0.2)
    assert result["groups"]["hard"]["classes"] == ["fox"]
    assert result["worst"] == {"class": "fox", "accuracy": 0.2}
    low, high = result["groups"]["medium"]["ci"]
    assert low < 0.5 < high
    assert result["groups"]["easy"]["ci"] == pytest.approx([0.67, 1], abs=0.01)  # Agresti and Coull's
    row = result["by_class"][1]
    assert (row["name"], row["n"], row["accuracy"], row["group"]) == ("dog", 10, 0.5, "medium")


def test_a_method_gains_nothing_over_itself():
    outcome = MethodOutcome("erm", correct(10, 5, 2))
    for gain in gain_over(outcome, outcome, EVAL_SET)["gain"].values():
        assert (gain["mean"], gain["p"], gain["clear"]) == (0, 1, False)
        assert gain["ci"][0] == -gain["ci"][1] < 0  # thirty equal answers do not prove the next one equal


def test_the_gain_is_where_it_was_made():
    result = gain_over(
        MethodOutcome("mr2", correct(10, 5, 10)), MethodOutcome("erm", correct(10, 5, 1)), EVAL_SET
    )
    assert result["method"] == "erm"
    assert result["gain"]["hard"]["mean"] == pytest.approx(0.9)
    assert result["gain"]["hard"]["clear"]
    assert not result["gain"]["easy"]["clear"]
    assert result["gain"]["overall"]["mean"] == pytest.approx(0.9 / 3)


def test_a_class_without_test_images_is_reported_as_unknown():
    eval_set = EvaluationSet(np.repeat([0, 1], 10), NAMES, {"easy": [0], "medium": [1], "hard": [2]})
    row = summarise(MethodOutcome("erm", correct(10, 5)), eval_set)["by_class"][2]
    assert (row["n"], row["accuracy"], row["ci"]) == (0, None, None)


def test_each_class_is_tested_and_corrected_for_their_number():
    result = gain_over(
        MethodOutcome("mr2", correct(10, 5, 10)), MethodOutcome("erm", correct(10, 5, 2)), EVAL_SET
    )
    cat, dog, fox = result["by_class"]
    assert fox["mean"] == pytest.approx(0.8)
    assert 2 / 2**8 < fox["p"] < 2 * 2 / 2**8  # eight images won, none lost: a little above the sign test
    assert fox["p_holm"] == pytest.approx(3 * fox["p"])
    assert 0 < fox["ci"][0] < fox["ci_alone"][0]
    assert fox["clear"]
    assert cat["p"] == dog["p"] == 1
    assert result["seeds"] == 1


def test_a_runs_own_table_is_corrected_for_its_five_rows():
    """Called at 5 % each, they would put a false call into every eighth table of equal methods."""
    result = gain_over(
        MethodOutcome("mr2", correct(10, 5, 9)), MethodOutcome("erm", correct(10, 5, 2)), EVAL_SET
    )["gain"]
    p = [gain["p"] for gain in result.values()]
    assert [gain["p_holm"] for gain in result.values()] == pytest.approx(holm(p))
    for gain in result.values():
        assert gain["clear"] == (gain["p_holm"] < 0.05) == (not gain["ci"][0] <= 0 <= gain["ci"][1])
    rng, experiments = np.random.default_rng(0), 300
    eval_set = EvaluationSet(np.repeat(np.arange(9), 30), tuple("abcdefghi"), BENCH_OF_NINE)
    called = 0
    for _ in range(experiments):
        a, b = (MethodOutcome(name, rng.random((1, 270)) < 0.8) for name in "ab")
        called += any(gain["clear"] for gain in gain_over(a, b, eval_set)["gain"].values())
    assert called <= 0.05 * experiments + 2 * np.sqrt(0.05 * 0.95 * experiments)


def test_one_gain_without_a_table_is_not_corrected():
    pair = MethodOutcome("mr2", correct(10, 5, 9)), MethodOutcome("erm", correct(10, 5, 2))
    table, alone = gain_over(*pair, EVAL_SET)["gain"]["overall"], overall_gain(*pair, EVAL_SET)
    assert (alone["mean"], alone["p"], alone["ci"]) == (table["mean"], table["p"], table["ci_alone"])


def test_a_gain_of_an_earlier_release_agrees_with_its_verdict_too():
    old = {"mean": 0.02, "ci": [0.001, 0.04], "p": 0.04, "clear": True}
    assert corrected(old, 0.2)["ci"] == [0, 0.04]
    assert corrected(old, 0.04)["ci"] == [0.001, 0.04]


def test_groups_by_training_count_and_calibration_are_reported_when_known():
    eval_set = EvaluationSet(EVAL_SET.labels, NAMES, EVAL_SET.groups, np.array([200, 200, 5]))
    sure = np.ones((1, 30))
    result = summarise(MethodOutcome("erm", correct(10, 5, 2), confidence=sure), eval_set)
    few = result["count_groups"]["many/medium/few"]["few"]
    assert (few["accuracy"], few["classes"]) == (0.2, ["fox"])
    assert few["ece"] == pytest.approx(0.8)  # certain every time, right every fifth
    assert result["ece"] == pytest.approx(13 / 30)
    assert result["count_groups"]["many/medium/few"]["medium"]["accuracy"] is None
    assert result["by_class"][2]["train_n"] == 5
    gain = gain_over(
        MethodOutcome("mr2", correct(10, 5, 9)), MethodOutcome("erm", correct(10, 5, 2)), eval_set
    )["count_gain"]
    assert gain["head/torso/tail"]["tail"]["mean"] == pytest.approx(0.7)
    assert gain["head/torso/tail"]["torso"] is None


def test_the_order_of_classes_changes_nothing():
    order = np.array([2, 0, 1])  # new index -> old index
    names = tuple(NAMES[k] for k in order)
    shuffled = EvaluationSet(
        np.argsort(order)[EVAL_SET.labels], names, {"easy": [1], "medium": [2], "hard": [0]}
    )
    one, other = (summarise(MethodOutcome("erm", correct(10, 5, 2)), b) for b in (EVAL_SET, shuffled))
    for key in ("top1", "mean_per_class", "gap", "std", "gini", "worst_tenth"):
        assert one[key] == pytest.approx(other[key])
    assert (one["worst"], one["best"]) == (other["worst"], other["best"])
    by_name = [{row["name"]: row["accuracy"] for row in r["by_class"]} for r in (one, other)]
    assert by_name[0] == by_name[1]


def test_a_group_that_is_all_right_still_has_an_interval():
    """12 of 12 right: about what Wilson's interval says, 75.7 to 100 %, not "100 to 100"."""
    labels = np.repeat([0, 1], 12)
    correct = np.concatenate([np.ones(12, dtype=bool), np.arange(12) < 6])[None]
    eval_set = EvaluationSet(labels, ("sure", "unsure"), {"easy": [0], "hard": [1]})
    groups = summarise(MethodOutcome("erm", correct), eval_set)["groups"]
    assert groups["easy"]["ci"] == pytest.approx([12 / (12 + 1.959964**2), 1.0], abs=0.06)
    assert groups["hard"]["ci"][0] < 0.5 < groups["hard"]["ci"][1]


def test_classes_of_one_image_do_not_make_every_change_clear():
    rng = np.random.default_rng(0)
    classes, experiments = 60, 200
    eval_set = EvaluationSet(
        np.arange(classes), tuple(map(str, range(classes))), {"all": list(range(classes))}
    )
    called = 0
    for _ in range(experiments):
        a, b = (MethodOutcome(name, rng.random((1, classes)) < 0.8) for name in "ab")
        called += gain_over(a, b, eval_set)["gain"]["overall"]["p"] < 0.05
    assert called <= 0.1 * experiments  # 5 % and three standard errors


@pytest.mark.parametrize(("images", "clear"), [(3, False), (5, False), (6, True)])
def test_a_class_that_changed_as_a_whole_is_judged_by_the_sign_test(images, clear):
    labels = np.repeat([0, 1], [images, 50])
    eval_set = EvaluationSet(labels, ("small", "large"), {"hard": [0], "easy": [1]})
    right = np.ones((1, len(labels)), dtype=bool)
    gain = gain_over(MethodOutcome("new", right), MethodOutcome("old", right & (labels == 1)), eval_set)[
        "gain"
    ]
    assert gain["hard"]["mean"] == 1
    assert gain["hard"]["p"] == pytest.approx(2 * 0.5**images, rel=0.3)
    assert (gain["hard"]["p"] < 0.05) is clear
    assert (gain["hard"]["ci_alone"][0] > 0) is clear
    assert gain["easy"]["mean"] == 0
    assert not gain["easy"]["clear"]


def test_a_classs_verdict_knows_of_seeds():
    """Two seeds win every image of a class, the third loses all: by the images' votes that was clear."""
    won = np.zeros((3, 30), dtype=bool)
    won[:2, 20:] = True
    lost = np.zeros((3, 30), dtype=bool)
    lost[2, 20:] = True
    fox = gain_over(MethodOutcome("new", won), MethodOutcome("old", lost), EVAL_SET)["by_class"][2]
    assert fox["mean"] == pytest.approx(1 / 3)
    assert not fox["clear"]
    assert -1 <= fox["ci"][0] < 0 < fox["ci"][1] <= 1
