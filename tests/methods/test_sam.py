"""SAM takes the gradient at the worst point of a ball, and moves the point in its centre."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probe import heads
from probe.errors import UserError
from tests.support.training_world import (
    D,
    K,
    blobs,
    distance,
    feature_training,
    same_bits,
    weights,
    wobbly_encoder,
)


def test_without_a_radius_it_is_the_plain_optimiser():
    plain, flat = (
        feature_training(encoder=wobbly_encoder()),
        feature_training("sam", {"rho": 0.0}, encoder=wobbly_encoder()),
    )
    plain.run()
    flat.run()
    assert distance(weights(plain), weights(flat)) == 0


def test_a_step_equals_the_hand_written_one():
    training = feature_training("sam", {"rho": 0.5}, epochs=1, batch_size=203, momentum=0.0, weight_decay=0.0)
    X, y = blobs()
    W, b = torch.zeros(K, D, requires_grad=True), torch.zeros(K, requires_grad=True)
    F.cross_entropy(X @ W.T + b, torch.as_tensor(y)).backward()
    norm = torch.sqrt(W.grad.square().sum() + b.grad.square().sum())
    away = [(p.detach() + 0.5 * p.grad / norm).requires_grad_(True) for p in (W, b)]
    F.cross_entropy(X @ away[0].T + away[1], torch.as_tensor(y)).backward()
    training.run()
    assert torch.allclose(training.network.head.weight, -0.1 * away[0].grad, atol=1e-7)
    assert torch.allclose(training.network.head.bias, -0.1 * away[1].grad, atol=1e-7)


def test_the_perturbation_has_one_norm_whatever_the_scale_of_the_loss():
    training = feature_training("sam", {"rho": 0.3})
    parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
    for p in parameters:
        p.grad = torch.randn_like(p)
    small = training.method.perturbation(parameters)
    assert float(torch.cat([e.flatten() for e in small]).norm()) == pytest.approx(0.3)
    for p in parameters:
        p.grad *= 1000
    large = training.method.perturbation(parameters)
    assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(small, large, strict=True))
    for p in parameters:
        p.grad.zero_()
    assert all(float(e.abs().max()) == 0 for e in training.method.perturbation(parameters))


def test_adaptive_perturbations_follow_the_size_of_the_weights():
    training = feature_training("sam", {"rho": 0.3, "adaptive": True})
    p = torch.nn.Parameter(torch.tensor([2.0, 0.0, -1.0]))
    p.grad = torch.ones(3)
    (e,) = training.method.perturbation([p])
    assert torch.allclose(e, 0.3 * torch.tensor([4.0, 0.0, 1.0]) / 5**0.5)


def test_batch_norm_and_class_statistics_move_once_a_step():
    def norms(rho):
        training = feature_training(
            "sam", {"rho": rho, "loss": "mr2"}, encoder=wobbly_encoder(), epochs=1, batch_size=203
        )
        training.run()
        norm = training.network.encoder[1]
        return copy.deepcopy(norm.state_dict()), training.method.loss.mean_norm.clone()

    (plain, means), (sharp, same_means) = norms(0.0), norms(2.0)
    assert int(sharp["num_batches_tracked"]) == int(plain["num_batches_tracked"]) == 1
    assert torch.equal(plain["running_mean"], sharp["running_mean"])
    assert torch.equal(means, same_means)


def test_weights_are_put_back_when_the_point_nearby_is_not_finite():
    class Cliff(nn.Module):
        """Finite at the weights it starts with and at no others."""

        def __init__(self):
            super().__init__()
            self.at = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x * torch.where(self.at == 0, 1 + self.at, float("inf"))

    training = feature_training("sam", encoder=Cliff(), head=heads.make("cosine", D, K))
    with pytest.raises(UserError, match="the loss is nan at epoch 0, step 0"):
        training.run()
    assert same_bits(weights(training), training.state.start)
