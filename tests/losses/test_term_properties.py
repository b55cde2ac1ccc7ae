"""What the terms next to cross-entropy promise: representation, outputs, classes as groups."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import probe.losses
from probe.core.class_stats import Groups
from probe.losses.class_dro import best_response, onto_simplex
from probe.losses.output_terms import confusion, spectral_norm

K = 4
seeds = st.integers(0, 10_000)
light = settings(max_examples=12, deadline=None)
N = [50, 3, 20, 7]


def batch(seed, n=14, d=6, k=K):
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.cat([torch.arange(k), torch.randint(0, k, (n - k,), generator=g)])
    return z, y, torch.randn(n, d, generator=g, dtype=torch.float64)


def make(name, **kw):
    return probe.losses.make(name, num_classes=K, class_counts=N, **kw)


def term(loss, z, y, h):
    return loss(z, y, h) - F.cross_entropy(z, y)


@pytest.mark.parametrize(
    "name", [n for n in probe.losses.names() if "features" in probe.losses.info(n).needs and n != "lgm"]
)
def test_the_order_of_the_batch_does_not_matter(name):
    z, y, h = batch(0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(make(name)(z, y, h), make(name)(z[order], y[order], h[order]))


def test_center_gradient_and_the_papers_rule_for_centres():
    z, y, h = batch(0)
    h.requires_grad_()
    y = y % 3  # class 3 is absent
    loss = make("center", lam=1.0, alpha=0.5)
    start = torch.randn(K, 6, dtype=torch.float64)
    loss.centres = start.clone()
    (grad,) = torch.autograd.grad(loss(z, y, h), h)
    torch.testing.assert_close(grad, (h - start[y]).detach() / len(y))
    for k in range(3):
        members = h.detach()[y == k]
        moved = start[k] - 0.5 * (start[k] - members).sum(0) / (1 + len(members))
        torch.testing.assert_close(loss.centres[k], moved)
    assert torch.equal(loss.centres[3], start[3])


@given(seeds)
@light
def test_center_and_gaussian_terms_move_with_features_and_centres(seed):
    z, y, h = batch(seed)
    shift = torch.randn(6, dtype=torch.float64)
    start = torch.randn(K, 6, dtype=torch.float64)
    for name in ("center", "lgm"):
        losses = [make(name).double() for _ in range(2)]
        for loss, centres in zip(losses, (start, start + shift), strict=True):
            if name == "lgm":
                loss(z, y, h)
                loss.centres.data.copy_(centres)
            else:
                loss.centres = centres.clone()
        torch.testing.assert_close(losses[0](z, y, h), losses[1](z, y, h + shift))


def test_spread_out_of_orthonormal_and_of_equal_features():
    z = torch.zeros(K, K, dtype=torch.float64)
    y = torch.arange(K)
    assert term(make("spread-out"), z, y, torch.eye(K, 6, dtype=torch.float64)).item() == pytest.approx(0)
    equal = torch.ones(K, 6, dtype=torch.float64)
    assert term(make("spread-out"), z, y, equal).item() == pytest.approx(1 + 1 - 1 / 6)


@given(seeds)
@light
def test_range_uses_a_harmonic_mean_and_forgets_centres_beyond_the_margin(seed):
    z, y, h = batch(seed)
    harmonic = term(make("range", alpha=1.0, beta=0.0), z, y, h)
    arithmetic = 0.0
    for k in range(K):
        distances = torch.pdist(h[y == k]).square().sort(descending=True).values[:2]
        arithmetic += distances.mean().item() if len(distances) else 0.0
    assert harmonic <= arithmetic + 1e-9
    far = h + 100 * F.one_hot(y, 6)
    assert term(make("range", alpha=0.0, beta=1.0, margin=5.0), z, y, far).item() == pytest.approx(
        0, abs=1e-12
    )


def test_range_survives_coincident_samples():
    z, y, _ = batch(0)
    h = torch.ones(len(y), 6, dtype=torch.float64, requires_grad=True)
    value = make("range")(z, y, h)
    value.backward()
    assert value.isfinite()
    assert h.grad.isfinite().all()


def test_dro_lt_of_collapsed_features_is_the_log_of_the_batch_size():
    z, y, _ = batch(0)
    same = torch.ones(len(y), 6, dtype=torch.float64)
    assert term(make("dro-lt", margin=0.0), z, y, same).item() == pytest.approx(math.log(len(y)))


@given(seeds)
@light
def test_dro_lt_is_not_negative_and_grows_with_its_margin(seed):
    z, y, h = batch(seed)
    small, large = (term(make("dro-lt", margin=m), z, y, h) for m in (0.1, 0.5))
    assert 0 <= small <= large


def test_supcon_of_collapsed_features_and_its_temperature_factor():
    z, y, h = batch(0)
    collapsed = torch.ones_like(h)
    loss = make("supcon", temperature=0.07, base_temperature=0.07)
    y_pairs = torch.arange(K).repeat(3)
    assert loss(z[:12], y_pairs, collapsed[:12]).item() == pytest.approx(math.log(11))
    torch.testing.assert_close(
        make("supcon", temperature=0.1, base_temperature=0.2)(z, y, h) * 4,
        make("supcon", temperature=0.1, base_temperature=0.05)(z, y, h),
    )


def test_an_anchor_without_a_positive_counts_as_zero_among_all_of_them():
    z, _y, h = batch(0)
    paired, alone = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 0, 1, 2, 3])
    loss = make("supcon", temperature=1.0, base_temperature=1.0)
    unit = F.normalize(h[:6], dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-torch.inf)
    partner = torch.tensor([2, 3, 0, 1])
    terms = similarity.logsumexp(1)[:4] - similarity[torch.arange(4), partner]
    torch.testing.assert_close(loss(z[:6], alone, h[:6]), terms.sum() / 6)
    assert loss(z[:4], torch.arange(4), h[:4]).item() == 0
    assert loss(z[:4], paired, h[:4]) > 0


@given(seeds)
@light
def test_the_gaussian_head_without_margins_is_a_softmax_of_its_centres(seed):
    z, y, h = batch(seed)
    loss = make("lgm", alpha=0.0, lam=0.0, dim=6).double()
    loss.centres.data.normal_()
    w = loss.centres.detach()
    plain = F.cross_entropy(h @ w.T - w.square().sum(1) / 2, y)
    torch.testing.assert_close(loss(z, y, h), plain)
    torch.testing.assert_close(F.cross_entropy(loss.scores(h), y), plain)
    margins = [make("lgm", alpha=a, lam=0.0, dim=6).double() for a in (0.1, 0.3)]
    for m in margins:
        m.centres.data.copy_(w)
    assert plain <= margins[0](z, y, h) <= margins[1](z, y, h)


@given(seeds)
@light
def test_cmic_without_weights_is_cross_entropy_and_concentrates_at_the_mean_output(seed):
    z, y, _ = batch(seed)
    torch.testing.assert_close(make("cmic", lam=0.0, beta=0.0)(z, y), F.cross_entropy(z, y))
    # mean KL(p||Q) = mean KL(p||mean p) + KL(mean p||Q), so the class mean is the best Q.
    loss = make("cmic", lam=1.0, beta=0.0, ema=0.0)
    at_mean = loss(z, y)
    p = z.softmax(1)
    mean = torch.stack([p[y == k].mean(0) for k in range(K)])
    q = torch.rand(K, K, dtype=torch.float64).softmax(1)
    loss.eval()
    loss.centroids = q
    gap = (mean * (mean / q).log()).sum(1)
    share = torch.bincount(y, minlength=K) / len(y)
    torch.testing.assert_close(loss(z, y) - at_mean, (share * gap).sum())


def test_cmic_has_nothing_to_concentrate_when_outputs_of_a_class_agree():
    y = torch.arange(K).repeat(3)
    z = torch.randn(K, K, dtype=torch.float64)[y]
    torch.testing.assert_close(make("cmic", lam=1.0, beta=0.0)(z, y), F.cross_entropy(z, y))


@given(seeds)
@light
def test_the_spectral_norm_of_the_confusion_matrix(seed):
    z, y, _ = batch(seed)
    matrix = confusion(z.softmax(1), Groups.of(y))
    norm = spectral_norm(matrix)
    torch.testing.assert_close(norm, torch.linalg.matrix_norm(matrix, 2))
    torch.testing.assert_close(norm, spectral_norm(matrix.T))
    assert norm >= matrix.norm(dim=0).max() - 1e-12
    order = torch.randperm(K)
    torch.testing.assert_close(make("csr")(z, y), make("csr")(z[:, order], order.argsort()[y]))


def test_perfect_predictions_have_no_confusion():
    y = torch.arange(K).repeat(2)
    z = (1e4 * F.one_hot(y, K)).double().requires_grad_()
    value = make("csr")(z, y)
    value.backward()
    assert value.item() == 0
    assert z.grad.isfinite().all()


@given(seeds)
@light
def test_dro_weights_stay_on_the_simplex_and_follow_the_worse_classes(seed):
    z, y, _ = batch(seed)
    loss = make("dro", eta=0.5)
    for _ in range(5):
        value = loss(z, y)
    assert loss.weights.sum().item() == pytest.approx(1)
    losses, present = loss.class_losses(z, y)
    assert present.all()
    assert torch.equal(loss.weights.argsort(), losses.argsort())
    assert value >= losses.mean() - 1e-12
    torch.testing.assert_close(make("dro", eta=0.0)(z, y), losses.mean())
    worst = make("dro", eta=1e6)
    torch.testing.assert_close(worst(z, y), losses.max())


def test_dro_ignores_a_constant_added_to_all_losses_and_rests_absent_classes():
    a, b = make("dro", eta=0.3), make("dro", eta=0.3)
    losses, present = torch.rand(K), torch.ones(K, dtype=torch.bool)
    a.move(losses, present)
    b.move(losses + 5, present)
    torch.testing.assert_close(a.weights, b.weights)
    some = torch.tensor([True, True, False, True])
    before = a.weights.clone()
    a.move(losses, some)
    assert a.weights[2] == before[2]
    assert a.weights.sum().item() == pytest.approx(1)


@given(seeds, st.floats(0.0, 2.0))
@light
def test_the_chi_square_best_response(seed, rho):
    g = torch.Generator().manual_seed(seed)
    losses = torch.rand(K, generator=g, dtype=torch.float64)
    q = best_response(losses, rho)
    assert q.sum().item() == pytest.approx(1)
    robust = losses.mean() + math.sqrt(2 * rho) * losses.std(correction=0)
    torch.testing.assert_close((q * losses).sum(), robust)
    assert (q[losses.argsort()].diff() >= -1e-12).all()
    assert rho > 1 / (2 * (K - 1)) or (q >= -1e-12).all()
    p = onto_simplex(q)
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1)
    if (q >= 0).all():
        torch.testing.assert_close(p, q)


def test_fairdro_without_a_ball_is_the_mean_class_loss_and_equal_losses_give_uniform_weights():
    z, y, _ = batch(0)
    loss = make("fairdro", rho=0.0)
    torch.testing.assert_close(loss(z, y), loss.class_losses(z, y)[0].mean())
    torch.testing.assert_close(best_response(torch.ones(K), 0.5), torch.full((K,), 1 / K))


def test_losses_that_differ_by_rounding_alone_move_no_weight():
    """A head that starts at zero gives every class log K, up to the last digits of a sum."""
    for dtype in (torch.float32, torch.float64):
        losses = torch.full((K,), math.log(K), dtype=dtype)
        noise = 10 * torch.finfo(dtype).eps * torch.randn(K, dtype=dtype)
        torch.testing.assert_close(
            best_response(losses + noise, 0.5), torch.full((K,), 1 / K, dtype=dtype), rtol=0, atol=0
        )
        assert best_response(losses + 1e4 * noise, 0.5).std() > 0.1


def test_fairdro_moves_once_an_epoch_by_a_falling_step():
    z, y, _ = batch(0)
    loss = make("fairdro", every="epoch", rho=0.1)
    uniform = torch.full((K,), 1 / K, dtype=torch.float64)
    loss.start_epoch(0, 4)
    loss(z, y)
    torch.testing.assert_close(loss.weights, uniform)
    best = best_response(loss.class_losses(z, y)[0], 0.1)
    loss.start_epoch(2, 4)
    torch.testing.assert_close(loss.weights, uniform + 0.5 * (best - uniform))
    frozen = loss.weights.clone()
    loss.start_epoch(4, 4)
    assert torch.equal(loss.weights, frozen)
