"""Methods that act on groups which are not the classes, solved exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from probe.data.attribute import SampleGroups
from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.probing.settings import ExactSolver, LossChoice

NONE = np.array([], dtype=np.int64)


def problem(X, y, groups, names):
    of = SampleGroups(np.asarray(groups), tuple(names), ())
    classes = tuple(f"class {k}" for k in range(int(y.max()) + 1))
    return ProbeProblem(torch.from_numpy(X).float(), y, classes, groups=of)


def noise(n=90, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, dim)), rng.integers(3, size=n)
    X[np.arange(n), y] += 1.0
    return X, y, rng.integers(2, size=n) * (rng.random(n) < 0.5)


def objective(X, y, weight_of, l2):
    """A float64 objective of the head's numbers; `weight_of(losses)` makes one number of n losses."""
    one = np.hstack([X.astype(np.float32).astype(np.float64), np.ones((len(X), 1))])

    def value(flat):
        w = flat.reshape(3, -1)
        z = one @ w.T
        losses = logsumexp(z, axis=1) - z[np.arange(len(y)), y]
        return weight_of(losses) + l2 / 2 * (w[:, :-1] ** 2).sum()

    found = minimize(
        value, np.zeros(3 * one.shape[1]), method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15}
    )
    return value, found


def head_of(fit):
    weight, bias = fit.head.tensors["weight"].double().numpy(), fit.head.tensors["bias"].double().numpy()
    return np.hstack([weight, bias[:, None]]).ravel()


def test_class_balanced_weights_by_group_are_a_weighted_logistic_regression():
    X, y, g = noise()
    counts = np.bincount(g)
    w = (1 - 0.9) / (1 - 0.9**counts)
    w = w * 2 / w.sum()
    value, found = objective(X, y, lambda losses: (w[g] * losses).sum(), 3.0)
    fit = exact.fit(problem(X, y, g, "ab"), LossChoice("cb", {"beta": 0.9}), ExactSolver(l2=3.0), NONE)
    assert value(head_of(fit)) == pytest.approx(found.fun, rel=1e-6)


def test_group_dro_is_at_the_minimum_of_the_smoothed_worst_group():
    X, y, g = noise()
    n = np.bincount(g)

    def worst(losses):
        return len(y) / 8 * (logsumexp(8 * np.bincount(g, weights=losses) / n) - np.log(2))

    value, found = objective(X, y, worst, 3.0)
    fit = exact.fit(problem(X, y, g, "ab"), LossChoice("dro", {"sharpness": 8.0}), ExactSolver(l2=3.0), NONE)
    assert value(head_of(fit)) <= found.fun * (1 + 2e-4)
    assert sum(fit.record["groups"].values()) == pytest.approx(1)


def birds(per, seed, dim=20):
    """Waterbirds as features: `per[y][a]` images of class y on background a, which is easier to see."""
    rng = np.random.default_rng(seed)
    cells = [(y, a) for y in (0, 1) for a in (0, 1) for _ in range(per[y][a])]
    y, a = (np.array([cell[i] for cell in cells]) for i in (0, 1))
    X = rng.normal(size=(len(y), dim))
    X[:, 0] += 1.2 * (2 * y - 1)  # the bird
    X[:, 1] += 3.0 * (2 * a - 1)  # where it stands
    return X, y, a


def worst_group(method, groups, l2=10.0):
    train, test = birds(((700, 40), (15, 245)), 0), birds(((2000, 2000), (2000, 2000)), 1)
    X, y, a = train
    posed = problem(X, y, 2 * y + a, ["g0", "g1", "g2", "g3"])
    posed = replace(posed, groups=None) if groups == "class" else posed
    fit = exact.fit(posed, LossChoice(method, {}), ExactSolver(l2=l2), NONE)
    guess = fit.head.scores(torch.from_numpy(test[0]).float()).argmax(dim=1).numpy()
    right = guess == test[1]
    return min(right[(test[1] == y) & (test[2] == a)].mean() for y in (0, 1) for a in (0, 1))


def test_dro_over_class_and_attribute_helps_the_worst_group_and_dro_over_classes_does_not():
    plain, by_class, both = (worst_group(*c) for c in (("erm", "both"), ("dro", "class"), ("dro", "both")))
    assert both > plain + 0.15
    assert both > by_class + 0.15
    assert worst_group("cb", "both") > plain + 0.1
