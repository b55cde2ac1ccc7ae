"""Why a class is hard: planted reasons are found and named, and where none is planted none is claimed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from probe.evaluation import crossfitted as module
from probe.evaluation import groups
from probe.evaluation.crossfitted import Crossfitted
from probe.evaluation.diagnostics import forecast, neighbourhood, outputs, reasons, suspects
from probe.evaluation.diagnostics import look_first as looking
from probe.evaluation.diagnostics.look_first import NamedImages, look_first
from probe.report.text import format

K, DIM = 6, 24
NAMES = ("ash", "birch", "cedar", "fir", "oak", "yew")


def gaussian(rng, counts, *, spread=None, apart=6.0):
    """Classes around the axes, `counts` images each."""
    y = np.repeat(np.arange(len(counts)), counts)
    wide = np.ones(len(counts)) if spread is None else np.asarray(spread)
    return apart * np.eye(len(counts), DIM)[y] + wide[y, None] * rng.normal(size=(len(y), DIM)), y


def nearest_means(X, y, classes=K, sharpness=1.0):
    """`fit_predict` of a plain model: logits by the squared distance to the means of the kept rows."""

    def fit_predict(kept, held):
        means = np.stack([X[kept][y[kept] == k].mean(axis=0) for k in range(classes)])
        return outputs.softmax(-0.5 * sharpness * ((X[held][:, None] - means) ** 2).sum(axis=2))

    return fit_predict


def crossfit(X, y, classes=K):
    said = Crossfitted.empty(y, classes)
    groups.crossfit(y, classes, nearest_means(X, y, classes), keep=said.keep)
    return said


def named(X, y, split):
    return NamedImages(X, y, [f"{split} {i}" for i in range(len(y))], [split] * len(y))


def looked(train, test, names=NAMES, hard=None):
    said = crossfit(*train, classes=len(names))
    hard = range(len(names)) if hard is None else hard
    return look_first(said, named(*train, "train"), named(*test, "test"), names, hard)


def of(block, name):
    return next(row for row in block["classes"] if row["name"] == name)


# -- cross-fitted probabilities ---------------------------------------------------------------------------


def test_every_image_has_the_probabilities_of_the_fold_that_did_not_see_it(tmp_path):
    import pyarrow.parquet as pq

    X, y = gaussian(np.random.default_rng(0), [12] * K, apart=2.0)
    said, fold = crossfit(X, y), groups.folds(y, 5, 0)
    module.write(tmp_path / module.FILE, said, [f"i{i}" for i in range(len(y))], NAMES)
    rows = pq.read_table(tmp_path / module.FILE).to_pylist()
    for i, row in enumerate(rows):  # one image at a time, in plain Python
        kept = np.flatnonzero(fold != fold[i])
        p = nearest_means(X, y)(kept, np.array([i]))[0]
        other = max((k for k in range(K) if k != y[i]), key=lambda k: p[k])
        assert (row["id"], row["label"], row["label_index"]) == (f"i{i}", NAMES[y[i]], y[i])
        assert (row["fold"], row["predicted"], row["rival"]) == (fold[i], NAMES[p.argmax()], NAMES[other])
        assert row["probabilities"] == pytest.approx(p, abs=1e-6)
        assert (row["probability"], row["rival_probability"]) == pytest.approx((p[y[i]], p[other]), abs=1e-6)
    about = pq.read_schema(tmp_path / module.FILE).metadata
    assert (json.loads(about[b"class_names"]), about[b"entries"]) == (list(NAMES), b"all")


def test_beyond_the_budget_the_most_likely_entries_are_kept_and_the_file_says_so(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    X, y = gaussian(np.random.default_rng(0), [8] * 12, apart=2.0)
    names = [f"c{k}" for k in range(12)]
    whole = crossfit(X, y, 12)
    monkeypatch.setattr(module, "BUDGET", 100)
    said = crossfit(X, y, 12)
    np.testing.assert_array_equal(said.probability, -np.sort(-whole.probability, axis=1)[:, : module.TOP])
    for name in ("predicted", "own", "rival", "rival_probability", "fold"):
        np.testing.assert_array_equal(getattr(said, name), getattr(whole, name))
    module.write(tmp_path / module.FILE, said, names * 8, names)
    table = pq.read_table(tmp_path / module.FILE)
    assert table.schema.metadata[b"entries"] == b"top"
    assert "probabilities" not in table.column_names
    assert len(table["top_classes"][0].as_py()) == len(table["top_probabilities"][0].as_py()) == module.TOP


# -- suspect labels ---------------------------------------------------------------------------------------


def planted(rng, share, apart=6.0):
    """Gaussian classes of which a share of the labels is wrong: what probes say, and which ones are wrong."""
    X, y = gaussian(rng, [80] * K, apart=apart)
    wrong = rng.permutation(len(y))[: int(share * len(y))]
    y[wrong] = (y[wrong] + rng.integers(1, K, len(wrong))) % K
    return crossfit(X, y), wrong


@pytest.mark.parametrize("share", [0.0, 0.05, 0.15, 0.3])
def test_planted_wrong_labels_are_found_and_their_number_is_estimated(share):
    """Over ten data sets: the estimate is of the truth's size, and suspects are the planted ones."""
    expected, known, listed, right = 0.0, 0, 0, 0
    for seed in range(10):
        said, wrong = planted(np.random.default_rng(seed), share)
        found = suspects.find(said)
        assert (found.low <= found.expected).all()
        assert (found.expected <= found.high).all()
        expected, known = expected + found.expected.sum(), known + len(wrong)
        listed, right = listed + len(found.rows), right + np.isin(found.rows, wrong).sum()
    if not share:
        assert expected < 0.005 * 10 * 80 * K
        return
    assert 0.45 < expected / known < 1.1  # at least half of the planted ones are unlike their label
    assert right / listed > 0.95  # precision
    assert right / known > 0.6  # recall


