"""The model behind every interval: its limits worked by hand, its boundaries, and what must not change it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binomtest, chi2

from probe.evaluation import significance as sig
from probe.evaluation.significance import ACCURACY, GAIN

ONE = np.ones((1, 1))


def estimate(values, labels=None, weights=ONE, scale=GAIN):
    values = np.atleast_2d(values)
    labels = np.zeros(values.shape[1], dtype=int) if labels is None else labels
    return sig.estimates(sig.class_moments(values, labels, weights.shape[1], scale), weights)


def won_and_lost(won, lost, images):
    """A difference of two methods on so many images."""
    return np.repeat([1, -1, 0], [won, lost, images - won - lost])


# -- against what is known ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "images"), [(0, 10), (1, 10), (5, 10), (96, 100), (100, 100), (1, 1)])
def test_one_seeds_accuracy_is_close_to_agresti_and_coulls_interval(right, images):
    p = (right + 2) / (images + 4)
    half = 1.96 * np.sqrt(p * (1 - p) / (images + 4))
    low, high = estimate(np.arange(images) < right, scale=ACCURACY).ci[0]
    assert low == pytest.approx(max(p - half, 0), abs=0.4 / images)  # ours has n - 1 in one place
    assert high == pytest.approx(min(p + half, 1), abs=0.4 / images)


@pytest.mark.parametrize(("won", "lost"), [(3, 0), (6, 0), (10, 0), (9, 3), (30, 12), (7, 7), (0, 0)])
def test_one_seeds_gain_is_tested_like_mcnemars_exact_test(won, lost):
    p = estimate(won_and_lost(won, lost, 500)).p[0]
    exact = binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert exact / 2 < p < 2.1 * exact or p == exact == 1


def test_many_seeds_that_alone_differ_give_students_t():
    """Every image of a seed is alike, so only the seeds vary: mean +- t(0.975, 4) s / sqrt(5)."""
    per_seed = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    low, high = estimate(np.repeat(per_seed[:, None], 100_000, axis=1), scale=ACCURACY).ci[0]
    half = 2.776445 * per_seed.std(ddof=1) / np.sqrt(5)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)


def test_the_chance_of_a_false_alarm_is_near_the_nominal_one_whatever_the_seeds_do():
    """Integrated for normal errors of variance 1 (images) + rho (seeds), of which `between` is a sample."""
    logs = np.linspace(np.log(1e-16), np.log(60), 801)  # of chi^2 / (S - 1): small levels live on tiny ones
    luck = np.exp(logs)
    for seeds in (2, 3, 4, 5, 7, 10, 20):
        density = chi2.pdf(luck * (seeds - 1), seeds - 1) * luck
        for share in (0.05, 0.2, 0.4, 0.6, 0.8, 1.0):
            for rho in (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0):
                same = np.ones_like(luck)
                e = sig.Estimates(same, same, same, luck * (share + rho), share * same, 0 * same, seeds, GAIN)
                for level in (0.05, 0.01, 0.001, 1e-6):
                    half = np.sqrt(e._half_squared(np.full_like(luck, level)))
                    missed = np.average(2 * ndtr(-half / np.sqrt(1 + rho)), weights=density)
                    assert missed <= 1.17 * level, (seeds, share, rho)
                    if level == 0.05 and seeds > 2:
                        assert missed >= 0.0195, (seeds, share, rho)


# -- boundaries ---------------------------------------------------------------------------------------------


def test_seeds_that_agree_do_not_make_a_gain_of_nothing_clear():
    """Three seeds, each with 5 images won and 4 lost, all different: the sign test says p = 0.7."""
    values = np.zeros((3, 371))
    for s in range(3):
        values[s, 9 * s : 9 * s + 5] = 1
        values[s, 9 * s + 5 : 9 * s + 9] = -1
    e = estimate(values)
    assert e.p[0] > 0.4
    assert e.ci[0, 0] < 0 < e.ci[0, 1]


def test_two_seeds_that_agree_to_the_last_image_prove_little():
    """Each wins 300 of 10,000 images and loses 100. On other images: chance; on the same: the same head."""
    one = won_and_lost(300, 100, 10_000)
    assert 1e-4 < estimate(np.stack([one, np.roll(one, 400)])).p[0] < 0.01
    assert estimate(np.stack([one, one])).p[0] == pytest.approx(estimate(one).p[0], rel=1e-6)


def test_two_seeds_never_make_a_tiny_p_value_of_nothing():
    """20,000 equal pairs whose seeds differ by 3 points on 1,000 images: two seeds often tie to the image."""
    rng, pairs, images = np.random.default_rng(0), 200, 1000
    full = np.full(pairs, 0.375)
    smallest = 1.0
    for _ in range(100):
        right = rng.binomial(images, 0.75 + 0.03 * rng.normal(size=(2, 2, pairs)))  # method x seed x pair
        gain = (right[0] - right[1]) / images
        t = sig.ClassMoments(GAIN, np.full(pairs, images), gain, gain.mean(axis=0), full / 2, full, full)
        smallest = min(smallest, sig.estimates(t, np.eye(pairs)).p.min())
    assert smallest > 1e-6


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize("images", [1, 2, 5, 40])
@pytest.mark.parametrize("value", [-1, 0, 1])
def test_values_without_any_spread_have_an_interval(seeds, images, value):
    e = estimate(np.full((seeds, images), value))
    low, high = e.ci[0]
    assert -1 <= low <= value <= high <= 1
    assert high - low > 1 / images
    assert (e.p[0] < 0.05) == (value != 0 and images == 40)
    accuracy = estimate(np.full((seeds, images), abs(value)), scale=ACCURACY).ci[0]
    assert 0 <= accuracy[0] <= abs(value) <= accuracy[1] <= 1
    assert accuracy[1] - accuracy[0] > 1 / (images + 1)


def test_two_seeds_are_too_few_to_know_their_spread():
    """The same gains from two seeds and from five: two give an interval several times as wide."""
    rng = np.random.default_rng(0)
    widths = []
    for seeds, gains in ((2, (0.02, 0.06)), (5, (0.01, 0.07, 0.04, 0.02, 0.06))):
        values = np.stack([(rng.random(4000) < g).astype(int) for g in gains])
        assert len(values) == seeds
        low, high = estimate(values).ci[0]
        widths.append(high - low)
    assert widths[0] > 3 * widths[1]


def test_classes_of_one_image_are_lent_the_spread_of_all():
    values = (np.arange(60) % 5 > 0)[None]
    e = estimate(values, np.arange(60), np.full((1, 60), 1 / 60), ACCURACY)
    assert e.ci[0, 1] - e.ci[0, 0] == pytest.approx(2 * 1.96 * np.sqrt(0.16 / 60), rel=0.15)


def test_a_class_without_images_is_left_out():
    t = sig.class_moments(np.ones((1, 4)), np.array([0, 0, 1, 1]), 3, ACCURACY)
    weights = np.stack(list(sig.weightings(np.array([2, 2, 0]), {"few": [2]}).values()))
    e = sig.estimates(t, weights)
    assert e.mean.tolist() == [1, 1, 0]
    assert not weights[2].any()


# -- what must change nothing -------------------------------------------------------------------------------


@st.composite
def experiments(draw):
    seeds, classes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 9), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    values = rng.choice(
        [-1, 0, 1], size=(seeds, len(labels)), p=draw(st.sampled_from([(0.1, 0.8, 0.1), (0, 0.7, 0.3)]))
    )
    return values, labels, classes, rng


def everything(e):
    return np.concatenate([e.mean, e.ci.ravel(), e.interval(0.001).ravel(), e.p])


@settings(max_examples=60, deadline=None)
@given(experiments())
def test_the_order_of_seeds_images_and_classes_changes_nothing(made):
    values, labels, classes, rng = made
    weights = np.stack([np.full(classes, 1 / classes), *np.eye(classes)])
    plain = everything(estimate(values, labels, weights))
    seeds, images, order = (rng.permutation(n) for n in (*values.shape, classes))
    moved = estimate(values[seeds][:, images], np.argsort(order)[labels[images]], weights[:, order])
    np.testing.assert_allclose(everything(moved), plain, rtol=1e-6, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(experiments())
def test_noise_in_the_last_digits_changes_nothing_visible(made):
    values, labels, classes, rng = made
    weights = np.stack([np.full(classes, 1 / classes), *np.eye(classes)])
    noisy = values + 1e-12 * rng.normal(size=values.shape)
    plain, shaken = (everything(estimate(v, labels, weights)) for v in (values, noisy))
    np.testing.assert_allclose(shaken, plain, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(experiments())
def test_verdict_and_interval_are_of_one_mind_and_within_what_is_possible(made):
    values, labels, classes, _ = made
    e = estimate(values, labels, np.eye(classes))
    adjusted = sig.holm(e.p)
    for level, p in ((0.05, e.p), (0.01, e.p)):
        ci = e.interval(level)
        assert (ci >= -1).all()
        assert (ci <= 1).all()
        assert ((ci[:, 0] > 0) | (ci[:, 1] < 0)).tolist() == (p < level).tolist()
    ci = e.interval(sig.corrected_level(e.p, adjusted))
    assert ((ci[:, 0] > 0) | (ci[:, 1] < 0)).tolist() == (adjusted < 0.05).tolist()


def test_an_estimate_is_rebuilt_from_its_parts():
    e = estimate(won_and_lost(9, 3, 100))
    again = sig.from_parts(float(e.mean[0]), e.parts(0))
    np.testing.assert_allclose(again.interval(0.003), e.interval(0.003))
    assert again.p[0] == pytest.approx(e.p[0])


def test_weightings_sum_to_one_and_skip_absent_classes():
    table = sig.weightings(np.array([10, 30, 0]), {"easy": [1], "hard": [0, 2]})
    np.testing.assert_allclose(table["overall"], [0.25, 0.75, 0])
    np.testing.assert_allclose(table["mean_per_class"], [0.5, 0.5, 0])
    np.testing.assert_allclose(table["hard"], [1, 0, 0])


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
