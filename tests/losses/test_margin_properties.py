"""What MR² and ELM promise, on free inputs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import probe.losses
from probe.core.class_stats import ClassStats
from probe.errors import UserError

K = 4
seeds = st.integers(0, 10_000)
light = settings(max_examples=12, deadline=None)


def batch(seed, n=16, d=5, k=K):
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d, generator=g, dtype=torch.float64) * (1 + torch.rand(n, 1, generator=g))
    y = torch.cat([torch.arange(k), torch.randint(0, k, (n - k,), generator=g)])
    return torch.randn(n, k, generator=g, dtype=torch.float64), y, h


def make(name="mr2", **kw):
    return probe.losses.make(name, num_classes=K, **kw)


@given(seeds, st.floats(0.2, 5.0))
@light
def test_the_mean_margin_is_c_and_the_scale_of_features_is_free(seed, c):
    z, y, h = batch(seed)
    loss, scaled = make(c=c), make(c=c)
    loss(z, y, h)
    scaled(z, y, 3.7 * h)
    assert loss.gamma.mean().item() == pytest.approx(c)
    torch.testing.assert_close(loss.gamma, scaled.gamma)


@given(seeds)
@light
def test_unit_features_make_the_margins_equal_and_the_loss_says_so(seed):
    z, y, h = batch(seed)
    loss = make(c=1.5, lam=0.0, statistic="moment")
    value = loss(z, y, F.normalize(h, dim=1))
    torch.testing.assert_close(loss.gamma, torch.full((K,), 1.5, dtype=torch.float64))
    torch.testing.assert_close(value, F.cross_entropy(z / 1.5, y))
    assert loss.degenerate
    assert "margins are equal" in loss.remark
    raw = make()
    raw(z, y, h)
    assert not raw.degenerate
    assert raw.remark is None


def test_unit_features_with_another_norm_or_the_spread_do_not_degenerate():
    z, y, h = batch(0)
    for settings_ in ({"p": 5.0, "statistic": "moment"}, {"statistic": "spread"}):
        loss = make(**settings_)
        loss(z, y, F.normalize(h, dim=1))
        assert not loss.degenerate


@given(seeds)
@light
def test_the_logit_gradient_is_that_of_a_class_temperature(seed):
    z, y, h = batch(seed)
    z.requires_grad_()
    loss = make()
    (grad,) = torch.autograd.grad(loss(z, y, h), z)
    gamma = loss.gamma[y].unsqueeze(1)
    want = ((z / gamma).softmax(1) - F.one_hot(y, K)) / (len(y) * gamma)
    torch.testing.assert_close(grad, want)


@given(seeds, st.integers(2, 6))
@light
def test_the_representation_term_of_identical_features(seed, m):
    """m equal samples in each class: no spread, so the paper's term is ln(1 + (m - 1) e^0), and the
    scale-free one ln(1 + e^-1), whatever m."""
    z, _, h = batch(seed, n=K)
    y = torch.arange(K).repeat(m)
    args = z.repeat(m, 1), y, h.repeat(m, 1)
    for name, term in (("mr2-paper", math.log(m)), ("mr2", math.log1p(math.exp(-1)))):
        with_term, without = make(name, lam=1.0), make(name, lam=0.0)
        assert (with_term(*args) - without(*args)).item() == pytest.approx(term)
        assert with_term.spread.abs().max().item() == pytest.approx(0, abs=1e-12)


@given(seeds)
@light
def test_the_representation_term_bounds_the_spread_of_each_class(seed):
    """Class mean of the term >= 2m/(m-1) |s_k|^2 - 2 sbar + ln(m-1), by concavity of the logarithm."""
    z, y, h = batch(seed, n=24)
    for k in range(K):
        members = h[y == k]
        m = len(members)
        if m < 2:
            continue
        stats = ClassStats.from_features(h, y, K)
        loss = make("mr2-paper", lam=1.0, stats=stats)
        only = torch.full((m,), k)
        term = loss(z[:m], only, members) - make("mr2-paper", lam=0.0, stats=stats)(z[:m], only, members)
        bound = 2 * m / (m - 1) * stats.spread2[k] - 2 * stats.spread2.mean() + math.log(m - 1)
        assert term >= bound - 1e-9


def test_statistics_first_copy_then_average_and_rest_in_evaluation():
    z, y, h = batch(0)
    z2, y2, h2 = batch(1)
    loss = make(ema=0.9)
    loss(z, y, h)
    first = ClassStats.from_features(h, y, K)
    torch.testing.assert_close(loss.spread, first.spread2)
    torch.testing.assert_close(loss.mean_norm, first.mean_norm2)
    loss(z2, y2, h2)
    second = ClassStats.from_features(h2, y2, K)
    torch.testing.assert_close(loss.spread, 0.9 * first.spread2 + 0.1 * second.spread2)
    loss.eval()
    before = loss.spread.clone()
    loss(z, y, h)
    assert torch.equal(loss.spread, before)


def test_unseen_classes_have_margin_one_and_leave_the_others_alone():
    z, y, h = batch(0)
    wide = probe.losses.make("mr2", num_classes=K + 3)
    wide(F.pad(z, (0, 3)), y, h)
    narrow = make()
    narrow(z, y, h)
    torch.testing.assert_close(wide.gamma[:K], narrow.gamma)
    assert (wide.gamma[K:] == 1).all()
    torch.testing.assert_close(wide.mean_spread, narrow.mean_spread)


def test_exact_statistics_are_constants_and_make_features_optional():
    z, y, h = batch(0)
    stats = ClassStats.from_features(h, y, K)
    loss = make(stats=stats)
    value = loss(z, y)
    loss(*batch(1))
    torch.testing.assert_close(loss.spread, stats.spread2)
    torch.testing.assert_close(value, loss.adjustment().cross_entropy(z, y))
    with pytest.raises(UserError, match="needs the features"):
        make()(z, y)


def test_rows_need_statistics_and_the_right_norm():
    with pytest.raises(UserError, match="no class statistics yet"):
        make().adjustment()
    _, y, h = batch(0)
    with pytest.raises(UserError, match=r"p = 2.*p = 5"):
        make("mr2-released", stats=ClassStats.from_features(h, y, K))
    exact = ClassStats.from_features(h, y, K, p=5)
    loss = make("mr2-released", stats=exact)
    torch.testing.assert_close(1 / loss.adjustment().scale, loss.gamma)
    assert loss.gamma.mean().item() == pytest.approx(1)


def test_moments_remove_the_small_batch_bias_of_norms():
    """Two samples of a class a batch: averaged norms see half the spread, averaged moments almost all."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(K).repeat(2)
    kinds = {kind: make(average=kind, ema=0.98, lam=0.0) for kind in ("norms", "moments")}
    for _ in range(300):
        h = 3 + torch.randn(2 * K, 20, generator=g, dtype=torch.float64)
        for loss in kinds.values():
            loss(torch.zeros(2 * K, K, dtype=torch.float64), y, h)
    true = 20.0
    assert kinds["norms"].mean_spread.item() == pytest.approx(true / 2, rel=0.1)
    assert kinds["moments"].mean_spread.item() == pytest.approx(true, rel=0.05)


