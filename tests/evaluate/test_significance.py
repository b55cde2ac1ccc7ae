"""Intervals cover the truth, equal models are not called different, and the shortcut is exact."""

import numpy as np
import pytest

from probe.evaluate import significance as sig


def experiment(rng, p, sizes):
    """Hits (models x 1 seed x images) of models whose class accuracies are p (models x K)."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return (rng.random((len(p), 1, len(labels))) < p[:, None, labels]), labels


def test_pattern_draws_have_the_distribution_of_the_plain_image_bootstrap():
    rng = np.random.default_rng(0)
    hits, labels = experiment(rng, np.array([[0.7, 0.4], [0.8, 0.5]]), [40, 25])
    fast = sig.class_draws(hits, labels, 2, draws=20_000)
    for k, n in enumerate((40, 25)):
        rows = hits[:, 0, labels == k]
        plain = rows[:, rng.integers(n, size=(20_000, n))].mean(axis=2)
        widen = np.sqrt(n / (n - 1))
        difference_fast, difference_plain = fast[1, :, k] - fast[0, :, k], plain[1] - plain[0]
        assert difference_fast.mean() == pytest.approx(difference_plain.mean(), abs=0.005)
        assert difference_fast.std() == pytest.approx(difference_plain.std() * widen, rel=0.03)


def test_a_gain_worked_by_hand():
    """Model 1 mends half of class 1's images and none of class 0's: no doubt, interval above zero."""
    labels = np.repeat([0, 1], 100)
    base = np.ones((1, 200), dtype=bool)
    base[0, 100:] = False
    better = base.copy()
    better[0, 100:150] = True
    hits = np.stack([base, better])
    draws = sig.class_draws(hits, labels, 2)
    value = np.array([0.0, 0.5])
    table = sig.weightings(np.array([100, 100]), {"easy": [0], "hard": [1]})
    hard = sig.estimate(draws[1] - draws[0], value, table["hard"])
    assert hard.mean == 0.5
    assert hard.ci[0] == pytest.approx(0.4, abs=0.02)
    assert hard.ci[1] == pytest.approx(0.6, abs=0.02)
    assert hard.clear
    easy = sig.estimate(draws[1] - draws[0], value, table["easy"])
    assert (easy.mean, easy.ci, easy.p) == (0.0, (0.0, 0.0), 1.0)
    assert not easy.clear


def test_weightings_sum_to_one_and_skip_absent_classes():
    table = sig.weightings(np.array([10, 30, 0]), {"easy": [1], "hard": [0, 2]})
    np.testing.assert_allclose(table["overall"], [0.25, 0.75, 0])
    np.testing.assert_allclose(table["mean_per_class"], [0.5, 0.5, 0])
    np.testing.assert_allclose(table["hard"], [1, 0, 0])


def test_more_seeds_that_agree_narrow_the_interval_and_seeds_that_disagree_widen_it():
    rng = np.random.default_rng(0)
    hits, labels = experiment(rng, np.full((1, 3), 0.6), [50, 50, 50])
    same = np.repeat(hits, 5, axis=1)
    other = same.copy()
    other[:, 1:3] = True
    weight = np.full(3, 1 / 3)

    def width(h):
        e = sig.estimate(sig.class_draws(h, labels, 3)[0], np.full(3, 0.6), weight)
        return e.ci[1] - e.ci[0]

    assert width(same) == pytest.approx(width(hits), rel=0.1)
    assert width(other) > 1.5 * width(same)


def test_ninety_five_percent_intervals_cover_and_equal_models_are_rarely_called_different():
    rng = np.random.default_rng(1)
    sizes, p = [30] * 6, np.array([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]] * 2)
    weight = np.full(6, 1 / 6)
    covered = called = 0
    trials = 400
    for t in range(trials):
        hits, labels = experiment(rng, p, sizes)
        accuracy = np.stack([[hits[m, 0, labels == k].mean() for k in range(6)] for m in range(2)])
        draws = sig.class_draws(hits, labels, 6, draws=500, seed=t)
        one = sig.estimate(draws[0], accuracy[0], weight)
        covered += one.ci[0] <= p[0].mean() <= one.ci[1]
        called += sig.estimate(draws[1] - draws[0], accuracy[1] - accuracy[0], weight).clear
    assert 0.92 <= covered / trials <= 0.98
    assert called / trials <= 0.075  # 5 % and the noise of 400 trials
