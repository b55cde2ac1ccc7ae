"""The probe is the optimum of scikit-learn's objective, for every member of the row family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from probe.core.adjustment import ClassAdjustment
from probe.solve import logistic
from probe.solve.objective import BlockCrossEntropy
from tests.support.solver_problems import blobs, plain_objective

EXACT = 1e-18
MARGINS = torch.tensor([0.6, 1.3, 0.9, 1.2], dtype=torch.float64)


def scikit_learn(X, y, l2, sample_weight=None):
    model = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    return model.fit(np.asarray(X), np.asarray(y), sample_weight=sample_weight)


@pytest.mark.parametrize("l2", [0.05, 1.0, 30.0])
@pytest.mark.parametrize(
    "shape",
    [{"n": 120, "dim": 6}, {"counts": [70, 20, 9, 3], "dim": 6}, {"n": 24, "dim": 60}],
    ids=["balanced", "long tail", "D > N"],
)
def test_coefficients_equal_scikit_learns(shape, l2):
    X, y = blobs(**shape)
    ours, theirs = logistic.fit(X, y, 4, l2=l2, tol=EXACT), scikit_learn(X, y, l2)
    np.testing.assert_allclose(ours.weight, theirs.coef_, atol=2e-6)
    np.testing.assert_allclose(ours.bias, theirs.intercept_ - theirs.intercept_.mean(), atol=2e-5)
    assert ours.converged


def test_sample_weights_equal_scikit_learns_and_class_weights_equal_sample_weights():
    X, y = blobs()
    by_class = torch.tensor([1.0, 3.0, 0.2, 2.0], dtype=torch.float64)
    theirs = scikit_learn(X, y, 1.0, sample_weight=by_class[y].numpy())
    for given in ({"sample_weight": by_class[y]}, {"adjustment": ClassAdjustment(weight=by_class)}):
        ours = logistic.fit(X, y, 4, l2=1.0, tol=EXACT, **given)
        np.testing.assert_allclose(ours.weight, theirs.coef_, atol=2e-6)


def test_weight_zero_is_removal_and_weight_two_is_repetition():
    X, y = blobs(n=80)
    weight = torch.tensor([0.0, 1.0, 2.0, 1.0]).repeat(20)
    index = torch.repeat_interleave(torch.arange(80), weight.long())
    one = logistic.fit(X, y.roll(1), 4, l2=1.0, sample_weight=weight, tol=EXACT)
    other = logistic.fit(X[index], y.roll(1)[index], 4, l2=1.0, tol=EXACT)
    torch.testing.assert_close(one.weight, other.weight, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "rows",
    [
        ClassAdjustment(scale=1 / MARGINS),
        ClassAdjustment(shift=torch.tensor([0.5, -1.0, 0.2, 0.0]).double()),
        ClassAdjustment(shift=-torch.diag(MARGINS)),
        ClassAdjustment(scale=1 / MARGINS, shift=-torch.diag(MARGINS), weight=MARGINS),
    ],
    ids=["MR²", "logit adjustment", "LDAM", "all at once"],
)
def test_every_row_family_member_reaches_an_independent_optimisers_optimum(rows):
    X, y = blobs(n=60, dim=3)

    def objective(flat):
        head = torch.from_numpy(flat).view(4, 4).requires_grad_()
        logits = rows.adjust(X @ head[:, :3].T + head[:, 3], y)
        losses = F.cross_entropy(logits, y, reduction="none")
        weight = 1.0 if rows.weight is None else rows.weight[y]
        value = (weight * losses).sum() + head[:, :3].square().sum()
        return value.item(), torch.autograd.grad(value, head)[0].flatten().numpy()

    best = minimize(objective, np.zeros(16), jac=True, method="BFGS", options={"gtol": 1e-9})
    ours = logistic.fit(X, y, 4, l2=2.0, adjustment=rows, tol=EXACT)
    np.testing.assert_allclose(ours.weight, best.x.reshape(4, 4)[:, :3], atol=1e-6)
    weights = None if rows.weight is None else rows.weight[y]
    plain = plain_objective(
        ours.weight, ours.bias, X, y, 2.0, scale=rows.scale, shift=rows.shift, weights=weights
    )
    assert ours.objective == pytest.approx(plain, rel=1e-12)
    assert ours.objective == pytest.approx(best.fun, rel=1e-10)


def test_mr2_divides_the_bias_column_too():
    """With one margin for all, rows [h; 1]/gamma are scikit-learn's problem on h/gamma, bias times gamma."""
    X, y = blobs()
    ours = logistic.fit(X, y, 4, l2=1.0, adjustment=ClassAdjustment(scale=torch.full((4,), 0.4)), tol=EXACT)
    theirs = scikit_learn(X * 0.4, y, 1.0)
    np.testing.assert_allclose(ours.weight, theirs.coef_, atol=2e-6)
    np.testing.assert_allclose(0.4 * ours.bias, theirs.intercept_ - theirs.intercept_.mean(), atol=2e-5)


