"""Long-tailed versions have the counts of the published protocols."""

from __future__ import annotations

import numpy as np
import pytest

import probe.data
from probe.data import longtail
from probe.errors import UserError
from tests.support.tiny_datasets import write_parquet


def balanced(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(classes), each))


@pytest.mark.parametrize(
    ("classes", "each", "imbalance", "total"),
    [
        (10, 5000, 10, 20431),
        (10, 5000, 50, 13996),
        (10, 5000, 100, 12406),
        (10, 5000, 200, 11203),
        (100, 500, 10, 19573),
        (100, 500, 50, 12608),
        (100, 500, 100, 10847),
        (100, 500, 200, 9502),
    ],
)
def test_cifar_totals_are_the_published_ones(classes, each, imbalance, total):
    labels = balanced(classes, each)
    rows = longtail.indices(labels, classes, imbalance)
    counts = np.bincount(labels[rows])
    assert len(rows) == total
    assert counts[0] == each
    assert counts[-1] == each // imbalance
    assert (np.diff(counts) <= 0).all()


def test_the_step_profile_has_two_levels():
    labels = balanced(10, 500)
    counts = np.bincount(labels[longtail.indices(labels, 10, 100, "step")])
    assert counts.tolist() == [500] * 5 + [5] * 5


def test_the_draw_is_the_usual_one_seeded_and_ascending():
    labels = balanced(4, 50)
    rows = longtail.indices(labels, 4, 10, seed=0)
    first = np.flatnonzero(labels == 0)
    np.random.RandomState(0).shuffle(first)
    assert set(rows[labels[rows] == 0]) == set(first[:50])
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, longtail.indices(labels, 4, 10, seed=0))
    assert not np.array_equal(rows, longtail.indices(labels, 4, 10, seed=1))


def test_any_data_set_can_be_made_long_tailed_and_its_test_split_stays():
    plain, tailed = probe.data.load("digits"), probe.data.load("digits", imbalance=10)
    assert tailed.name == "digits-lt"
    assert tailed["test"].fingerprint == plain["test"].fingerprint
    assert len(tailed["train"]) < len(plain["train"])
    assert "imbalance 10" in tailed.note
    assert set(tailed["train"].ids) < set(plain["train"].ids)
    assert len(probe.data.load("digits-lt")["train"]) < len(tailed["train"])
    assert probe.data.load("digits", imbalance=10, seed=1)["train"].ids != tailed["train"].ids


def test_an_official_validation_split_has_the_same_tail_and_train_plus_val_too(tmp_path):
    each = {"train": 20, "val": 10, "test": 4}
    for seed, (split, count) in enumerate(each.items()):
        labels = np.repeat(np.arange(5), count).tolist()
        write_parquet(tmp_path / f"{split}.parquet", labels, names="abcde", seed=1000 * seed)
    tailed = probe.data.load(tmp_path, imbalance=10)
    assert tailed["train"].class_counts.tolist() == [20, 11, 6, 3, 2]
    assert tailed["val"].class_counts.tolist() == [10, 5, 3, 1, 1]
    assert tailed["test"].class_counts.tolist() == [4] * 5
    assert len(tailed["train"]) + len(tailed["val"]) == 42 + 20
    assert "42 of 100 images of train and 20 of 50 images of val" in tailed.note


def test_a_validation_split_too_small_for_the_tail_keeps_one_image_a_class(tmp_path):
    for split, count in {"train": 20, "val": 5, "test": 1}.items():
        write_parquet(tmp_path / f"{split}.parquet", np.repeat(np.arange(2), count).tolist())
    tailed = probe.data.load(tmp_path, imbalance=20, profile="step")
    assert tailed["train"].class_counts.tolist() == [20, 1]
    assert tailed["val"].class_counts.tolist() == [5, 1]


def test_what_cannot_be_drawn_is_refused():
    for options, words in (
        ({"imbalance": 0.5}, "at least 1"),
        ({"imbalance": 1e4}, "without images"),
        ({"imbalance": 10, "profile": "expo"}, 'did you mean "exp"'),
    ):
        with pytest.raises(UserError, match=words):
            probe.data.load("digits", **options)
