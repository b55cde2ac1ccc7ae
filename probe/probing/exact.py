"""A head on frozen features by an exact solver: one table of solvers, each a function of the same problem.

A method that is convex on frozen features is *data* for the solver (see `probe.core.adjustment`): this module
only asks the loss for its adjustment. Hyper-parameters come from the holdout; the head that is
kept is fitted to all rows, the holdout included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import losses
from probe.errors import UserError, nearest
from probe.heads.fitted import FittedHead
from probe.losses.base import Loss
from probe.losses.spec import HELD_OUT_FREQUENCY
from probe.probing import grouped, robust
from probe.probing.crossfit import PLAIN, effective_frequency
from probe.probing.problem import Fit, ProbeProblem, take_rows
from probe.probing.select_l2 import ROUGH, LogisticPath, select_l2
from probe.probing.selection import Selector
from probe.probing.settings import ExactSolver, LossChoice, LossSettings, SolverSettings
from probe.solve import logistic, ridge
from probe.solve.solution import LinearSolution


def exactly(solver: SolverSettings) -> SolverSettings:
    """The exact solver of the plain probe beside a run with this one."""
    return solver if solver.name == "lbfgs" else ExactSolver("lbfgs")


def check(method: LossSettings, solver: SolverSettings) -> None:
    """Refuse what could only fail, or would silently be something else, before anything is computed."""
    if solver.name not in SOLVERS:
        raise UserError(f'"{solver.name}" is not an exact solver{nearest(solver.name, SOLVERS)}')
    spec = losses.info(method.name)
    losses.catalogue.resolve(method.name, dict(method.params))
    if solver.name != "lbfgs" and method.name != PLAIN.name:
        raise UserError(
            f"solver {solver.name} minimises no loss, so method {method.name} cannot act on it; "
            "use solver lbfgs, or method erm"
        )
    if spec.frozen == "no effect":
        raise UserError(f"{method.name} has no effect on frozen features: {spec.why}")
    if spec.frozen != "exact":
        raise UserError(f"{method.name} has no exact solver: {spec.why}; use --solver sgd, or --finetune")


def fit(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> Fit:
    """Choose l2 on the `holdout` rows where none is given, then fit all rows."""
    check(method, solver)
    return SOLVERS[solver.name](problem, method, solver, holdout)


def fit_selected(
    problem: ProbeProblem, methods: Sequence[LossSettings], solver: SolverSettings, selector: Selector
) -> Fit:
    """Let the selector choose among the methods and, where none is given, l2; then fit all rows."""
    for method in methods:
        check(method, solver)
    choice = selector.choose(methods, solver)
    given = ExactSolver(solver.name, l2=choice.l2, tol=solver.tol)
    made = fit(problem, choice.method, given, np.array([], dtype=np.int64))
    return replace(made, record={**choice.record, **made.record})


def _lbfgs(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> Fit:
    if problem.groups is not None and losses.info(method.name).groups:
        solution, record, loss = grouped.fit(problem, method, solver, holdout)
        return Fit(linear_head(problem, solution), record, loss, remarks=_unsolved(solution))
    method = with_frequency(problem, method, solver, holdout)
    path = LogisticPath(problem, lambda rows: problem.loss(method, rows))
    record = select_l2(problem, solver, holdout, path)
    l2 = record["l2"]
    known = problem.solved.setdefault(repr((method.name, method.params, solver.tol)), {})
    if l2 not in known:
        near = min(known, key=lambda other: abs(math.log(other / l2)), default=None)
        init = path.solved.get(l2) if near is None else known[near][0]
        known[l2] = solved(problem, method, l2=l2, tol=solver.tol, init=init)
    solution, loss = known[l2]
    record |= {"objective": solution.objective, "iterations": solution.iterations, "status": solution.status}
    return Fit(linear_head(problem, solution), record, loss, remarks=_unsolved(solution), solution=solution)


def _unsolved(solution: LinearSolution) -> tuple[str, ...]:
    """A remark where the solver ended far from what it can certify elsewhere."""
    excess = solution.gap / max(abs(solution.objective), 1e-300)
    if solution.converged or excess <= ROUGH**2:
        return ()
    return (f"the solver ended early ({solution.status}): its objective may be {excess:.0%} above the best",)


def solved(
    problem: ProbeProblem,
    method: LossSettings,
    *,
    l2: float,
    tol: float,
    rows: NDArray[np.int64] | None = None,
    init: LinearSolution | None = None,
) -> tuple[LinearSolution, Loss]:
    """The solution of these rows (None: all) with an exact loss and a given l2, and the loss itself."""
    loss, X = problem.loss(method, rows), take_rows(problem.X, rows)
    y = problem.y if rows is None else problem.y[rows]
    shared: dict[str, Any] = {"l2": l2, "sample_weight": problem.weights(rows), "basis": problem.basis}
    init = robust.settle(loss, X, y, **shared) or init
    adjustment = loss.adjustment()  # of a robust loss: as it has settled
    shared |= {"adjustment": adjustment, "init": init, "tol": tol}
    return logistic.fit(X, y, problem.num_classes, **shared), loss


def with_frequency(
    problem: ProbeProblem, loss: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> LossSettings:
    """The same loss with its effective frequencies filled in, where it has some and they are not given."""
    spec = losses.info(loss.name)
    params = spec.resolve(loss.params)
    wanted = spec.unfilled(HELD_OUT_FREQUENCY, params)
    if wanted is None:
        return loss
    return LossChoice(loss.name, {**loss.params, wanted: effective_frequency(problem, solver, holdout)})


def _ridge(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> Fit:
    def path(rows: NDArray[np.int64]) -> Callable[[Sequence[float]], Sequence[ridge.RidgeHead]]:
        X, y, weights = take_rows(problem.X, rows), problem.y[rows], problem.weights(rows)
        return ridge.Ridge(X, y, problem.num_classes, sample_weight=weights, device=problem.device).path

    record = select_l2(problem, solver, holdout, path)
    whole = ridge.Ridge(
        problem.X, problem.y, problem.num_classes, sample_weight=problem.weights(), device=problem.device
    )
    return Fit(linear_head(problem, whole.path([record["l2"]])[0]), record)


def linear_head(problem: ProbeProblem, solution: LinearSolution | ridge.RidgeHead) -> FittedHead:
    """A solution of the scaled features as a head for unscaled ones."""
    return FittedHead(
        "linear", {"weight": solution.weight, "bias": solution.bias}, scaling=problem.head_scaling
    )


def _zero_shot(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> Fit:
    if problem.text is None:
        raise UserError("zero-shot needs a text encoder; choose a CLIP backbone (see `probe backbones`)")
    embeddings, scale = problem.text
    return Fit(FittedHead("cosine", {"weight": embeddings}, {"scale": scale}))


def _knn(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> Fit:
    # The bank holds every view, and each has a vote: k neighbours are k images' worth of them.
    k = solver.k * problem.views
    settings = {"num_classes": problem.num_classes, "k": k, "weighted": solver.weighted}
    bank = problem.X if isinstance(problem.X, Tensor) else problem.X.tensor()
    tensors = {"bank": bank, "labels": torch.from_numpy(problem.y)}
    return Fit(FittedHead("knn", tensors, settings, problem.head_scaling), {"k": solver.k})


SOLVERS: dict[str, Callable[[ProbeProblem, LossSettings, SolverSettings, NDArray[np.int64]], Fit]] = {
    "lbfgs": _lbfgs,
    "ridge": _ridge,
    "knn": _knn,
    "zeroshot": _zero_shot,
}
