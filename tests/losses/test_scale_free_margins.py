"""What MR² promises on features of any scale, with margins that no class and no image can own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import backbones
import backbones.catalogue
import probe.losses
from backbones.torchvision_ops import ensure_torchvision
from probe.core import theory
from probe.core.class_stats import ClassStats
from probe.errors import UserError
from probe.losses.base import FitContext
from tests.losses.test_margin_properties import K, batch, make, seeds

light = settings(max_examples=12, deadline=None)
SCALE_FREE = ("spread", "total")


def clusters(n=40, d=16, k=6, seed=0):
    """Gaussian classes of different spread around different means."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(k).repeat(n)
    mean, width = 3 * torch.randn(k, d, generator=g), 0.5 + torch.rand(k, generator=g)
    h = mean[y] + torch.randn(len(y), d, generator=g) * width[y].unsqueeze(1)
    return h.double(), y


def value_and_gradient(loss, z, y, h):
    h = h.clone().requires_grad_()
    value = loss(z, y, h)
    value.backward()
    return value.detach(), h.grad


@pytest.mark.parametrize("scale", SCALE_FREE)
@given(seeds, st.sampled_from([1e-3, 1e3]))
@light
def test_the_scale_of_features_changes_neither_the_loss_nor_the_gradients_direction(scale, seed, factor):
    z, y, h = batch(seed)
    plain, scaled = (value_and_gradient(make(scale=scale, lam=1.0), z, y, f * h) for f in (1.0, factor))
    torch.testing.assert_close(plain[0], scaled[0])
    torch.testing.assert_close(plain[1], factor * scaled[1])


def test_shrinking_all_features_gains_nothing_under_the_total_variance():
    """A Fisher ratio: the gradient has no part along the features themselves, about their mean."""
    z, y, h = batch(0)
    _, along_total = value_and_gradient(make(scale="total", lam=1.0), z, y, h)
    _, along_spread = value_and_gradient(make(scale="spread", lam=1.0), z, y, h)
    centred = h - h.mean(0)
    assert (along_total * centred).sum().item() == pytest.approx(0, abs=1e-12)
    assert (along_spread * centred).sum().item() > 0.01


@pytest.mark.parametrize("scale", SCALE_FREE)
def test_the_number_of_partners_does_not_matter_where_distances_are_equal(scale):
    """Corners of a simplex: all pairs of a class are equally far apart."""
    terms = []
    for m in (2, 3, 5):
        h = torch.eye(m, 5, dtype=torch.float64).repeat(K, 1)
        y = torch.arange(K).repeat_interleave(m)
        z = torch.zeros(len(y), K, dtype=torch.float64)
        stats = ClassStats(torch.full((K,), m), torch.ones(K), torch.ones(K).double())
        if scale == "total":  # one unit for all numbers of partners
            h = h / (h - h.mean(0)).square().sum(1).mean().sqrt()
            terms.append((h[0] - h[1]).square().sum() / 2 - 1)
            want = math.log1p(math.exp(terms[-1]))
        else:
            want = math.log1p(math.exp(2 / 2 - 1))
        got = make(scale=scale, lam=1.0, stats=stats)(z, y, h) - make(lam=0.0, stats=stats)(z, y, h)
        assert got.item() == pytest.approx(want)


@pytest.mark.parametrize("scale", ["spread", "total", "none"])
def test_the_hand_written_gradient_is_that_of_the_value(scale):
    z, y, h = batch(3, n=10)
    stats = ClassStats.from_features(h, y, K)
    loss = make(scale=scale, lam=0.7, stats=stats)
    assert torch.autograd.gradcheck(
        lambda a, b: loss(a, y, b), (z.requires_grad_(), h.requires_grad_()), atol=1e-7
    )


def test_samples_without_a_partner_feel_no_pull_and_change_no_average_but_theirs():
    z, _, h = batch(0, n=K)
    for scale in ("spread", "none"):
        h_ = h.clone().requires_grad_()
        make(scale=scale, lam=1.0)(z, torch.arange(K), h_).backward()
        assert (h_.grad == 0).all()


def test_the_papers_form_is_a_setting_of_the_same_loss():
    paper, ours = make("mr2-paper"), make(scale="none", statistic="moment", lam=0.1)
    for seed in range(3):
        for a, b in zip(
            value_and_gradient(paper, *batch(seed)), value_and_gradient(ours, *batch(seed)), strict=True
        ):
            assert torch.equal(a, b)


# -- margins ------------------------------------------------------------------------------------------


def test_power_zero_makes_all_margins_equal():
    z, y, h = batch(0)
    for statistic in ("spread", "moment"):
        loss = make(power=0.0, c=1.7, statistic=statistic)
        loss(z, y, h)
        torch.testing.assert_close(loss.gamma, torch.full((K,), 1.7, dtype=torch.float64))
        assert "margins are equal" in loss.remark


