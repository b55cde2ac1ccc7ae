"""One arithmetic: training, the exact solver and a plain loop agree on the adjusted cross-entropy."""

from __future__ import annotations

import pytest
import torch

from probe.core.adjustment import ClassAdjustment
from probe.solve.objective import BlockCrossEntropy
from tests.support.solver_problems import blobs, plain_objective

K = 4
ADJUSTMENTS = {
    "plain": ClassAdjustment(),
    "scale": ClassAdjustment(scale=torch.tensor([0.5, 1.0, 2.0, 1.3]).double()),
    "shift": ClassAdjustment(shift=torch.tensor([0.1, -2.0, 0.0, 1.0]).double()),
    "shift by true class": ClassAdjustment(shift=-torch.diag(torch.tensor([0.1, 0.5, 0.2, 0.0]).double())),
    "weight": ClassAdjustment(weight=torch.tensor([1.0, 0.2, 3.0, 0.0]).double()),
    "all": ClassAdjustment(
        torch.tensor([0.5, 1.0, 2.0, 1.3]).double(),
        torch.linspace(-1, 1, K * K).double().view(K, K),
        torch.tensor([1.0, 0.2, 3.0, 0.7]).double(),
    ),
}
COUNTS = {"balanced": [6, 6, 6, 6], "unbalanced": [15, 5, 3, 1]}


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", ADJUSTMENTS)
def test_training_solver_and_a_plain_loop_agree_in_value_and_gradient(kind, counts):
    adjustment = ADJUSTMENTS[kind]
    X, y = blobs(counts=COUNTS[counts])
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(K, X.shape[1], generator=g, dtype=torch.float64)
    bias = torch.randn(K, generator=g, dtype=torch.float64)
    by_sample = torch.ones(len(y)).double() if adjustment.weight is None else adjustment.weight[y]
    plain = plain_objective(
        weight, bias, X, y, 0.0, scale=adjustment.scale, shift=adjustment.shift, weights=by_sample
    )

    logits = (X @ weight.T + bias).requires_grad_()
    losses, weights = adjustment.losses(logits, y)
    value = (losses if weights is None else weights * losses).sum()
    value.backward()
    sums, residual, _ = BlockCrossEntropy(y, adjustment, None, torch.float64)(logits.detach().T.unsqueeze(0))
    assert value.item() == pytest.approx(plain, rel=1e-12)
    assert float(sums) == pytest.approx(plain, rel=1e-12)
    torch.testing.assert_close(residual[0].T, logits.grad, rtol=1e-10, atol=1e-12)

    again = logits.detach().clone().requires_grad_()
    mean = adjustment.cross_entropy(again, y)
    mean.backward()
    assert mean.item() == pytest.approx(plain / float(by_sample.sum()), rel=1e-12)
    torch.testing.assert_close(again.grad, logits.grad / by_sample.sum(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "shift", "weight"])
def test_probabilities_of_one_class_are_labels(kind):
    adjustment = ADJUSTMENTS[kind]
    g = torch.Generator().manual_seed(2)
    z, y = torch.randn(9, K, generator=g, dtype=torch.float64), torch.arange(9) % 3
    soft = torch.nn.functional.one_hot(y, K).double()
    torch.testing.assert_close(adjustment.cross_entropy(z, soft), adjustment.cross_entropy(z, y))


def test_only_adjustments_that_tell_classes_apart_differ_from_plain_cross_entropy():
    assert {kind for kind, one in ADJUSTMENTS.items() if one.same_as_plain()} == {"plain"}
    level = torch.full((K,), 0.3)
    assert ClassAdjustment(scale=level, shift=level, weight=level).same_as_plain()