def binary(y, own):
    """Two classes, and the probability of each image's label."""
    p = np.empty((len(y), 2))
    p[np.arange(len(y)), y], p[np.arange(len(y)), 1 - y] = own, 1 - own
    said = Crossfitted.empty(y, 2)
    said.keep(0, np.arange(len(y)), p)
    return said


def test_overlapping_classes_with_right_labels_are_hardly_suspected():
    """Two classes two standard deviations apart: one image in six is mistaken, none has a wrong label."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 2000)
    p = 1 / (1 + np.exp(-2 * (rng.normal(size=len(y)) + 1)))  # of the label, by Bayes' rule
    assert (p < 0.5).mean() == pytest.approx(0.159, abs=0.02)
    assert suspects.find(binary(y, p)).expected.sum() / len(y) < 0.01


@pytest.mark.parametrize(("apart", "most"), [(3.5, 0.005), (2.5, 0.02)])
def test_many_overlapping_classes_with_right_labels_are_hardly_suspected(apart, most):
    said, _ = planted(np.random.default_rng(0), 0.0, apart)
    assert suspects.SURE < (said.predicted == said.labels).mean() < 0.98
    assert suspects.find(said).expected.sum() / len(said.labels) < most


def test_probes_that_are_mostly_wrong_do_not_count_wrong_labels():
    said, _ = planted(np.random.default_rng(0), 0.1, apart=1.2)
    assert (said.predicted == said.labels).mean() < suspects.SURE
    found = suspects.find(said)
    assert np.isnan([found.expected, found.low, found.high]).all()
    X, y = gaussian(np.random.default_rng(0), [40] * K, apart=1.2)
    block = looked((X, y), (X, y))
    assert block["suspects"]["expected"] is None
    assert {row["suspects"]["expected"] for row in block["classes"]} == {None}
    assert "suspect labels" not in {r["reason"] for row in block["classes"] for r in row["reasons"]}
    json.dumps(block, allow_nan=False)
    assert "wrong labels: the probe is too often wrong itself to tell" in format.look_first_totals(block)


@pytest.mark.parametrize("counts", [(700, 100, 100, 100), (450, 50)])
def test_a_large_class_alone_does_not_make_probes_sure(counts):
    """Noise: every image is taken for the largest class, which is most of them."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(len(counts)), counts)
    prior = np.array(counts) / len(y)
    p = outputs.softmax(np.log(prior) + 0.1 * rng.normal(size=(len(y), len(counts))))
    said = Crossfitted.empty(y, len(counts))
    said.keep(0, np.arange(len(y)), p)
    assert (said.predicted == y).mean() > suspects.SURE
    assert np.isnan(suspects.find(said).expected).all()


