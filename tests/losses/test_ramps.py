"""Losses that grow out of cross-entropy in a training, and what they are outside of one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import probe.losses
from probe import methods
from probe.core.class_stats import ClassStats

K, COUNTS = 4, [7, 5, 4, 4]
RAMPED = [name for name in probe.losses.names() if "ramp" in probe.losses.info(name).defaults]


def batch(seed=0, n=20, d=6):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    z = torch.randn(n, K, generator=g, dtype=torch.float64)
    return z, y, torch.randn(n, d, generator=g, dtype=torch.float64) + y.unsqueeze(1)


def make(name, **params):
    return probe.losses.make(name, num_classes=K, class_counts=COUNTS, **params)


def test_the_losses_that_did_not_train_have_a_ramp():
    assert {"gce", "dual-focal", "cmic", "csr", "range", "dro-lt", "lgm"} <= set(RAMPED)


@pytest.mark.parametrize("name", [name for name in RAMPED if name != "lgm"])
def test_at_the_start_of_a_ramp_a_loss_is_cross_entropy_and_at_its_end_itself(name):
    z, y, h = batch()
    loss = make(name, ramp=0.5)
    loss.set_strength(0.0)
    torch.testing.assert_close(loss(z, y, h), F.cross_entropy(z, y), rtol=1e-5, atol=1e-5)
    whole = make(name, ramp=0.5)
    whole.set_strength(1.0)
    assert whole(z, y, h).item() == make(name)(z, y, h).item()


@pytest.mark.parametrize("name", RAMPED)
def test_without_a_ramp_no_training_loop_weakens_the_published_formula(name):
    z, y, h = batch()
    loss = make(name)
    loss.set_strength(0.1)
    assert loss(z, y, h).item() == make(name)(z, y, h).item()
    assert loss.ramp == 0


def test_the_gaussians_of_lgm_start_without_margin_and_likelihood():
    _, y, h = batch()
    stats = ClassStats.from_features(h, y, K)
    ramped, bare = make("lgm", ramp=0.5, stats=stats), make("lgm", alpha=0.0, lam=0.0, stats=stats)
    ramped.set_strength(0.0)
    torch.testing.assert_close(ramped(h @ h.T[:, :K], y, h), bare(h @ h.T[:, :K], y, h))


def test_lgm_asks_a_training_for_class_means_and_puts_its_centres_there():
    _, y, h = batch()
    stats = ClassStats.from_features(h, y, K)
    loss = make("lgm", dim=6)
    parameter = loss.centres
    assert loss.wanted_stats().scaled
    loss.prepare(stats)
    assert loss.centres is parameter  # the one that the optimiser has
    torch.testing.assert_close(loss.centres.double(), stats.mean, rtol=1e-6, atol=1e-6)
    assert make("lgm", stats=stats).wanted_stats() is None


def test_a_class_that_lgm_has_not_seen_starts_among_the_others():
    _, y, h = batch()
    stats = ClassStats.from_features(h[y < 3], y[y < 3], K)
    loss = make("lgm", dim=6)
    loss.prepare(stats)
    torch.testing.assert_close(loss.centres[3].double(), stats.mean[:3].mean(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["range", "dro-lt"])
def test_by_the_total_variance_neither_size_nor_shrinking_of_features_matters(name):
    z, y, h = batch()
    h.requires_grad_()
    value = make(name, scale="total")(z, y, h)
    torch.testing.assert_close(make(name, scale="total")(z, y, 30 * h.detach()), value.detach())
    if name == "range":  # the prototypes of dro-lt are constants, which do not shrink along
        (slope,) = torch.autograd.grad(value, h)
        along = ((h - h.mean(0)) * slope).sum().item()
        assert abs(along) < 1e-9 * (h.norm() * slope.norm()).item()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("arcface", {"guard": (False, True)}),
        ("sphereface", {"blend": (0.0, 5.0)}),
        ("gce", {"ramp": (0.0, 0.5)}),
        ("cmic", {"cap": (None, 10.0)}),
        ("range", {"scale": ("none", "total")}),
    ],
)
def test_what_is_on_in_runs_is_off_in_your_own_loop_and_can_be_given(name, values):
    options = {"num_classes": K, "class_counts": COUNTS}
    for key, (published, in_runs) in values.items():
        spec = probe.losses.info(name)
        assert spec.resolve({})[key] == published
        assert spec.resolve({}, whole_set=True)[key] == in_runs
        assert spec.resolve({key: published}, whole_set=True)[key] == published
        assert spec.version > 1  # stored runs have the other meaning
    methods.make(name, {}, **options, whole_set=True)


def test_sphereface_is_the_plain_cosine_at_the_start_of_its_warm_up():
    c = torch.linspace(-1, 1, 9, dtype=torch.float64)
    loss = make("sphereface", blend=5.0)
    loss.set_strength(0.0)
    torch.testing.assert_close(loss.psi(c, c.long(), c), c)
    loss.set_strength(1.0)
    assert (loss.psi(c, c.long(), c).diff() > 0).all()


def test_from_scratch_mr2_measures_distances_by_the_total_variance():
    """In units of its spread, features that carry no class yet are pulled into one point."""
    options = {"num_classes": K, "class_counts": COUNTS, "whole_set": True}
    assert methods.make("mr2", {}, **options).loss.scale == "spread"
    assert methods.make("mr2", {}, **options, scratch=True).loss.scale == "total"
    assert methods.make("mr2", {"scale": "spread"}, **options, scratch=True).loss.scale == "spread"
