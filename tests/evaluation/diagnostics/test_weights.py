"""Classifier diagnostics against cases worked by hand and plain Python."""

import numpy as np
import pytest

from probe.evaluation.diagnostics import classifiers, weights


def test_norms_by_hand():
    np.testing.assert_allclose(weights.norms(np.array([[3.0, 4.0], [0.0, 2.0]])), [5, 2])


def test_class_mean_angle_by_hand():
    """Two rows at a right angle, one opposite to the first: (1 + 0 - 1)/3, (0 + 1 + 0)/3, (-1 + 0 + 1)/3."""
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [-5.0, 0.0]])
    np.testing.assert_allclose(weights.class_mean_angle(rows), [0, 1 / 3, 0], atol=1e-12)


def test_class_mean_angle_is_the_mean_over_all_pairs():
    w = np.random.default_rng(0).normal(size=(6, 4))
    for i, value in enumerate(weights.class_mean_angle(w)):
        cosines = [w[i] @ w[j] / np.linalg.norm(w[i]) / np.linalg.norm(w[j]) for j in range(6)]
        assert value == pytest.approx(sum(cosines) / 6)
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)  # so it cannot be negative for every class
    assert weights.class_mean_angle(w).mean() == pytest.approx((unit.sum(0) ** 2).sum() / 36)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_class_mean_angle_of_an_equiangular_frame_is_zero(k):
    frame = classifiers.simplex(k)
    np.testing.assert_allclose(weights.class_mean_angle(frame), 0, atol=1e-12)
    np.testing.assert_allclose(frame @ frame.T, np.where(np.eye(k), 1, -1 / (k - 1)), atol=1e-12)


def test_class_mean_angle_ignores_the_norms_and_follows_the_classes():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(7, 3))
    order = rng.permutation(7)
    scaled = w[order] * rng.uniform(0.1, 10, size=(7, 1))
    np.testing.assert_allclose(weights.class_mean_angle(scaled), weights.class_mean_angle(w)[order])


def test_identical_rows_have_a_class_mean_angle_of_one():
    np.testing.assert_allclose(weights.class_mean_angle(np.ones((4, 3))), 1)