@given(seeds, st.floats(0.0, 3.0), st.floats(1.0, 4.0))
@light
def test_capped_margins_keep_their_mean_and_order(seed, power, cap):
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(12, generator=g, dtype=torch.float64).exp() ** 3
    free = theory.margins(t, power=power, mean_margin=2.0)
    held = theory.margins(t, power=power, mean_margin=2.0, cap=cap)
    assert held.mean().item() == pytest.approx(2.0)
    assert held.max().item() <= 2 * cap * (1 + 1e-6)
    order = free.argsort()
    assert (held[order].diff() >= -1e-12).all()
    if free.max() <= 2 * cap:
        torch.testing.assert_close(held, free)


def test_few_images_move_a_class_towards_the_mean():
    h, y = clusters()
    stats = ClassStats.from_features(h, y, 6)
    few = torch.tensor([2.0, 40, 40, 40, 40, 4000])
    plain, shrunk = (
        probe.losses.make("mr2", num_classes=6, class_counts=few, stats=stats, power=1.0, shrink=s)
        for s in (0.0, 5.0)
    )
    t, mean = stats.spread2, stats.spread2.mean()
    want = (few * t + 5 * mean) / (few + 5)
    torch.testing.assert_close(shrunk.gamma, want / want.mean())
    assert abs(float(shrunk.gamma[0] - 1)) < abs(float(plain.gamma[0] - 1))
    with pytest.raises(UserError, match="shrink needs the class sizes"):
        make(shrink=1.0)


