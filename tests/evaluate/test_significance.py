"""Intervals cover the truth, equal models are not called different, and the shortcut is exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from probe.evaluate import significance as sig


def experiment(rng, p, sizes):
    """Hits (models x 1 seed x images) of models whose class accuracies are p (models x K)."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return (rng.random((len(p), 1, len(labels))) < p[:, None, labels]), labels


def test_value_draws_have_the_distribution_of_the_plain_image_bootstrap():
    rng = np.random.default_rng(0)
    hits, labels = experiment(rng, np.array([[0.7, 0.4], [0.8, 0.5]]), [40, 25])
    difference = hits[1].astype(int) - hits[0]
    fast = sig.draw(difference, labels, 2, draws=20_000).images
    for k, n in enumerate((40, 25)):
        rows = difference[0, labels == k]
        plain = rows[rng.integers(n, size=(20_000, n))].mean(axis=1)
        assert fast[:, k].mean() == pytest.approx(plain.mean(), abs=0.005)
        assert fast[:, k].std() == pytest.approx(plain.std() * np.sqrt(n / (n - 1)), rel=0.03)


def test_a_gain_worked_by_hand():
    """Model 1 mends half of class 1's images and none of class 0's: no doubt, interval above zero."""
    labels = np.repeat([0, 1], 100)
    mended = np.zeros((1, 200), dtype=int)
    mended[0, 100:150] = 1
    drawn = sig.draw(mended, labels, 2)
    table = sig.weightings(np.array([100, 100]), {"easy": [0], "hard": [1]})
    hard = sig.estimate(drawn, table["hard"])
    assert hard.mean == 0.5
    assert hard.ci[0] == pytest.approx(0.4, abs=0.02)
    assert hard.ci[1] == pytest.approx(0.6, abs=0.02)
    assert hard.clear
    assert hard.p < 1e-12  # ten standard errors from 0: far below what 2,000 draws could show by counting
    easy = sig.estimate(drawn, table["easy"])
    assert (easy.mean, easy.ci, easy.p) == (0.0, (0.0, 0.0), 1.0)
    assert not easy.clear


def test_a_weighting_of_no_class_has_no_estimate():
    drawn = sig.draw(np.ones((1, 4)), np.array([0, 0, 1, 1]), 3)
    assert sig.estimate(drawn, sig.weightings(np.array([2, 2, 0]), {"few": [2]})["few"]) is None


def test_the_interval_of_seeds_that_alone_differ_is_students_t():
    """Every image of a seed is alike, so only the seeds vary: mean 0.5 +- t(0.975, 4) s / sqrt(5 m).

    m = 0.763 is the geometric mean of chi^2 / 4 with 4 degrees of freedom: what s^2 is of the truth.
    """
    labels = np.zeros(400, dtype=int)
    per_seed = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    drawn = sig.draw(np.repeat(per_seed[:, None], 400, axis=1), labels, 1, draws=100_000)
    e = sig.estimate(drawn, np.ones(1))
    half = 2.776445 * per_seed.std(ddof=1) / np.sqrt(5 * 0.76310)
    assert e.ci == pytest.approx((0.5 - half, 0.5 + half), abs=0.01)
    assert e.p == pytest.approx(0.0367, abs=0.003)  # t = 3.089 with 4 degrees of freedom


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
        e = sig.estimate(sig.draw(h[0], labels, 3), weight)
        return e.ci[1] - e.ci[0]

    assert width(same) == pytest.approx(width(hits), rel=0.1)
    assert width(other) > 1.5 * width(same)


