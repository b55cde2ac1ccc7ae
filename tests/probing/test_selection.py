"""Hyper-parameters are chosen for an objective, by predictions of heads that have not seen the image."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.core.adjustment import ClassAdjustment
from probe.evaluation.groups import folds
from probe.evaluation.judging import Objective
from probe.probing import exact
from probe.probing.candidates import LEFT_OUT, CrossFit, RidgeCrossFit, crossfit_candidates
from probe.probing.crossfit import PLAIN
from probe.probing.problem import ProbeProblem
from probe.probing.selection import CROSSFIT, ENOUGH, HOLDOUT, Selector, enough
from probe.probing.settings import ExactSolver, LossChoice
from probe.solve import logistic
from probe.solve.logistic import LogisticSolver

K, N, D = 6, 150, 10
METHODS = ("erm", "mr2", "la", "cb", "ldam-linear", "ef", "dro")


@pytest.fixture(scope="module")
def problem():
    """Six classes of 15 to 40 images, some close to each other."""
    rng = np.random.default_rng(1)
    y = rng.choice(K, N, p=np.linspace(1, 2.5, K) / np.linspace(1, 2.5, K).sum())
    X = 0.7 * rng.normal(size=(K, D))[y] + rng.normal(size=(N, D))
    return ProbeProblem(torch.from_numpy(X), y, tuple("abcdef"), metric="mean_per_class")


@pytest.fixture(scope="module")
def fold(problem):
    return folds(problem.labels, 5, 0)


@pytest.fixture(scope="module")
def crossfit(problem, fold):
    """What one test has solved, another finds."""
    return CrossFit(problem, fold)


def test_cross_fitted_predictions_are_those_of_probes_on_the_other_folds(problem, fold):
    candidate = CrossFit(problem, fold).candidate(PLAIN, 2.0, tol=1e-8)
    for part in range(5):
        kept, held = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        head = logistic.fit(problem.X[kept], problem.y[kept], K, l2=2.0, tol=1e-10)
        p = head.logits(problem.X[held]).softmax(1).numpy()
        assert np.array_equal(candidate.predicted[held], p.argmax(1))
        assert candidate.confidence[held] == pytest.approx(p[np.arange(len(held)), problem.y[held]], abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_judged_was_never_learnt_from(problem, fold, method):
    """Other labels for a fold's images change no prediction of them, whatever was solved before."""
    other = problem.y.copy()
    other[fold == 2] = (other[fold == 2] + 1) % K
    seen = []
    for y in (problem.y, other):
        crossfit = CrossFit(replace(problem, y=y), fold)
        # effective frequencies come from a plain probe of other images, which here were learnt from by some
        crossfit.frequency = lambda part=None: [0.5] * K
        for l2 in (30.0, 3.0):
            found = crossfit.candidate(LossChoice(method), l2)
        seen.append(found.predicted[fold == 2])
    assert np.array_equal(*seen)


def test_images_that_are_left_out_matter_to_nothing(problem, fold):
    fold = np.where(np.arange(N) % 7 == 0, LEFT_OUT, fold)
    other = problem.y.copy()
    other[fold == LEFT_OUT] = 0
    a, b = (
        CrossFit(replace(problem, y=y), fold).candidate(LossChoice("mr2"), 3.0) for y in (problem.y, other)
    )
    assert len(a.predicted) == (fold != LEFT_OUT).sum()
    assert np.array_equal(a.predicted, b.predicted)


def test_another_adjustment_on_the_same_rows_has_the_same_solution(problem):
    scaled = ClassAdjustment(scale=torch.linspace(0.8, 1.2, K, dtype=torch.float64))
    solver = LogisticSolver(problem.X, problem.y, K, basis=problem.basis)
    solver.path([30.0, 3.0])
    [related] = solver.adjusted(scaled).path([3.0], tol=1e-9)
    fresh = logistic.fit(problem.X, problem.y, K, l2=3.0, adjustment=scaled, tol=1e-9)
    assert torch.allclose(related.weight, fresh.weight, atol=1e-4)
    assert related.iterations < fresh.iterations