def test_clean_features_keep_their_statistics_where_outliers_are_held_back():
    h, y = clusters()
    plain, robust = (ClassStats.from_features(h, y, 6, robust=held) for held in (False, True))
    torch.testing.assert_close(robust.spread2, plain.spread2, rtol=0.02, atol=0)
    torch.testing.assert_close(robust.mean, plain.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(robust.count, plain.count)


@given(seeds, st.sampled_from([10, 40]))
@light
def test_one_image_of_a_hundred_times_the_norm_owns_neither_a_margin_nor_the_mean_spread(seed, n):
    h, y = clusters(n, seed=seed)
    clean = ClassStats.from_features(h, y, 6, robust=True)
    h[7] *= 100
    plain, robust = (ClassStats.from_features(h, y, 6, robust=held) for held in (False, True))
    assert plain.spread2[y[7]] > 50 * clean.spread2[y[7]]
    assert robust.spread2.mean() < 1.8 * clean.spread2.mean()
    gammas = [
        probe.losses.make("mr2", num_classes=6, stats=stats, cap=3.0, shrink=2.0).gamma
        for stats in (robust, clean)
    ]
    assert (gammas[0] / gammas[1] - 1).abs().max() < 0.6
    if n == 40:
        assert (gammas[0] / gammas[1] - 1).abs().max() < 0.1


def test_robust_statistics_do_not_depend_on_order_or_on_pieces(monkeypatch):
    h, y = clusters()
    h[7] *= 100
    whole = ClassStats.from_features(h, y, 6, robust=True)
    monkeypatch.setattr("probe.core.class_stats.PIECE", 64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    pieces = ClassStats.from_features(h[order], y[order], 6, robust=True)
    torch.testing.assert_close(pieces.spread2, whole.spread2)
    torch.testing.assert_close(pieces.mean, whole.mean)


def test_a_batch_cannot_own_running_statistics_that_hold_outliers_back():
    z, y, h = batch(0)
    bad = h.clone()
    bad[0] *= 1e3
    held, free = make(robust=True), make()
    for loss in (held, free):
        loss(z, y, h)
    before = held.spread.clone()
    for loss in (held, free):
        loss(z, y, bad)
    assert free.spread[y[0]] > 1e3 * before[y[0]]
    assert held.spread[y[0]] <= 1.31 * before[y[0]]


# -- what a loss says and asks for ----------------------------------------------------------------------


def test_statistics_of_a_pass_are_where_the_running_ones_start():
    z, y, h = batch(0)
    _, y2, h2 = batch(1)
    stats = ClassStats.from_features(h2, y2, K)
    for average in ("norms", "moments"):
        loss = make(average=average, ema=0.9)
        assert loss.wanted_stats().p == 2
        loss.prepare(stats)
        torch.testing.assert_close(loss.spread, stats.spread2)
        loss(z, y, h)
        now = ClassStats.from_features(h, y, K)
        if average == "norms":
            size = now.count.clamp(min=2)  # classes with one sample keep what they have
            spread = torch.where(now.count > 1, now.spread2 * size / (size - 1), stats.spread2)
            torch.testing.assert_close(loss.spread, 0.9 * stats.spread2 + 0.1 * spread)
        else:
            second = 0.9 * stats.second_moment + 0.1 * now.second_moment
            torch.testing.assert_close(loss.spread + loss.mean_norm, second)
    assert make(stats=stats).wanted_stats() is None
    assert make("mr2-paper").wanted_stats() is None


def test_the_strength_acts_on_the_term_alone_and_only_where_it_is_ramped():
    z, y, h = batch(0)
    for name, params in (("mr2", {"lam": 0.5}), ("center", {"scale": "spread", "lam": 0.5})):
        values = []
        for fraction in (0.0, 0.5, 1.0):
            loss = make(name, **params)
            loss.set_strength(fraction)
            values.append(loss(z, y, h).item())
        assert values[0] == pytest.approx(make(name, **{**params, "lam": 0.0})(z, y, h).item())
        assert values[1] == pytest.approx((values[0] + values[2]) / 2)
    paper = make("mr2-paper")
    paper.set_strength(0.0)
    assert paper(z, y, h).item() == make("mr2-paper")(z, y, h).item()


@pytest.mark.parametrize("name", ["mr2-paper", "elm", "center", "range", "dro-lt"])
def test_distances_out_of_a_formulas_range_are_said_once_with_the_number(name, caplog):
    z, y, h = batch(0)
    counts = [4, 4, 4, 4]
    small, large = (make(name, class_counts=counts) for _ in range(2))
    small(z, y, 0.1 * h)
    large(z, y, 30 * h)
    large(z, y, 30 * h)
    said = [r.message for r in caplog.records if name in r.message]
    if name != "elm":  # its margin of 4 images stands beside them
        assert not small.remarks(FitContext(exact=False, l2_chosen=False))
    (remark,) = [
        r for r in large.remarks(FitContext(exact=False, l2_chosen=False)) if "out of its range" in r
    ]
    assert said == [remark]
    assert "mr2 takes" in remark or "scale=spread" in remark
    assert float(remark.split(" was ")[1].split()[0]) > 100


@pytest.mark.parametrize("name", ["mr2", "center", "elm", "range", "dro-lt"])
def test_a_scale_free_term_says_nothing_about_range(name, caplog):
    z, y, h = batch(0)
    loss = make(name, class_counts=[4, 4, 4, 4], scale="spread")
    loss(z, y, 1000 * h)
    assert not caplog.records
    assert not [r for r in loss.remarks(FitContext(exact=False, l2_chosen=False)) if "range" in r]


@pytest.mark.parametrize("name", ["center", "range", "dro-lt", "elm"])
def test_other_terms_in_units_of_the_spread_are_scale_free_too(name):
    z, y, h = batch(0)
    one, other = (
        make(name, class_counts=[9, 4, 4, 4], scale="spread", lam=1.0)(z, y, f * h) for f in (1.0, 1000.0)
    )
    torch.testing.assert_close(one, other)


def test_center_in_units_of_the_spread_starts_at_the_class_means():
    """lam * mean |h - c_y|^2 / (2 sbar) is lam / 2 at the means, where all classes have one size."""
    h, y = clusters()
    stats = ClassStats.from_features(h, y, 6)
    z = torch.zeros(len(y), 6, dtype=torch.float64)
    loss = probe.losses.make("center", num_classes=6, scale="spread", lam=0.5)
    loss.prepare(stats)
    assert loss.wanted_stats() is not None
    size = len(y) / 6
    unit = 0.9 + 0.1 * size / (size - 1)  # the batch moves sbar by its unbiased spread first
    assert loss(z, y, h).item() == pytest.approx(math.log(6) + 0.5 / 2 / unit)
    assert probe.losses.make("center", num_classes=6).wanted_stats() is None


def first_term(encoder, size):
    """The representation term of the first step on random pixels, three classes of four."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        h = encoder.eval()(torch.randn(12, 3, size, size, generator=g))
    y, z = torch.arange(3).repeat(4), torch.zeros(12, 3)
    with_it, without = (
        probe.losses.make("mr2", num_classes=3, lam=lam)(z, y, h).item() for lam in (1.0, 0.0)
    )
    return with_it - without


@pytest.mark.parametrize(
    ("name", "size"),
    [("cifar-resnet20", 32), ("cifar-preact20", 32), ("effnet-lite0", 64)],
)
def test_the_first_steps_term_is_of_order_one(name, size):
    assert 0.2 < first_term(backbones.load(name, image_size=size), size) < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", backbones.catalogue.names())
def test_the_first_steps_term_is_of_order_one_on_every_registered_network(name):
    """At full size. Weights that only a hub has are random here: the architecture sets the scale."""
    ensure_torchvision()
    import open_clip
    import timm

    spec = backbones.catalogue.find(name)
    if spec.family == "clip":
        encoder = open_clip.create_model(spec.architecture.split("/")[0]).visual
    elif spec.family in ("timm", "moco"):
        options = {"img_size": spec.size} if "dinov2" in spec.architecture else {}
        encoder = timm.create_model(spec.architecture.split(".")[0], num_classes=0, **options)
    else:
        encoder = backbones.load(name)
    assert 0.2 < first_term(encoder, spec.size) < 2
