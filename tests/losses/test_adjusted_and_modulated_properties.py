"""What cross-entropy's relatives promise, on free inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import probe.losses
from probe.errors import UserError

K = 5
seeds = st.integers(0, 10_000)
light = settings(max_examples=12, deadline=None)


def batch(seed, n=9, k=K, spread=3.0):
    g = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(n, k, generator=g, dtype=torch.float64)
    return z, torch.randint(0, k, (n,), generator=g)


def counts(seed, k=K):
    return torch.randint(1, 500, (k,), generator=torch.Generator().manual_seed(seed)).tolist()


def make(name, k=K, **kw):
    return probe.losses.make(name, num_classes=k, **kw)


@given(seeds)
@light
def test_a_constant_added_to_a_row_changes_nothing_and_gradients_sum_to_zero(seed):
    z, y = batch(seed)
    z.requires_grad_()
    loss = make("erm")(z, y)
    torch.testing.assert_close(loss, make("erm")(z + torch.randn(len(z), 1, dtype=torch.float64), y))
    (grad,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(grad.sum(1), torch.zeros(len(z), dtype=torch.float64))


@given(seeds)
@light
def test_neutral_settings_are_cross_entropy(seed):
    z, y = batch(seed)
    n = counts(seed)
    plain = F.cross_entropy(z, y)
    neutral = [
        make("focal", gamma=0.0),
        make("label-smoothing", smoothing=0.0),
        make("gce", q=1e-6),
        make("dual-focal", gamma=0.0),
        make("cb", class_counts=n, beta=0.0),
        make("cb-focal", class_counts=n, beta=0.0, gamma=0.0),
        make("la", class_counts=n, tau=0.0),
        make("ef", frequency=[0.4] * K),
        make("eql", class_counts=n, gamma=0.0, threshold=1.0),
        make("eql", class_counts=n, threshold=0.0),
        make("ldam-linear", class_counts=n, max_margin=0.0),
    ]
    for loss in neutral:
        torch.testing.assert_close(loss(z, y), plain, rtol=1e-4 if loss.name == "gce" else 1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["la", "bs", "cb"])
def test_balanced_counts_give_exactly_cross_entropy_and_it_is_said(name):
    z, y = batch(0)
    loss = make(name, class_counts=[30] * K)
    torch.testing.assert_close(loss(z, y), F.cross_entropy(z, y), rtol=1e-12, atol=0)
    assert loss.degenerate
    assert "cannot differ from cross-entropy" in loss.remark
    assert not make(name, class_counts=[30, 3, 3, 3, 3]).degenerate
    assert make(name, class_counts=[30, 3, 3, 3, 3]).remark is None


def test_erm_is_not_called_degenerate_and_ldam_is_not_cross_entropy_on_balanced_data():
    z, y = batch(0)
    assert not make("erm").degenerate
    ldam = make("ldam-linear", class_counts=[30] * K, max_margin=0.5)
    assert not ldam.degenerate
    assert ldam(z, y) > F.cross_entropy(z, y)


@given(seeds, st.floats(0.1, 3.0))
@light
def test_logit_adjustment_equals_its_pairwise_form(seed, tau):
    z, y = batch(seed)
    n = torch.tensor(counts(seed), dtype=torch.float64)
    delta = tau * (n.log().unsqueeze(0) - n[y].log().unsqueeze(1))
    terms = delta + z - z.gather(1, y.unsqueeze(1))  # the true class contributes exp(0) = 1
    torch.testing.assert_close(make("la", class_counts=n, tau=tau)(z, y), torch.logsumexp(terms, 1).mean())


@given(seeds)
@light
def test_balanced_softmax_takes_counts_or_frequencies(seed):
    z, y = batch(seed)
    n = torch.tensor(counts(seed), dtype=torch.float64)
    torch.testing.assert_close(
        make("bs", class_counts=n)(z, y), make("bs", class_counts=n / n.sum())(z, y), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(make("bs", class_counts=n)(z, y), make("la", class_counts=n)(z, y))


@given(seeds)
@light
def test_class_balanced_weights_sum_to_k_and_approach_inverse_counts(seed):
    n = torch.tensor(counts(seed), dtype=torch.float64)
    weight = make("cb", class_counts=n).adjustment().weight
    assert weight.sum().item() == pytest.approx(K)
    near = make("cb", class_counts=n, beta=0.9999999).adjustment().weight
    torch.testing.assert_close(near, (1 / n) * K / (1 / n).sum(), rtol=1e-3, atol=0)


@given(seeds, st.floats(0.0, 5.0))
@light
def test_focal_losses_never_exceed_cross_entropy(seed, gamma):
    z, y = batch(seed)
    assert make("focal", gamma=gamma)(z, y) <= F.cross_entropy(z, y) + 1e-12
    n = counts(seed)
    torch.testing.assert_close(
        make("cb-focal", class_counts=n, gamma=0.0)(z, y),
        (make("cb", class_counts=n).adjustment().weight[y] * F.cross_entropy(z, y, reduction="none")).mean(),
    )


@given(seeds)
@light
def test_generalised_cross_entropy_with_q_1_is_one_minus_p_and_its_gradient_is_p_to_the_q_times_ce(seed):
    z, y = batch(seed)
    p = z.softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(make("gce", q=1.0)(z, y), (1 - p).mean())
    z.requires_grad_()
    (grad,) = torch.autograd.grad(make("gce", q=0.7)(z, y), z)
    (plain,) = torch.autograd.grad(F.cross_entropy(z, y), z)
    torch.testing.assert_close(grad, p.pow(0.7).unsqueeze(1) * plain)


@given(seeds)
@light
def test_equalization_ignores_rare_negatives_and_never_exceeds_cross_entropy(seed):
    z, y = batch(seed)
    n = [1000, 1000, 1000, 2, 1]
    assert make("eql", class_counts=n)(z, y) <= F.cross_entropy(z, y) + 1e-12
    z.requires_grad_()
    (grad,) = torch.autograd.grad(make("eql", class_counts=n, gamma=1.0)(z, y), z)
    negative = torch.ones_like(grad).scatter(1, y.unsqueeze(1), 0).bool()
    assert (grad[:, 3:][negative[:, 3:]] == 0).all()


def test_equalization_with_certain_drops_of_every_class_is_zero():
    z, y = batch(0)
    assert make("eql", class_counts=[5] * K, gamma=1.0, threshold=0.9)(z, y).item() == 0


@given(seeds)
@light
def test_ldam_margins_depend_on_ratios_only_and_grow_the_loss(seed):
    z, y = batch(seed)
    n = torch.tensor(counts(seed), dtype=torch.float64)
    small = make("ldam-linear", class_counts=n, max_margin=0.3)(z, y)
    torch.testing.assert_close(small, make("ldam-linear", class_counts=7 * n, max_margin=0.3)(z, y))
    assert make("ldam-linear", class_counts=n, max_margin=0.6)(z, y) >= small


@pytest.mark.parametrize("name", ["erm", "la", "cb", "focal", "gce", "cb-focal", "bs"])
def test_probability_targets_are_the_expected_loss_over_the_label(name):
    z, y = batch(3)
    other = batch(4)[1]
    kw = {"class_counts": counts(3)} if probe.losses.info(name).needs else {}
    loss = make(name, **kw)
    one_hot = F.one_hot(y, K).double()
    torch.testing.assert_close(loss(z, one_hot), loss(z, y))
    mixed = 0.3 * one_hot + 0.7 * F.one_hot(other, K).double()
    if name == "cb":
        w = loss.adjustment().weight
        ce = -z.log_softmax(1)
        torch.testing.assert_close(loss(z, mixed), (mixed * w * ce).sum() / (mixed * w).sum())
    else:
        torch.testing.assert_close(loss(z, mixed), 0.3 * loss(z, y) + 0.7 * loss(z, other))


@pytest.mark.parametrize("name", [n for n in probe.losses.names() if not probe.losses.info(n).soft_targets])
def test_losses_that_need_labels_say_so_in_one_line(name):
    loss = make(name, class_counts=counts(0))
    with pytest.raises(UserError, match="takes labels, not probabilities") as error:
        loss(torch.zeros(4, K), torch.full((4, K), 1 / K), torch.zeros(4, 3))
    assert "\n" not in str(error.value)
