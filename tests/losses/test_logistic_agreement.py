"""The convex losses, minimised, are the logistic regressions that scikit-learn solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import probe.losses
from probe.core.class_stats import ClassStats

K, D, L2 = 4, 6, 0.5


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % K
    h = torch.randn(80, D, generator=g, dtype=torch.float64) * (0.5 + y.unsqueeze(1))
    return h + torch.randn(K, D, generator=g, dtype=torch.float64)[y], y


def minimise(loss, h, y, weight_sum):
    """Full-batch L-BFGS on weight_sum x loss + L2/2 |W|^2 with a penalised bias column."""
    inputs = torch.cat([h, torch.ones(len(h), 1, dtype=torch.float64)], 1)
    w = torch.zeros(K, D + 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = weight_sum * loss(inputs @ w.T, y, h) + L2 / 2 * w.square().sum()
        value.backward()
        return value

    optimiser.step(closure)
    return w.detach()


def solve(rows, y, weights=None):
    model = LogisticRegression(C=1 / L2, fit_intercept=False, tol=1e-12, max_iter=5000)
    return model.fit(np.asarray(rows), np.asarray(y), sample_weight=weights).coef_


def test_mr2_is_logistic_regression_on_rows_divided_by_their_margin(data):
    h, y = data
    loss = probe.losses.make("mr2", num_classes=K, stats=ClassStats.from_features(h, y, K))
    assert not loss.degenerate
    rows = torch.cat([h, torch.ones(len(h), 1, dtype=torch.float64)], 1) / loss.gamma[y].unsqueeze(1)
    np.testing.assert_allclose(minimise(loss, h, y, len(h)), solve(rows, y), atol=1e-6)


def test_the_mean_margin_is_only_another_penalty(data):
    """Scaling all margins by c is the plain problem with c^2 times the penalty, its weights times c."""
    h, y = data
    stats = ClassStats.from_features(h, y, K)
    one, three = (probe.losses.make("mr2", num_classes=K, stats=stats, c=c) for c in (1.0, 3.0))
    wide = minimise(three, h, y, len(h))
    np.testing.assert_allclose(wide, 3 * minimise(one, h, y, len(h) / 9), atol=1e-5)


def test_class_balancing_is_weighted_logistic_regression(data):
    h, y = data
    keep = torch.cat([(y == k).nonzero().flatten()[: 20 - 5 * k] for k in range(K)])
    h, y = h[keep], y[keep]
    loss = probe.losses.make("cb", num_classes=K, class_counts=torch.bincount(y), beta=0.9)
    weights = loss.adjustment().weight[y]
    rows = torch.cat([h, torch.ones(len(h), 1, dtype=torch.float64)], 1)
    got = minimise(loss, h, y, float(weights.sum()))
    np.testing.assert_allclose(got, solve(rows, y, weights.numpy()), atol=1e-6)


def test_cross_entropy_is_logistic_regression(data):
    h, y = data
    rows = torch.cat([h, torch.ones(len(h), 1, dtype=torch.float64)], 1)
    loss = probe.losses.make("erm", num_classes=K)
    np.testing.assert_allclose(minimise(loss, h, y, len(h)), solve(rows, y), atol=1e-6)


def test_a_free_bias_makes_predicted_and_true_class_counts_equal(data):
    """Lemma 1 of Classes Are Not Equal: at the optimum the columns of p sum to the class counts."""
    from probe.solve import logistic

    h, y = data
    keep = torch.cat([(y == k).nonzero().flatten()[: 20 - 5 * k] for k in range(K)])
    h, y = h[keep], y[keep]
    solution = logistic.fit(h, y, K, l2=L2, tol=1e-13)
    predicted = solution.logits(h).softmax(1).sum(0)
    torch.testing.assert_close(predicted, torch.bincount(y).double(), atol=1e-5, rtol=0)
