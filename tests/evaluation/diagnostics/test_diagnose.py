"""The diagnostics block of a run: complete, small, and right about which classes are hard and why."""

import json

import numpy as np
import pytest

from probe.evaluation.diagnostics import diagnose as module
from probe.evaluation.diagnostics.diagnose import LabelledFeatures, Model, diagnose

NAMES = ("ash", "birch", "cedar", "fir", "oak", "yew")
GROUPS = {"easy": [0, 1], "medium": [2, 3], "hard": [4, 5]}


def material(seed=0, per_class=15, overlap=True):
    """Six Gaussian classes; the two hard ones sit on top of each other."""
    rng = np.random.default_rng(seed)
    means = 6 * np.eye(6, 8)
    if overlap:
        means[5] = means[4] + 0.5
    y = np.repeat(np.arange(6), per_class)
    return means, lambda: (means[y] + rng.normal(size=(len(y), 8)), y)


@pytest.fixture(scope="module")
def block():
    means, draw = material()
    (train, y), (test, truth) = draw(), draw()
    logits = test @ means.T - 0.5 * (means**2).sum(1)
    rows = [
        {"name": n, "gamma": 1.0 + k / 10, "mean_norm2": 36.0, "spread2": 8.0} for k, n in enumerate(NAMES)
    ]
    return diagnose(
        {"mr2": Model(logits, means), "erm": Model(0.5 * logits, means)},
        labels=truth,
        ids=[f"image {i}" for i in range(len(truth))],
        class_names=NAMES,
        groups=GROUPS,
        train=LabelledFeatures(train, y),
        test=LabelledFeatures(test, truth),
        margins=rows,
    )


def test_it_is_plain_json_and_small(block):
    assert len(json.dumps(block, allow_nan=False)) < 60_000


def test_every_class_has_every_number(block):
    for method in block["methods"].values():
        for key in ("g_n", "g_p", "logit_margin", "weight_norm", "class_mean_angle"):
            assert len(method[key]) == 6
            assert None not in method[key]
        assert set(method["g_n_on"]) == set(GROUPS)
    for key in ("spread2", "variance_norm", "separability", "angle", "largest_distance"):
        assert len(block["features"][key]) == 6


def test_bias_on_the_groups_adds_up_to_the_bias_on_all(block):
    method = block["methods"]["mr2"]
    np.testing.assert_allclose(np.sum(list(method["g_n_on"].values()), axis=0), method["g_n"], atol=1e-3)


def test_overlapping_classes_are_found_by_every_measure(block):
    f = block["features"]
    assert {block["confusions"][0]["true"], block["confusions"][0]["predicted"]} == {"oak", "yew"}
    for classifier in f["accuracy_by"].values():
        assert np.mean(classifier[4:]) < np.mean(classifier[:4])
    assert max(f["separability"][4:]) < min(f["separability"][:4])
    margin = block["methods"]["mr2"]["logit_margin"]
    assert max(margin[4:]) < min(margin[:4])


def test_confusions_name_images_that_were_really_confused(block):
    for row in block["confusions"]:
        assert row["ids"] == [f"image {r}" for r in row["rows"]]
        assert all(NAMES[r // 15] == row["true"] for r in row["rows"])


def test_complexity_is_theorem_1s_term(block):
    assert block["complexity"]["with_margins"][2] == pytest.approx(44 / 1.2**2, rel=1e-4)
    assert block["complexity"]["equal_margins"][2] == pytest.approx(44 / 1.25**2, rel=1e-4)


def test_the_map_shows_the_hardest_classes_and_a_yardstick(block):
    shown = {p["class"] for p in block["features"]["map"]}
    assert {4, 5} <= shown
    assert len(shown) > 2


def test_scores_of_minus_infinity_and_absent_classes_leave_gaps_not_errors():
    """A k-NN head gives -inf to classes without a vote; a small test split misses classes."""
    labels = np.array([0, 0, 1])
    votes = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    logits = np.full_like(votes, -np.inf)
    np.log(votes, out=logits, where=votes > 0)
    block = diagnose(
        {"knn": Model(logits)},
        labels=labels,
        ids=["a", "b", "c"],
        class_names=("x", "y", "z"),
        groups={"easy": [0], "medium": [1], "hard": [2]},
    )
    json.dumps(block, allow_nan=False)
    assert block["methods"]["knn"]["logit_margin"][2] is None
    assert "features" not in block


def test_a_large_training_set_is_sampled_evenly_over_classes(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 60)
    y = np.repeat([0, 1, 2], [500, 30, 10])
    x = np.arange(540.0)[:, None]
    sample = module._sample(LabelledFeatures(x, y), seed=0)
    assert np.bincount(sample.y).tolist() == [25, 25, 10]
    np.testing.assert_array_equal(y[sample.X[:, 0].astype(int)], sample.y)


def test_single_classes_are_chosen_by_size_or_else_one_from_each_group():
    sizes = np.repeat(np.arange(6), [9, 1, 4, 3, 30, 5])
    assert module.chosen_classes(GROUPS, sizes, 6) == [4, 2, 1]  # the largest, a middle one, the smallest
    assert module.chosen_classes(GROUPS, np.repeat(np.arange(6), 5), 6) == [1, 3, 5]
    assert module.chosen_classes(GROUPS, None, 6) == [1, 3, 5]


def test_chosen_classes_have_distributions_of_their_own(block):
    method = block["methods"]["mr2"]
    easy, _, hard = method["logit_margin_quantiles_of_chosen"]
    assert block["chosen"] == [1, 3, 5]
    assert len(easy) == 41
    assert np.median(hard) < np.median(easy)  # the hard two overlap
    assert np.mean(easy) == pytest.approx(method["logit_margin"][1], rel=0.1)
    assert len(block["features"]["largest_distance_quantiles_of_chosen"]) == 3


def test_angles_to_the_weights_are_those_to_the_class_means_where_weights_are_means():
    means, draw = material()
    test, truth = draw()
    found = module._to_weights(2 * means, test, truth, module._Context(truth, [], 6, GROUPS, []))
    cosine = [
        float(x @ means[k] / (np.linalg.norm(x) * np.linalg.norm(means[k])))
        for x, k in zip(test, truth, strict=True)
    ]
    expected = [np.degrees(np.arccos(cosine))[truth == k].mean() for k in range(6)]
    np.testing.assert_allclose(found["angle_to_weight"], expected, rtol=1e-4)
    assert module._to_weights(means[:, :4], test, truth, module._Context(truth, [], 6, GROUPS, [])) == {}


def test_the_map_of_groups_has_training_images_of_each_group_alike(block):
    points = block["features"]["group_map"]
    counts = {name: sum(p["group"] == name for p in points) for name in GROUPS}
    assert counts == dict.fromkeys(GROUPS, 30)  # all there are
    assert all(p["class"] in GROUPS[p["group"]] for p in points)
