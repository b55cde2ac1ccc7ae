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


def test_a_fold_begun_at_a_head_that_has_seen_it_knows_nothing_of_it():
    """Labels are chance, and the head of all rows knows every one of them by heart: the worst case."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(400, 300, generator=g, dtype=torch.float64)
    y = torch.randint(0, 4, (400,), generator=g).numpy()
    given = ProbeProblem(X, y, tuple("abcd"))
    l2 = 1e-3
    whole = exact.fit(given, LossChoice("erm"), ExactSolver(l2=l2), np.array([], dtype=np.int64)).solution
    assert (whole.logits(X).argmax(1).numpy() == y).all()
    found = {}
    for name, near, tol in (("begun there", whole, None), ("from nothing", None, 1e-7)):
        with pytest.MonkeyPatch.context() as patch:
            if tol is not None:
                patch.setattr(crossfit, "ROUGH", tol)
            held_out = crossfit.held_out_probabilities(given, l2, near)
            correct, own = groups.crossfit(y, 4, held_out)
        found[name] = correct.mean(), own.mean()
    np.testing.assert_allclose(found["begun there"], found["from nothing"], atol=0.01)
    assert found["begun there"][0] < 0.35  # chance is 0.25


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