def test_a_class_that_probes_never_believe_in_accuses_nobody(monkeypatch):
    monkeypatch.setattr(suspects, "SURE", 0.0)
    y = np.array([0] * 30 + [1])
    found = suspects.find(binary(y, np.array([0.6] * 29 + [0.2, 0.01])))
    assert found.expected[0] == 0


def test_a_core_that_one_image_in_thirty_reaches_stands_for_nobody(monkeypatch):
    """Class 1 is believed in once, and an image of class 0 is taken for it."""
    monkeypatch.setattr(suspects, "SURE", 0.0)
    y = np.repeat([0, 1], [300, 30])
    own = np.array([0.999] * 299 + [0.01] + [0.9] + [0.4] * 29)
    assert suspects.find(binary(y, own)).expected[0] == 0


def test_with_the_likeliest_classes_alone_the_numbers_are_the_same(monkeypatch):
    X, y = gaussian(np.random.default_rng(0), [40] * 12, apart=4.0)
    y[::17] = (y[::17] + 5) % 12
    whole = suspects.find(crossfit(X, y, 12))
    monkeypatch.setattr(module, "BUDGET", 100)
    few = suspects.find(crossfit(X, y, 12))
    assert whole.expected.sum() > 10
    # an entry that was not kept counts as the least one that was: a few images more pass
    assert whole.expected.sum() <= few.expected.sum() < 1.2 * whole.expected.sum()
    np.testing.assert_array_equal(few.rows, whole.rows)


# -- neighbours and near-duplicates -----------------------------------------------------------------------


def test_neighbours_in_blocks_are_those_of_the_whole_matrix(monkeypatch):
    X, y = gaussian(np.random.default_rng(1), [20, 20, 3], apart=3.0)
    whole = neighbourhood.nearest(X, k=5)
    monkeypatch.setattr(neighbourhood, "BLOCK_BYTES", 4 * 43 * 7)
    parts = neighbourhood.nearest(X, k=5)
    np.testing.assert_array_equal(parts.index, whole.index)
    U = X / np.linalg.norm(X, axis=1, keepdims=True)
    for i in range(len(X)):
        order = sorted((j for j in range(len(X)) if j != i), key=lambda j: -(U[i] @ U[j]))[:5]
        assert whole.index[i].tolist() == order
    share = [np.mean([y[j] == 2 for j in whole.index[i][:2]]) for i in np.flatnonzero(y == 2)]
    assert neighbourhood.own_share(y, whole, 4)[2] == pytest.approx(
        np.mean(share)
    )  # two others: two are asked
    assert np.isnan(neighbourhood.own_share(y, whole, 4)[3])