def simulate(trials, *, seeds, seed_effect, draws, classes=9, each=30):
    """How many intervals cover the truth, and how often two equal methods are called different.

    A probit model: an image's difficulty is shared by all, a seed shifts its method on every image.
    """
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(classes), each)
    level = np.linspace(0.95, 0.5, classes)
    size = np.sqrt(1 + 1 + seed_effect**2)  # of the latent score, so that the class means are `level` exactly
    weight = np.full(classes, 1 / classes)
    covered = called = 0
    for t in range(trials):
        image = rng.normal(size=len(labels)) + ndtri(level)[labels] * size
        shift = rng.normal(size=(2, seeds, 1)) * seed_effect
        hits = rng.random((2, seeds, len(labels))) < ndtr(image + shift)
        one = sig.estimate(sig.draw(hits[0], labels, classes, draws=draws, seed=t), weight)
        covered += one.ci[0] <= level.mean() <= one.ci[1]
        difference = hits[1].astype(int) - hits[0]
        called += sig.estimate(sig.draw(difference, labels, classes, draws=draws, seed=t), weight).clear
    return int(covered), int(called)


def more_often_than(share, count, trials):
    """Is a count beyond what chance does to `share`? An exact one-sided binomial test at 1 in 1,000."""
    return binomtest(count, trials, share, alternative="greater").pvalue < 1e-3


def test_intervals_cover_and_equal_methods_are_rarely_called_different():
    """93 % covered and 5 % called, up to the chance of 200 experiments; the long version is stricter."""
    trials = 200
    covered, called = simulate(trials, seeds=3, seed_effect=0.1, draws=500)
    assert not more_often_than(0.07, trials - covered, trials)
    assert not more_often_than(0.05, called, trials)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_two_thousand_experiments_a_setting_the_intervals_keep_their_promise():
    """Asked: 95 % intervals cover the truth in 93 to 97 % of 2,000 experiments, and two equal methods are
    called different in at most 5 %.

    Tested, for one seed, and for three and five that do not differ, hardly differ, differ as much as the
    images do, and differ far more: the coverage is within 93 and 97 %, as counted, in every setting. The
    calls are at most 5 % as counted over all settings together; a single setting's count of 2,000 has a
    standard error of 0.5 points, so there an excess must be beyond chance (binomial, 1 in 1,000: from 6.6 %).
    """
    trials, calls, settings = 2000, 0, [(1, 0.0), *((s, e) for s in (3, 5) for e in (0.0, 0.1, 0.3, 0.6))]
    for seeds, seed_effect in settings:
        covered, called = simulate(trials, seeds=seeds, seed_effect=seed_effect, draws=sig.DRAWS)
        print(
            f"{seeds} seeds, effect {seed_effect}: {covered / trials:.2%} cover, {called / trials:.2%} call"
        )
        assert 0.93 <= covered / trials <= 0.97, (seeds, seed_effect)
        assert not more_often_than(0.05, called, trials), (seeds, seed_effect)
        calls += called
    assert calls <= 0.05 * trials * len(settings)


def test_holm_on_a_case_worked_by_hand():
    """0.01 x 4, then 0.02 x 3, then 0.03 x 2 (not below the step before), then 0.5 x 1."""
    np.testing.assert_allclose(sig.holm([0.03, 0.01, 0.5, 0.02]), [0.06, 0.04, 0.5, 0.06])
    assert sig.holm([]).size == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_the_step_down_rule(p):
    """Adjusted p < level exactly when the plain procedure rejects."""
    adjusted, rejected, order = sig.holm(p), set(), sorted(range(len(p)), key=lambda i: p[i])
    for step, i in enumerate(order):
        if p[i] * (len(p) - step) >= 0.05:
            break
        rejected.add(i)
    assert {i for i in range(len(p)) if adjusted[i] < 0.05} == rejected


def test_exact_mcnemar_agrees_with_the_binomial_test():
    better, worse = np.array([0, 8, 3, 1, 5]), np.array([0, 0, 4, 0, 5])
    ours = sig.mcnemar(better, worse)
    assert ours[0] == 1
    assert ours[1] == pytest.approx(2 / 256)
    for b, w, p in zip(better[1:], worse[1:], ours[1:], strict=True):
        assert p == pytest.approx(binomtest(b, b + w).pvalue)
