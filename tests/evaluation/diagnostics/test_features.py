"""Feature diagnostics against cases worked by hand, plain Python and their properties."""

import numpy as np
import pytest

from probe.evaluation.diagnostics import features

X = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 5.0]])
Y = np.array([0, 0, 1, 1, 1])


def random_case(seed=0, n=60, d=4, k=3):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    return rng.normal(size=(n, d)) + 3 * rng.normal(size=(k, d))[y], y


def test_centres_spread_and_variance_norm_by_hand():
    np.testing.assert_allclose(features.centres(X, Y, 2), [[2, 0], [0, 3]])
    np.testing.assert_allclose(features.spread(X, Y, 2), [1, 2])  # ((1 + 1) / 2, (1 + 1 + 4) / 3)
    np.testing.assert_allclose(features.variance_norm(X, Y, 2), [1, 2])


def test_spread_is_the_sum_and_variance_norm_the_length_of_the_variances():
    x, y = random_case()
    for k in range(3):
        rows = [list(r) for r, label in zip(x, y, strict=True) if label == k]
        columns = list(zip(*rows, strict=True))
        variances = [sum((v - sum(c) / len(c)) ** 2 for v in c) / len(c) for c in columns]
        assert features.spread(x, y, 3)[k] == pytest.approx(sum(variances))
        assert features.variance_norm(x, y, 3)[k] == pytest.approx(sum(v**2 for v in variances) ** 0.5)


def test_a_class_without_rows_is_unknown():
    for measure in (features.spread, features.variance_norm, features.separability):
        assert np.isnan(measure(X, Y, 3)[2])
        assert not np.isnan(measure(X, Y, 3)[:2]).any()


def test_angles_to_the_centre_by_hand():
    x = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [-3.0, 0.0], [0.0, 0.0]])
    angles = features.angles_to_centre(x, np.zeros(5, dtype=int), np.array([[2.0, 0.0]]))
    np.testing.assert_allclose(angles, [0, 45, 90, 180, np.nan], atol=1e-6)


def test_separability_of_one_dimension_is_fishers_ratio():
    """Means 2, 8 and variances 1, 4: (8 - 2)^2 / (1 + 4); in one dimension every direction is the same."""
    x = np.array([[1.0], [3.0], [6.0], [10.0]])
    np.testing.assert_allclose(features.separability(x, np.array([0, 0, 1, 1]), 2), [36 / 5, 36 / 5])


def test_separability_is_the_mean_over_pairs_along_the_discriminants():
    from sklearn.covariance import oas

    x, y = random_case(1)
    mean = np.stack([x[y == k].mean(0) for k in range(3)])
    within = oas(x - mean[y], assume_centered=True)[0]
    for i, value in enumerate(features.separability(x, y, 3)):
        criteria = []
        for j in {0, 1, 2} - {i}:
            w = np.linalg.solve(within, mean[i] - mean[j])
            a, b = x[y == i] @ w, x[y == j] @ w
            criteria.append((a.mean() - b.mean()) ** 2 / (a.var() + b.var()))
        assert value == pytest.approx(np.mean(criteria))


def test_separability_ignores_scale_and_shift_and_grows_with_the_distance_of_classes():
    x, y = random_case(2)
    np.testing.assert_allclose(features.separability(3 * x + 7, y, 3), features.separability(x, y, 3))
    apart = x + 10 * np.eye(4)[y]
    assert (features.separability(apart, y, 3) > features.separability(x, y, 3)).all()


def test_separability_stays_finite_with_fewer_rows_than_dimensions():
    rng = np.random.default_rng(0)
    value = features.separability(rng.normal(size=(12, 50)), np.arange(12) % 3, 3)
    assert np.isfinite(value).all()


def test_largest_distances_by_hand():
    """Class 0: 2 apart; class 1: the row at 5 is 3 from the others; the longest row has norm 5."""
    np.testing.assert_allclose(features.largest_distances(X, Y), np.array([2, 2, 3, 3, 3]) / 5)


def test_largest_distances_in_plain_python_and_any_order():
    x, y = random_case(3)
    order = np.random.default_rng(0).permutation(len(y))
    found = features.largest_distances(x[order], y[order])
    longest = max(np.linalg.norm(r) for r in x)
    for place, i in enumerate(order):
        far = max(np.linalg.norm(x[i] - x[j]) for j in range(len(y)) if y[j] == y[i])
        assert found[place] == pytest.approx(far / longest)


def test_the_map_shows_the_chosen_classes_and_keeps_distinct_classes_apart():
    x, y = random_case(4, n=90)
    x = x + 50 * np.eye(4)[y]
    plane, rows = features.map_of(x, y, [0, 2], per_class=20)
    assert sorted(set(y[rows])) == [0, 2]
    assert len(rows) == 40
    a, b = plane[y[rows] == 0], plane[y[rows] == 2]
    gap = np.linalg.norm(a.mean(0) - b.mean(0))
    assert gap > np.linalg.norm(a - a.mean(0), axis=1).max()
    again, _ = features.map_of(x, y, [0, 2], per_class=20)
    np.testing.assert_array_equal(again, plane)


def test_a_map_of_too_few_rows_is_empty():
    plane, rows = features.map_of(X[:2], Y[:2], [0])
    assert plane.shape == (0, 2)
    assert rows.size == 0


def test_the_shrunk_covariance_is_scikit_learns():
    from sklearn.covariance import oas

    for shape in ((50, 6), (8, 20)):
        rows = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1)
        np.testing.assert_allclose(features.shrunk_covariance(rows), oas(rows, assume_centered=True)[0])


def test_a_map_of_one_image_again_and_again_is_empty():
    plane, rows = features.map_of(np.full((20, 8), 0.3), np.arange(20) % 2, [0, 1])
    assert plane.shape == (0, 2)
    assert len(rows) == 0
