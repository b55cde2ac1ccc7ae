"""The robust probe is the exact minimiser of the smoothed worst class loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import probe.losses
from probe.probing import robust
from probe.solve import logistic

K, L2 = 4, 0.5
COUNTS = [60, 30, 12, 8]


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(K), torch.tensor(COUNTS))
    centres = torch.randn(K, 5, generator=g, dtype=torch.float64)
    noise = torch.tensor([0.5, 1.0, 2.0, 2.0], dtype=torch.float64)[y].unsqueeze(1)
    return centres[y] + noise * torch.randn(len(y), 5, generator=g, dtype=torch.float64), y


def class_losses(logits, y):
    losses = F.cross_entropy(logits, y, reduction="none")
    return torch.stack([losses[y == k].mean() for k in range(K)])


def smoothed(w, b, X, y, t):
    worst = (torch.logsumexp(t * class_losses(X @ w.T + b, y), 0) - math.log(K)) / t
    return len(y) * worst + L2 / 2 * w.square().sum()


@pytest.mark.parametrize("sharpness", [2.0, 16.0])
def test_it_minimises_the_smoothed_maximum(data, sharpness):
    X, y = data
    loss = probe.losses.make("dro", num_classes=K, class_counts=COUNTS, sharpness=sharpness)
    robust.settle(loss, X, y, l2=L2)
    solution = logistic.fit(X, y, K, l2=L2, adjustment=loss.adjustment())
    got = smoothed(solution.weight, solution.bias, X, y, sharpness)
    w = torch.zeros(K, 5, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w, b], max_iter=2000, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = smoothed(w, b, X, y, sharpness)
        value.backward()
        return value

    optimiser.step(closure)
    assert got.item() == pytest.approx(closure().item(), rel=2e-4)
    # Stationary: the weights are the smoothed maximum's own.
    at = class_losses(solution.logits(X), y)
    torch.testing.assert_close(loss.weights, (sharpness * at).softmax(0), atol=0.02, rtol=0)
    plain = logistic.fit(X, y, K, l2=L2)
    assert at.max() < class_losses(plain.logits(X), y).max()


def test_other_losses_are_left_alone_and_dro_starts_with_equal_classes(data):
    X, y = data
    robust.settle(probe.losses.make("erm", num_classes=K), X, y, l2=L2)
    weight = probe.losses.make("dro", num_classes=K, class_counts=COUNTS).adjustment().weight
    n = torch.tensor(COUNTS, dtype=torch.float64)
    torch.testing.assert_close((weight * n).double(), torch.full((K,), n.sum() / K).double())


def test_a_class_without_rows_takes_no_part(data):
    X, y = data
    loss, more = (
        probe.losses.make("dro", num_classes=k, class_counts=[*torch.bincount(y).tolist(), *[0] * (k - K)])
        for k in (K, K + 1)
    )
    for each in (loss, more):
        robust.settle(each, X, y, l2=L2)
    torch.testing.assert_close(more.weights[:K], loss.weights)
    assert more.weights[K] == 0
