"""Metrics on cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

from probe.evaluation import metrics

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


def test_gini_and_worst_tenth_by_hand():
    accuracy = np.array([0.75, 0.5, 0.25])
    # mean absolute difference of two drawn classes: (0.25 x 4 + 0.5 x 2) / 9; halved and divided by 0.5
    assert metrics.gini(accuracy) == pytest.approx(2 / 9 / 2 / 0.5)
    assert metrics.gini(np.ones(5)) == pytest.approx(0)
    assert metrics.gini(np.zeros(5)) == 0
    assert metrics.worst_tenth(accuracy) == 0.25
    assert metrics.worst_tenth(np.arange(11) / 10) == pytest.approx(0.05)  # two of eleven


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30), st.randoms())
def test_gini_is_the_mean_over_pairs_and_ignores_the_order_of_classes(accuracy, random):
    pairs = sum(abs(a - b) for a in accuracy for b in accuracy) / len(accuracy) ** 2
    expected = pairs / 2 / (sum(accuracy) / len(accuracy))
    assert metrics.gini(np.array(accuracy)) == pytest.approx(expected, abs=1e-12)
    random.shuffle(accuracy)
    assert metrics.gini(np.array(accuracy)) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_by_hand_and_in_plain_python():
    confidence, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    # bin of 0.9: accuracy 1/2; bin of 0.6: accuracy 1; half the images each
    assert metrics.calibration_error(confidence, correct) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.5
    total = 0.0
    for b in range(15):
        inside = [i for i in range(500) if b / 15 < confidence[i] <= (b + 1) / 15]
        if inside:
            gap = sum(correct[i] for i in inside) / len(inside) - sum(confidence[i] for i in inside) / len(
                inside
            )
            total += abs(gap) * len(inside) / 500
    assert metrics.calibration_error(confidence, correct) == pytest.approx(total)


def test_a_perfectly_sure_and_right_model_is_calibrated():
    assert metrics.calibration_error(np.ones(10), np.ones(10, dtype=bool)) == 0


def test_the_rank_correlation_is_spearmans_with_ties():
    from scipy.stats import spearmanr

    from probe.evaluation.metrics import rank_correlation

    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 6, 20).astype(float), rng.normal(size=20)
        assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(np.ones(4), np.arange(4.0)) is None
