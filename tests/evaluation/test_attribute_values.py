"""Groups that are not classes: what is shown of them, and that gaps between them are judged honestly."""

from __future__ import annotations

import numpy as np
import pytest

from probe.evaluation import attribute_values, significance
from probe.evaluation.attribute_values import AttributeSet
from probe.evaluation.significance import ACCURACY
from probe.evaluation.summary import MethodOutcome

RNG = np.random.default_rng(0)


def small(seeds=2, n=60, classes=3, values=2):
    labels, codes = RNG.integers(classes, size=n), RNG.integers(values, size=n)
    names = tuple(f"c{k}" for k in range(classes))
    made = AttributeSet("camera", tuple(f"v{v}" for v in range(values)), codes, labels, names)
    return made, MethodOutcome("erm", RNG.random((seeds, n)) < 0.7)


def test_every_value_and_cell_is_the_share_of_its_images_that_are_right():
    values, outcome = small()
    block = attribute_values.evaluate(values, outcome)["test"]
    for v, row in enumerate(block["values"]):
        mine = [i for i in range(60) if values.codes[i] == v]
        assert row["n"] == len(mine)
        right = [bool(outcome.correct[s, i]) for s in range(2) for i in mine]
        assert row["accuracy"] == pytest.approx(sum(right) / len(right))
        assert row["ci"][0] < row["accuracy"] < row["ci"][1]
    for cell in block["cells"]:
        k, v = int(cell["class"][1:]), int(cell["value"][1:])
        mine = [i for i in range(60) if values.labels[i] == k and values.codes[i] == v]
        right = [bool(outcome.correct[s, i]) for s in range(2) for i in mine]
        assert (cell["n"], cell["accuracy"]) == (len(mine), pytest.approx(sum(right) / len(right)))
    assert block["worst_cell"]["accuracy"] == min(cell["accuracy"] for cell in block["cells"])


def test_a_gap_over_the_same_classes_leaves_out_that_values_have_other_classes():
    labels = np.repeat([0, 1, 0, 1], [90, 10, 10, 90])
    codes = np.repeat([0, 0, 1, 1], [90, 10, 10, 90])
    correct = (labels == 0)[None]  # class 0 is always right, whatever the value
    values = AttributeSet("camera", ("a", "b"), codes, labels, ("easy", "hard"))
    [gap] = attribute_values.evaluate(values, MethodOutcome("erm", correct))["test"]["gaps"]
    assert gap["mean"] == pytest.approx(0.8)
    assert gap["clear"]
    assert gap["same_classes"]["mean"] == pytest.approx(0.0)
    assert gap["same_classes"]["classes"] == 2
    assert not gap["same_classes"]["clear"]


def test_values_without_a_class_in_common_say_so_and_many_values_are_compared_with_the_rest():
    labels, codes = np.repeat([0, 1], 20), np.repeat([0, 1], 20)
    values = AttributeSet("camera", ("a", "b"), codes, labels, ("x", "y"))
    [gap] = attribute_values.gaps(values, np.ones((1, 40), dtype=bool))
    assert gap["same_classes"] is None
    many = AttributeSet(
        "camera", tuple("abcdefghij"), np.arange(40) % 10, np.zeros(40, dtype=np.int64), ("x", "y")
    )
    gaps = attribute_values.gaps(many, np.ones((1, 40), dtype=bool))
    assert [gap["value"] for gap in gaps] == list("abcdefghij")
    assert {gap["than"] for gap in gaps} == {"all others"}


def test_gains_over_the_reference_are_paired_and_corrected_for_their_number():
    values, outcome = small(n=200)
    worse = MethodOutcome("erm", outcome.correct & (RNG.random(outcome.correct.shape) < 0.8))
    block = attribute_values.evaluate(values, outcome, worse)
    for v, name in enumerate(values.values):
        mine = values.codes == v
        difference = outcome.correct[:, mine].mean() - worse.correct[:, mine].mean()
        assert block["versus"]["gain"][name]["mean"] == pytest.approx(difference)
        assert block["versus"]["gain"][name]["p_holm"] >= block["versus"]["gain"][name]["p"]


def false_alarms(sides, accuracy, seeds=1, spread=0.0, repeats=1500):
    """How often a gap between two sets of images with one true accuracy is called clear at 5 %."""
    rng, found = np.random.default_rng(1), []
    for start in range(0, repeats, 250):
        number = min(250, repeats - start)
        cells = np.repeat(np.arange(2 * number), np.tile(sides, number))
        side = np.repeat(np.tile([0, 1], number), np.tile(sides, number))
        # what differs between seeds: each is better or worse at one side, by chance
        shift = rng.normal(0, spread, (seeds, 2 * number))[:, cells] * (side == 0)
        correct = rng.random((seeds, len(cells))) < np.clip(accuracy + shift, 0, 1)
        m = significance.class_moments(correct, cells, 2 * number, ACCURACY)
        eye = np.eye(2 * number)
        found.append(significance.differences(m, eye[::2], eye[1::2]).p < 0.05)
    return float(np.concatenate(found).mean())


@pytest.mark.parametrize(
    ("sides", "accuracy", "seeds", "spread"),
    [
        ((1, 1), 0.5, 1, 0.0),
        ((1, 200), 0.5, 1, 0.0),
        ((1, 200), 0.95, 1, 0.0),
        ((20, 20), 1.0, 1, 0.0),
        ((20, 20), 0.9, 1, 0.0),
        ((300, 30), 0.98, 1, 0.0),
        ((200, 200), 0.8, 2, 0.0),
        ((200, 200), 0.8, 2, 0.05),
        ((200, 200), 0.8, 5, 0.05),
    ],
)
def test_a_gap_that_is_none_is_rarely_called_clear(sides, accuracy, seeds, spread):
    assert false_alarms(sides, accuracy, seeds, spread) <= 0.065


def test_a_gap_that_is_there_is_found_and_its_interval_holds_it():
    rng = np.random.default_rng(2)
    inside = clear = 0
    for _ in range(300):
        correct = np.concatenate([rng.random(150) < 0.9, rng.random(400) < 0.7])[None]
        cells = np.repeat([0, 1], [150, 400])
        m = significance.class_moments(correct, cells, 2, ACCURACY)
        e = significance.differences(m, np.array([[1.0, 0]]), np.array([[0, 1.0]]))
        inside += e.ci[0, 0] <= 0.2 <= e.ci[0, 1]
        clear += e.p[0] < 0.05
    assert inside / 300 > 0.92
    assert clear / 300 > 0.95


def test_the_p_value_is_the_level_at_which_the_interval_reaches_zero():
    m = significance.class_moments(RNG.random((3, 90)) < 0.7, np.repeat([0, 1], [30, 60]), 2, ACCURACY)
    e = significance.differences(m, np.array([[1.0, 0]]), np.array([[0, 1.0]]))
    low, high = e.interval(e.p)[0]
    assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-6)
