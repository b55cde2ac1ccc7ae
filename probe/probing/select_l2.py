"""The weight of the penalty, l2: given, or the one whose head does best on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from probe.errors import UserError
from probe.evaluation import metrics
from probe.losses.base import Loss
from probe.probing.problem import ProbeProblem, Scores, take_rows
from probe.probing.settings import SolverSettings
from probe.solve import l2_grid
from probe.solve.logistic import LogisticSolver
from probe.solve.solution import LinearSolution

ROUGH = 1e-2  # certified relative excess that is good enough to compare values of l2, or to rank classes


# values of l2 -> a head for each, all fitted to the same rows
Path = Callable[[Sequence[float]], Sequence[Scores]]


def select_l2(
    problem: ProbeProblem,
    solver: SolverSettings,
    holdout: NDArray[np.int64],
    path: Callable[[NDArray[np.int64]], Path],
) -> dict[str, Any]:
    """`{"l2": ...}` as given; else the best on the `holdout` images, with the table of all that were tried.

    `path(rows)` gives the function that fits heads to these rows, here to all but the holdout.
    """
    if solver.l2 is not None:
        return {"l2": solver.l2}
    if len(holdout) == 0:
        raise UserError("no image is left to choose l2 on: give it with --l2, or add training images")
    heads = path(problem.rows(np.setdiff1d(np.arange(problem.images), holdout)))
    y = problem.labels[holdout]

    def judged(head: Scores) -> tuple[float, float]:
        logits = problem.logits(head, holdout)
        guess = logits.argmax(dim=1).numpy()
        likelihood = -F.cross_entropy(logits.double(), torch.from_numpy(y)).item()
        return metrics.score(guess, y, problem.num_classes, problem.metric), likelihood

    chosen = l2_grid.select(
        lambda values: [judged(head) for head in heads(values)], full=solver.grid == "full"
    )
    return {"l2": chosen.l2, "validation": [list(row) for row in chosen.table]}


class LogisticPath:
    """The `path` of (adjusted) logistic regression, roughly solved; `loss(rows)` is the loss of these rows.

    A robust method's class weights are those it starts from, all equal: its l2 is chosen for them.
    """

    def __init__(self, problem: ProbeProblem, loss: Callable[[NDArray[np.int64]], Loss]) -> None:
        self.problem, self.loss = problem, loss
        self.solved: dict[float, LinearSolution] = {}  # by l2: where a better solution may begin

    def __call__(self, rows: NDArray[np.int64]) -> Path:
        problem = self.problem
        solver = LogisticSolver(
            take_rows(problem.X, rows),
            problem.y[rows],
            problem.num_classes,
            adjustment=self.loss(rows).adjustment(),
            sample_weight=problem.weights(rows),
            basis=problem.basis,
        )

        def heads(l2s: Sequence[float]) -> list[LinearSolution]:
            found = solver.path(l2s, tol=ROUGH, judged=False)
            self.solved |= zip(l2s, found, strict=True)
            return found

        return heads