@pytest.mark.parametrize("objective", ["overall", "mean-per-class", "hard", "worst-tenth", "budget"])
def test_the_choice_is_the_best_of_all_that_were_tried(crossfit, objective):
    methods = [LossChoice("la", {"tau": tau}) for tau in (0.0, 0.5, 1.0)]
    found = crossfit_candidates(crossfit, methods, ExactSolver(), Objective(objective))
    aim = {"budget": "hard"}.get(objective, objective.replace("-", "_"))
    allowed = found.scores
    if objective == "budget":
        best = max(s["mean_per_class"] for s in found.scores)
        allowed = [s for s in found.scores if s["mean_per_class"] >= best - 0.005 - 1e-9]
    assert found.scores[found.best][aim] == pytest.approx(max(s[aim] for s in allowed), abs=1e-9)
    assert {c.method.params["tau"] for c in found.candidates} == {0.0, 0.5, 1.0}


def test_the_plain_probe_is_the_same_whatever_is_tried_beside_it(problem, fold):
    chosen = []
    for others in ([], [LossChoice("mr2"), LossChoice("la", {"tau": 2.0})]):
        crossfit = CrossFit(problem, fold)
        for method in others:
            crossfit_candidates(crossfit, [method], ExactSolver(), Objective("hard"))
        chosen.append(crossfit_candidates(crossfit, [PLAIN], ExactSolver(), Objective("hard")))
    assert chosen[0].scores == chosen[1].scores
    for a, b in zip(chosen[0].candidates, chosen[1].candidates, strict=True):
        assert a.l2 == b.l2
        assert np.array_equal(a.confidence, b.confidence)


def test_a_given_l2_is_not_searched_and_a_full_grid_is_all_of_it(problem, fold, crossfit):
    given = crossfit_candidates(crossfit, [PLAIN], ExactSolver(l2=2.5), Objective("hard"))
    assert [c.l2 for c in given.candidates] == [2.5]
    full = crossfit_candidates(
        RidgeCrossFit(problem, fold, crossfit), [PLAIN], ExactSolver("ridge", grid="full"), Objective("hard")
    )
    assert len(full.candidates) == 96


@pytest.mark.parametrize("solver", ["lbfgs", "ridge"])
def test_a_selected_probe_is_the_exact_probe_of_what_was_chosen(problem, solver):
    selector = Selector(problem, np.arange(20), Objective("hard"))
    made = exact.fit_selected(problem, [PLAIN], ExactSolver(solver), selector)
    chosen = made.record["select"]
    assert (chosen["objective"], chosen["by"]) == ("hard", CROSSFIT)
    assert made.record["l2"] in {row["l2"] for row in chosen["tried"]}
    again = exact.fit(problem, PLAIN, ExactSolver(solver, l2=made.record["l2"]), np.arange(0))
    assert torch.equal(made.head.tensors["weight"], again.head.tensors["weight"])


def test_a_holdout_judges_where_it_has_enough_images_and_is_ranked_by_the_others():
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    X = torch.from_numpy(rng.normal(size=(3, 5))[y] + rng.normal(size=(240, 5)))
    problem = ProbeProblem(X, y, tuple("abc"))
    holdout = np.arange(3 * ENOUGH)
    assert enough(y[holdout])
    assert not enough(y[holdout[3:]])
    assert not enough(y[:0])
    groups, chosen = [], []
    for labels in (y, np.where(np.arange(240) < 3 * ENOUGH, (y + 1) % 3, y)):
        selector = Selector(replace(problem, y=labels), holdout, Objective("hard"))
        assert selector.by == HOLDOUT
        groups.append(selector.holdout_judge.groups)
        chosen.append(selector.choose([PLAIN], ExactSolver()).record["select"]["tried"][0]["overall"])
    assert groups[0] == groups[1]  # the holdout's own labels rank nothing
    assert chosen[0] > 0.5 > chosen[1]  # and they are what judges


def test_folds_follow_the_seed(problem):
    few = np.arange(20)
    a, b, again = (Selector(problem, few, Objective("overall"), seed)._crossfit.fold for seed in (0, 1, 0))
    assert np.array_equal(a, again)
    assert not np.array_equal(a, b)