def test_a_planted_near_duplicate_is_found_and_nothing_else(tmp_path):
    rng = np.random.default_rng(2)
    train, y = gaussian(rng, [40] * K)
    test, truth = gaussian(rng, [20] * K)
    test[100] = 1.7 * train[210] + 0.01 * rng.normal(size=DIM)  # brighter, and encoded again
    train[3] = train[90] + 0.01 * rng.normal(size=DIM)  # an ash that is a cedar
    block = looked((train, y), (test, truth))
    copies = block["near_duplicates"]
    assert (copies["train"], copies["test"], copies["other_label"]) == (2, 1, 1)
    first, second = copies["pairs"]
    assert [(i["split"], i["id"], i["class"]) for i in first["images"]] == [
        ("train", "train 3", "ash"),
        ("train", "train 90", "cedar"),
    ]
    assert [(i["split"], i["id"]) for i in second["images"]] == [("test", "test 100"), ("train", "train 210")]
    assert of(block, "yew")["near_duplicates"] == [second]
    assert "conflicting duplicates" in [r["reason"] for r in of(block, "ash")["reasons"]]


def test_large_splits_are_sampled_and_the_block_says_so(monkeypatch):
    monkeypatch.setattr(looking, "MOST_ROWS", 60)
    rng = np.random.default_rng(3)
    block = looked(gaussian(rng, [30] * K), gaussian(rng, [5] * K))
    assert (block["images"], block["compared"]) == (180, {"train": 60, "test": 30})


# -- reasons ----------------------------------------------------------------------------------------------


def facts(**known):
    usual = reasons.ClassFacts(
        name="oak",
        count=100,
        others_count=100.0,
        accuracy=0.9,
        rival="yew",
        mistaken=0.02,
        back=0.02,
        spread=1.0,
        spread_above=0.5,
        own_neighbours=0.9,
        others_neighbours=0.9,
        wrong_labels=0.0,
        wrong_interval=(0.0, 12.0),
        repeated=0,
        conflicting=0,
    )
    return replace(usual, **known)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"mistaken": 0.31, "back": 0.22}, "confused with yew, both ways (31 % and 22 %)"),
        ({"mistaken": 0.31, "back": 0.04}, "mistaken for yew, one way (31 %, back 4 %)"),
        ({"count": 12, "others_count": 40.0}, "few images: 12, others 40"),
        ({"count": 0, "own_neighbours": None, "spread": None, "mistaken": 0.0}, "no training images"),
        (
            {"wrong_labels": 5.0, "wrong_interval": (2.0, 11.0)},
            "suspect labels: about 5 of 100 (95 %: 2 to 11)",
        ),
        (
            {"spread": 1.5, "spread_above": 0.9},
            "unlike each other: spread 1.50 times that of others, above 90 % of them",
        ),
        ({"own_neighbours": 0.3}, "among other classes: 30 % of its neighbours are its own, others 90 %"),
        ({"conflicting": 4}, "near-duplicates under another label: 4 of 100 images"),
        ({"repeated": 40}, "the same images again: 40 of 100 have a near-duplicate in train"),
    ],
)
def test_each_reason_is_a_plain_sentence(known, says):
    assert [r["text"] for r in reasons.of_class(facts(**known))] == [says]


def test_the_strongest_reason_comes_first_and_usual_numbers_are_no_reason():
    found = reasons.of_class(facts(mistaken=0.15, back=0.15, count=10, others_count=100.0))
    assert [r["reason"] for r in found] == ["few images"]  # 1.5 of 10 images is one or two
    found = reasons.of_class(facts(mistaken=0.3, count=10, others_count=100.0))
    assert [r["reason"] for r in found] == ["few images", "confused"]
    assert reasons.of_class(facts()) == []
    assert reasons.none_found(facts()) == "no single reason: 10 % mistaken, at most 2 % for one class"


