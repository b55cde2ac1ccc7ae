"""The two classifiers that no training bias can touch."""

import numpy as np
import pytest

from probe.evaluation.diagnostics import classifiers


def clouds(seed=0, n=90, d=6, k=3, gap=4.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    return rng.normal(size=(n, d)) + gap * np.eye(k, d)[y], y


def test_separate_classes_are_told_apart_by_both():
    (x, y), (test, truth) = clouds(gap=12), clouds(1, gap=12)
    assert (classifiers.neighbours(x, y, test, 3) == truth).all()
    assert (classifiers.equiangular(x, y, test, 3) == truth).all()


def test_a_vote_of_neighbours_worked_by_hand():
    """Three rows near (1, 0), two of class 1; the query looks the same way."""
    x = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.0, 1.0]])
    y = np.array([0, 1, 1, 2])
    assert classifiers.neighbours(x, y, np.array([[5.0, 0.0]]), 3, k=3).tolist() == [1]
    assert classifiers.neighbours(x, y, np.array([[5.0, 0.0]]), 3, k=1).tolist() == [0]


@pytest.mark.parametrize("d", [6, 200])
def test_the_map_to_the_simplex_is_the_ridge_of_the_smallest_error_left_out(d):
    """Against sklearn, one strength and one left-out row at a time; also with more dimensions than rows."""
    from sklearn.linear_model import Ridge

    (x, y), (test, _) = clouds(2, n=24, d=d, gap=1.5), clouds(3, n=30, d=d, gap=1.5)
    frame = classifiers.simplex(3)
    centred = x - x.mean(0)
    level = np.linalg.svd(centred, compute_uv=False) ** 2
    level = level[level > level.max() * 1e-10].mean()

    def left_out(strength):
        total = 0.0
        for i in range(len(y)):
            kept = np.arange(len(y)) != i
            model = Ridge(alpha=strength * level).fit(x[kept], frame[y[kept]])
            total += ((model.predict(x[i : i + 1]) - frame[y[i]]) ** 2).sum()
        return total

    strength = min(classifiers.L2_GRID, key=left_out)
    expected = Ridge(alpha=strength * level).fit(x, frame[y]).predict(test) @ frame.T
    np.testing.assert_array_equal(classifiers.equiangular(x, y, test, 3), expected.argmax(1))


def test_turning_the_features_changes_no_decision():
    (x, y), (test, _) = clouds(4), clouds(5)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    for classify in (classifiers.neighbours, classifiers.equiangular):
        np.testing.assert_array_equal(classify(x @ turn, y, test @ turn, 3), classify(x, y, test, 3))
