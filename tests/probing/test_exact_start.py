"""Where the final fit of an exact probe begins."""

import numpy as np
import pytest
import torch

from probe.probing import exact
from probe.probing.problem import ProbeProblem
from probe.probing.settings import ExactSolver, LossChoice
from probe.solve import logistic

K = 4


def problem(n=240, dtype=torch.float64):
    rng = np.random.default_rng(0)
    y = np.arange(n) % K
    X = rng.normal(size=(n, 12)) + 2 * np.eye(K, 12)[y]
    return ProbeProblem(torch.from_numpy(X).to(dtype), y, tuple("abcd"))


@pytest.mark.parametrize("method", ["erm", "mr2", "ldam-linear", "dro"])
def test_a_class_that_only_the_holdout_has_is_learnt_all_the_same(method):
    """The choice of l2 saw no image of it, and its solution says so with an endless bias."""
    given = problem()
    holdout = np.flatnonzero((given.y == 3) | (np.arange(240) % 5 == 0))
    chosen = exact.fit(given, LossChoice(method), ExactSolver(), holdout)
    again = exact.fit(given, LossChoice(method), ExactSolver(l2=chosen.record["l2"]), holdout[:0])
    assert chosen.record["status"] == "converged"
    assert chosen.record["objective"] == pytest.approx(again.record["objective"], rel=1e-6)
    assert chosen.remarks == ()


def test_a_solution_without_a_class_is_a_fair_start():
    given = problem()
    X, y = given.X, torch.from_numpy(given.y)
    without = logistic.fit(X[y < 3], y[y < 3], K, l2=1.0)
    cold, warm = (logistic.fit(X, y, K, l2=1.0, init=init) for init in (None, without))
    assert warm.converged
    assert warm.objective == pytest.approx(cold.objective, rel=1e-6)
    assert warm.iterations <= cold.iterations + 3


def test_a_solver_that_ends_early_is_said():
    given = problem()
    X, y = given.X, torch.from_numpy(given.y)
    early = logistic.fit(X, y, K, l2=0.01, max_iter=2)
    (said,) = exact._unsolved(early)
    assert said.startswith("the solver ended early (iterations): its objective may be ")
    assert exact._unsolved(logistic.fit(X, y, K, l2=0.01)) == ()