def test_confusions_of_a_matrix_written_by_hand_go_one_way_or_both():
    """10 images each: 4 birches are ashes, nothing back; 3 oaks are yews and 2 yews are oaks."""
    y = np.repeat(np.arange(K), 10)
    said = Crossfitted.empty(y, K)
    predicted = y.copy()
    predicted[[10, 11, 12, 13]], predicted[[40, 41, 42]], predicted[[50, 51]] = 0, 5, 4
    said.keep(0, np.arange(60), np.eye(K)[predicted])
    X, _ = gaussian(np.random.default_rng(0), [10] * K)
    block = look_first(said, named(X, y, "train"), named(X + 3, y, "test"), NAMES, [1, 4, 5])
    assert [row["name"] for row in block["classes"]] == ["birch", "oak", "yew"]  # hardest first
    seen = {row["name"]: row["confused"] for row in block["classes"]}
    assert seen["birch"] == {"with": "ash", "share": 0.4, "back": 0.0, "both_ways": False}
    assert seen["oak"] == {"with": "yew", "share": 0.3, "back": 0.2, "both_ways": True}
    assert seen["yew"] == {"with": "oak", "share": 0.2, "back": 0.3, "both_ways": True}


def test_a_class_with_few_images_is_told_so_and_the_others_are_not():
    rng = np.random.default_rng(4)
    block = looked(gaussian(rng, [40, 40, 40, 40, 40, 8]), gaussian(rng, [5] * K))
    few = [row["name"] for row in block["classes"] if "few images" in [r["reason"] for r in row["reasons"]]]
    assert few == ["yew"]


@pytest.mark.parametrize("counts", [[3, 1, 0], [1, 1], [0, 30], [5]])
def test_the_smallest_data_gives_plain_json(counts):
    """Classes of one image or none, two classes, one class: gaps, never NaN or an error."""
    rng = np.random.default_rng(5)
    X, y = gaussian(rng, counts)
    said = Crossfitted.empty(y, len(counts))
    said.keep(0, np.arange(len(y)), np.full((len(y), len(counts)), 1 / len(counts)))
    names = NAMES[: len(counts)]
    test = named(X[:0], y[:0], "test")
    block = look_first(said, named(X, y, "train"), test, names, range(len(counts)))
    assert len(block["classes"]) == len(counts)
    json.dumps(block, allow_nan=False)


def test_features_that_are_all_the_same_are_all_duplicates():
    X, y = np.ones((30, DIM)), np.repeat([0, 1, 2], 10)
    said = Crossfitted.empty(y, 3)
    said.keep(0, np.arange(30), np.full((30, 3), 1 / 3))
    block = look_first(said, named(X, y, "train"), named(X, y, "test"), NAMES[:3], [0, 1, 2])
    json.dumps(block, allow_nan=False)
    assert (block["near_duplicates"]["train"], block["near_duplicates"]["test"]) == (30, 30)


# -- the forecast -----------------------------------------------------------------------------------------


def test_the_forecast_agrees_with_planted_difficulty():
    rng, spread = np.random.default_rng(6), np.linspace(0.6, 3.0, 12)
    names = tuple(f"c{k:02d}" for k in range(12))
    block = looked(gaussian(rng, [40] * 12, spread=spread), gaussian(rng, [5] * 12), names)
    assert block["forecast"]["by"] == ["spread", "neighbours"]
    assert block["forecast"]["correlation"] > 0.7
    assert set(block["forecast"]["order"][:4]) <= set(names[6:])


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 5, 20).astype(float), rng.normal(size=20)
    assert forecast.rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    b[3] = np.nan
    known = ~np.isnan(b)
    assert forecast.rank_correlation(a, b) == pytest.approx(spearmanr(a[known], b[known]).statistic)
    assert forecast.rank_correlation(np.ones(20), b) is None
    assert forecast.rank_correlation(a[:2], a[:2]) is None


def test_zero_shot_accuracy_is_a_third_sign():
    spread, mixed, wrong = np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, np.nan]), np.array([0.9, 0.5, 0.1])
    signs = {"spread": spread, "neighbours": mixed, "zero-shot": wrong}
    np.testing.assert_allclose(forecast.difficulty(signs), [1 / 3, (0.5 + 1 + 0.5) / 3, 0.5])
