"""What the losses that long-tail papers compare promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import probe.losses
from probe.core.class_stats import ClassStats
from probe.errors import UserError
from probe.heads import ETF

K, COUNTS = 4, [50, 3, 20, 7]


def batch(seed=0, n=14, d=6):
    g = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(K), torch.randint(0, K, (n - K,), generator=g)])
    z = 2 * torch.randn(n, K, generator=g, dtype=torch.float64)
    return z, y, torch.randn(n, d, generator=g, dtype=torch.float64)


def make(name, **kw):
    return probe.losses.make(name, num_classes=K, class_counts=COUNTS, **kw)


@pytest.mark.parametrize(
    ("delta", "factor", "name", "params"),
    [
        ("log-ratio", 1.0, "bs", {}),
        ("log-ratio", 1.7, "la", {"tau": 1.7}),
        ("ldam", 0.5, "ldam-linear", {"max_margin": 0.5}),
        ("constant", 0.0, "erm", {}),
    ],
)
def test_known_margins_are_special_cases_of_the_general_one(delta, factor, name, params):
    z, y, _ = batch()
    z.requires_grad_()
    general, known = make("margin-softmax", delta=delta, factor=factor)(z, y), make(name, **params)(z, y)
    torch.testing.assert_close(general, known, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(general, z), torch.autograd.grad(known, z), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_given_matrix_is_the_margin_and_its_diagonal_does_not_count():
    z, y, _ = batch()
    matrix = torch.randn(K, K, dtype=torch.float64)
    loss = make("margin-softmax", delta="matrix", matrix=matrix.tolist())
    other = matrix + 9 * torch.eye(K)
    torch.testing.assert_close(loss(z, y), make("margin-softmax", delta="matrix", matrix=other)(z, y))
    with pytest.raises(UserError, match="go together"):
        make("margin-softmax", matrix=matrix.tolist())
    with pytest.raises(UserError, match="4 x 4 finite"):
        make("margin-softmax", delta="matrix", matrix=[[1.0]])


def test_effective_frequencies_as_sizes_weigh_hard_classes_more_and_equal_ones_alike():
    z, y, _ = batch()
    weights = make("ef", form="weights", frequency=[0.9, 0.3, 0.5, 0.7]).adjustment().weight
    assert weights.argsort().tolist() == [0, 3, 2, 1]
    equal = make("ef", form="weights", frequency=[0.4] * K)
    torch.testing.assert_close(equal(z, y), F.cross_entropy(z, y))
    with pytest.raises(UserError, match="needs class_counts"):
        probe.losses.make("ef", num_classes=K, frequency=[0.4] * K, form="weights")


def test_sigmoid_focal_without_its_factor_is_a_sum_of_binary_cross_entropies():
    z, y, _ = batch()
    target = F.one_hot(y, K).double()
    got = make("cb-focal-sigmoid", gamma=0.0, beta=0.0)(z, y)
    torch.testing.assert_close(got, F.binary_cross_entropy_with_logits(z, target, reduction="sum") / len(y))
    for gamma in (0.5, 2.0):
        assert make("cb-focal-sigmoid", gamma=gamma, beta=0.0)(z, y) < got
    soft = make("cb-focal-sigmoid", gamma=2.0)
    torch.testing.assert_close(soft(z, target), soft(z, y))
    mixed = 0.3 * target + 0.7 * target[torch.arange(len(y)).flip(0)]
    apart = 0.3 * soft(z, y) + 0.7 * soft(z, y.flip(0))
    torch.testing.assert_close(soft(z, mixed), apart)


def test_sigmoid_focal_with_a_prior_is_a_start_of_the_bias():
    z, y, _ = batch()
    start = math.log(0.01 / 0.99)
    moved = make("cb-focal-sigmoid")(z + start, y)
    torch.testing.assert_close(make("cb-focal-sigmoid", prior=0.01)(z, y), moved)


def test_dot_regression_is_0_on_the_simplex_and_attracts_to_it():
    head = ETF(6, K).double()
    y = torch.arange(K)
    loss = make("dot-regression")
    assert loss(head.cosines(3 * head.weight[y]), y).item() == pytest.approx(0, abs=1e-12)
    h = torch.randn(K, 6, dtype=torch.float64, requires_grad=True)
    value = loss(head.cosines(h), y)
    (grad,) = torch.autograd.grad(value, h)
    torch.testing.assert_close(value, 0.5 * (head.cosines(h).diagonal() - 1).square().mean())
    assert ((-grad * head.weight[y]).sum(1) > 0).all()


def term(name, z, y, h, **params):
    return make(name, **params)(z, y, h) - F.cross_entropy(z, y)


@pytest.mark.parametrize("name", ["triplet", "contrastive"])
def test_pair_terms_do_not_depend_on_the_features_scale_and_fall_when_classes_come_apart(name):
    z, y, h = batch()
    want = term(name, z, y, h)
    torch.testing.assert_close(term(name, z, y, 1e3 * h), want, rtol=1e-9, atol=1e-9)
    apart = h + 5 * torch.eye(6, dtype=torch.float64)[y]
    assert term(name, z, y, apart) < want
    alone = term(name, z[:3], torch.tensor([0, 1, 2]), h[:3])
    assert alone.item() == pytest.approx(0, abs=1e-12)


def test_triplets_that_keep_the_margin_cost_nothing():
    y = torch.tensor([0, 0, 1, 1])
    h = torch.eye(2, dtype=torch.float64)[y]
    assert term("triplet", torch.zeros(4, K).double(), y, h, margin=0.9).item() == pytest.approx(0)
    assert term("triplet", torch.zeros(4, K).double(), y, h, margin=1.5).item() == pytest.approx(0.5)


def test_prototypes_of_dro_lt_are_the_epoch_befores_class_means_and_a_resumed_epoch_goes_on():
    z, y, h = batch()
    loss = make("dro-lt-released")
    stats = ClassStats.from_features(5 + h, y, K)
    loss.prepare(stats)
    loss.start_epoch(0, 3)
    loss(z, y, h)
    torch.testing.assert_close(loss.prototypes, stats.mean)
    resumed = make("dro-lt-released")
    resumed.load_state_dict(loss.state_dict())
    resumed.start_epoch(0, 3)  # a loop calls it again when it resumes within the epoch
    for twin in (loss, resumed):
        twin(z, y, 2 * h)
        twin.start_epoch(1, 3)
        means = ClassStats.from_features(1.5 * h, y, K).mean
        torch.testing.assert_close(twin.prototypes, means)


def test_margins_of_dro_lt_are_trained():
    z, y, h = batch()
    loss = make("dro-lt-released").double()
    loss(z, y, h).backward()
    assert loss.epsilon.tolist() == [1.0] * K
    assert (loss.epsilon.grad >= 0).all()
    assert loss.epsilon.grad.sum() > 0


def test_fairdro_by_a_pass_follows_the_whole_training_set_and_a_resumed_epoch_moves_once():
    from probe.losses.class_dro import best_response

    z, y, _ = batch()
    for every in ("epoch", "pass"):
        loss = make("fairdro", every=every, rho=0.1)
        assert loss.asks_for_pass == (every == "pass")
        loss.start_epoch(0, 2)
        loss(z[:9], y[:9])
        loss(z[9:], y[9:])
        if every == "pass":
            loss.see_all(z, y)
        loss.start_epoch(0, 2)  # resumed
        uniform = torch.full((K,), 1 / K, dtype=torch.float64)
        torch.testing.assert_close(loss.weights, uniform)
        loss.start_epoch(1, 2)
        best = best_response(loss.class_losses(z, y)[0], 0.1)
        torch.testing.assert_close(loss.weights, uniform + 0.5 * (best - uniform))
