"""Metrics on cases worked by hand."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

from probe.evaluate import metrics

LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
HITS = np.array([1, 1, 1, 0, 1, 0, 0, 0, 1, 0], dtype=bool)  # 3/4, 1/2, 1/4


def test_the_scalars_of_a_hand_worked_case():
    result = metrics.overall(metrics.count(HITS, LABELS, 3))
    assert result["top1"] == pytest.approx(0.5)
    assert result["mean_per_class"] == pytest.approx(0.5)
    assert result["gap"] == pytest.approx(0.5)
    assert result["std"] == pytest.approx(np.sqrt(2 / 3) / 4)


def test_worst_and_best_carry_their_names():
    result = metrics.extremes(metrics.count(HITS, LABELS, 3), ("a", "b", "c"))
    assert result["best"] == {"class": "a", "accuracy": 0.75}
    assert result["worst"] == {"class": "c", "accuracy": 0.25}


def test_a_class_without_test_images_is_left_out():
    counts = metrics.count(HITS, LABELS, 4)
    assert np.isnan(counts.accuracy[3])
    assert metrics.overall(counts)["mean_per_class"] == pytest.approx(0.5)


def test_seeds_are_averaged():
    both = np.stack([HITS, np.ones_like(HITS)])
    assert metrics.overall(metrics.count(both, LABELS, 3))["top1"] == pytest.approx(0.75)


def test_top_k_and_mean_per_class_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 7)), rng.integers(7, size=200)
    assert metrics.top_k(scores, labels, 3).mean() == pytest.approx(top_k_accuracy_score(labels, scores, k=3))
    ours = metrics.score(scores.argmax(1), labels, 7, "mean_per_class")
    assert ours == pytest.approx(balanced_accuracy_score(labels, scores.argmax(1)))


def test_constant_scores_are_no_hit():
    assert not metrics.top_k(np.zeros((3, 4)), np.array([0, 1, 2]), 1).any()


def test_wilson_interval_of_a_known_case():
    low, high = metrics.wilson(np.array([8.0]), np.array([10]))[0]
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert metrics.wilson(np.array([10.0]), np.array([10]))[0, 1] == pytest.approx(1)
