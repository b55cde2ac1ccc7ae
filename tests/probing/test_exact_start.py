"""Where the final fit of an exact probe begins."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.evaluation import groups
from probe.probing import crossfit, exact
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
    again = exact.fit(problem(), LossChoice(method), ExactSolver(l2=chosen.record["l2"]), holdout[:0])
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


def noise(kind):
    """Labels are chance. By heart: the head of all rows knows every one. Unit length, strong penalty: the
    loss hardly moves, so a gap that is small beside it says nothing of the weights."""
    g = torch.Generator().manual_seed(1)
    n, dim, k, l2 = {"by heart": (400, 300, 4, 1e-3), "unit length": (1000, 500, 10, 1e3)}[kind]
    X = torch.randn(n, dim, generator=g, dtype=torch.float64)
    if kind == "unit length":
        X /= X.norm(dim=1, keepdim=True)
    y = np.arange(n) % k
    return ProbeProblem(X, y, tuple(map(str, range(k)))), l2


@pytest.mark.parametrize("kind", ["by heart", "unit length"])
def test_a_fold_begun_at_a_head_that_has_seen_it_knows_nothing_of_it(kind):
    given, l2 = noise(kind)
    none = np.array([], dtype=np.int64)
    whole = exact.fit(given, LossChoice("erm"), ExactSolver(l2=l2), none).solution
    assert (whole.logits(given.X).argmax(1).numpy() == given.y).mean() > 0.7
    k = given.num_classes
    correct, _ = groups.crossfit(given.y, k, crossfit.held_out_probabilities(given, l2, whole))
    chance = np.sqrt(k - 1) / k / np.sqrt(len(given.y))  # one standard error
    assert abs(correct.mean() - 1 / k) < 3 * chance


def test_seeds_that_choose_the_same_l2_share_one_solution(monkeypatch):
    given = problem()
    solve, calls = exact.solved, []
    monkeypatch.setattr(exact, "solved", lambda *a, **k: calls.append(k["l2"]) or solve(*a, **k))
    none = np.array([], dtype=np.int64)
    one, two, other, weaker = (
        exact.fit(given, LossChoice(name, params), ExactSolver(l2=l2), none)
        for name, params, l2 in (
            ("mr2", {}, 1.0),
            ("mr2", {}, 1.0),
            ("mr2", {"power": 1.0}, 1.0),
            ("mr2", {}, 0.3),
        )
    )
    assert calls == [1.0, 1.0, 0.3]
    assert torch.equal(one.head.tensors["weight"], two.head.tensors["weight"])
    assert not torch.equal(one.head.tensors["weight"], other.head.tensors["weight"])
    alone = exact.fit(replace(given), LossChoice("mr2"), ExactSolver(l2=0.3), none)
    assert weaker.record["objective"] == pytest.approx(alone.record["objective"], rel=2e-7)