def test_logit_adjustment_is_a_post_hoc_shift_of_the_bias():
    X, y = blobs(counts=[60, 30, 10, 5])
    log_prior = torch.tensor([60.0, 30, 10, 5]).log()
    erm = logistic.fit(X, y, 4, l2=1.0, tol=EXACT)
    adjusted = logistic.fit(X, y, 4, l2=1.0, adjustment=ClassAdjustment(shift=log_prior), tol=EXACT)
    torch.testing.assert_close(adjusted.weight, erm.weight, atol=1e-7, rtol=0)
    shifted = erm.bias - log_prior
    torch.testing.assert_close(adjusted.bias, shifted - shifted.mean(), atol=1e-6, rtol=0)


def test_residuals_are_the_gradient_and_keep_their_digits_when_a_row_is_fitted():
    rows = ClassAdjustment(scale=1 / MARGINS, shift=-torch.diag(MARGINS), weight=MARGINS)
    y = torch.tensor([0, 1, 2, 3, 1])
    loss = BlockCrossEntropy(y, rows, torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0]), torch.float64)
    z = torch.randn(1, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, residual, _ = loss(z)
    for index in np.ndindex(1, 4, 5):
        nudge = torch.zeros_like(z)
        nudge[index] = 1e-6
        slope = (loss(z + nudge)[0] - loss(z - nudge)[0]) / 2e-6
        assert residual[index].item() == pytest.approx(slope.item(), abs=1e-8)
    confident = torch.tensor([[[40.0], [0.0]]])
    value, residual, _ = BlockCrossEntropy(torch.tensor([0]), ClassAdjustment(), None, torch.float32)(
        confident
    )
    assert value.item() == pytest.approx(np.exp(-40), rel=1e-5)
    np.testing.assert_allclose(residual.flatten(), [-np.exp(-40), np.exp(-40)], rtol=1e-5)


def test_the_gap_bounds_the_distance_to_the_optimum():
    X, y = blobs()
    best = logistic.fit(X, y, 4, l2=0.1, tol=EXACT)
    for tol in (1e-2, 1e-4, 1e-6):
        rough = logistic.fit(X, y, 4, l2=0.1, tol=tol)
        assert -1e-12 <= rough.objective - best.objective <= rough.gap <= tol * rough.objective


def test_large_data_in_float32_passes_reach_the_float64_optimum_and_repeat_bit_by_bit():
    X, y = blobs(n=3000, dim=350, classes=4, spread=6.0)
    X = X.float()
    ours = logistic.fit(X, y, 4, l2=5.0)
    theirs = scikit_learn(X.double(), y, 5.0)
    optimum = plain_value(theirs.coef_, theirs.intercept_, X, y, 5.0)
    assert abs(ours.objective / optimum - 1) <= 1e-7
    at_weights = plain_value(ours.weight, ours.bias, X, y, 5.0)
    assert at_weights == pytest.approx(ours.objective, rel=1e-9)
    again = logistic.fit(X, y, 4, l2=5.0)
    assert torch.equal(ours.weight, again.weight)
    assert torch.equal(ours.bias, again.bias)


def plain_value(weight, bias, X, y, l2):
    weight, bias = torch.as_tensor(weight).double(), torch.as_tensor(bias).double()
    return (
        F.cross_entropy(X.double() @ weight.T + bias, y, reduction="sum") + l2 / 2 * weight.square().sum()
    ).item()