def test_history_keeps_the_whole_course_in_bounded_memory():
    z, y, h = batch(0)
    loss = make()
    for _ in range(300):
        loss(z, y, h)
    steps = loss.history.as_lists()["step"]
    assert 32 <= len(steps) <= 64
    assert steps[0] == 0
    assert steps[-1] >= 290
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1
    assert len(loss.history.as_lists()["value"][0]) == K


@given(seeds)
@light
def test_elm_is_logit_adjustment_plus_a_pull_that_ignores_where_and_how_features_lie(seed):
    z, y, h = batch(seed)
    n = [50, 3, 20, 7]
    elm, la = make("elm", class_counts=n, alpha="sqrt-count"), make("la", class_counts=n)
    torch.testing.assert_close(make("elm", class_counts=n, lam=0.0)(z, y, h), la(z, y))
    turn = torch.linalg.qr(torch.randn(h.shape[1], h.shape[1], dtype=torch.float64)).Q
    torch.testing.assert_close(elm(z, y, h), elm(z, y, h @ turn + 5))
    # Omega >= max(0, largest squared distance within the class - alpha), sample by sample.
    same = (y.unsqueeze(0) == y.unsqueeze(1)) & ~torch.eye(len(y), dtype=torch.bool)
    distance = torch.cdist(h, h).square().masked_fill(~same, -torch.inf)
    alpha = torch.tensor(n, dtype=torch.float64).sqrt()[y]
    bound = (distance.amax(1) - alpha).clamp(min=0).mean()
    assert make("elm", class_counts=n, alpha="sqrt-count", lam=1.0)(z, y, h) - la(z, y) >= bound - 1e-9


def test_a_single_sample_class_feels_no_pull():
    z, _, h = batch(0, n=K)
    y = torch.arange(K)
    for name, kw in (("elm", {"class_counts": [9, 2, 3, 4], "lam": 1.0}), ("mr2", {"lam": 1.0})):
        h_ = h.clone().requires_grad_()
        make(name, **kw)(z, y, h_).backward()
        assert (h_.grad == 0).all()


def test_elm_on_frozen_features_declares_the_rows_of_logit_adjustment():
    n = [50, 3, 20, 7]
    torch.testing.assert_close(
        make("elm", class_counts=n).adjustment().shift, make("la", class_counts=n).adjustment().shift
    )


@given(seeds)
@light
def test_the_pull_of_elm_bounds_the_spread_of_each_class(seed):
    """Proposition 1: the class mean of Omega is at least 2m/(m-1) |s|^2 - alpha + ln(m - 1)."""
    z, y, h = batch(seed)
    counts = torch.bincount(y, minlength=K)
    for k in range(K):
        members = y == k
        m = int(members.sum())
        if m < 2:
            continue
        elm = make("elm", class_counts=counts, lam=1.0, alpha="count", tau=0.0)
        plain = make("elm", class_counts=counts, lam=0.0, alpha="count", tau=0.0)
        one = (z[members], y[members], h[members])
        omega = elm(*one) - plain(*one)
        spread = (h[members] - h[members].mean(0)).square().sum(1).mean()
        assert omega >= 2 * m / (m - 1) * spread - counts[k] + math.log(m - 1) - 1e-9
