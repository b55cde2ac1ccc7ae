"""Probabilities of training rows under plain probes that have not seen them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from probe.evaluation import groups
from probe.evaluation.groups import FitPredict
from probe.probing.problem import ProbeProblem, take_rows
from probe.probing.select_l2 import ROUGH, LogisticPath, select_l2
from probe.probing.settings import LossChoice, SolverSettings
from probe.solve.logistic import SAME_HEAD, LogisticSolver
from probe.solve.solution import LinearSolution

PLAIN = LossChoice("erm")
RAREST = 1e-3  # the least effective frequency of a class: its logarithm must be finite


# A head of all rows is a good start for a fold's, but it has seen what the fold holds out. f is l2-strongly
# convex: a solve to a gap of tol x f ends within sqrt(tol f / penalty) of the fold's own head, as a share of
# its length. Where no tolerance that float32 knows brings that down to CLOSE, the start is zero.
CLOSE = 0.02
FINEST = 1e-6


def _unseen_tol(near: LinearSolution) -> float:
    """The tolerance at which nothing of a start is left that would show."""
    penalty = near.l2 / 2 * near.weight.double().square().sum().item()
    return CLOSE**2 * penalty / near.objective if near.objective > 0 else 0.0


def held_out_probabilities(
    problem: ProbeProblem, l2: float, near: LinearSolution | None = None
) -> FitPredict:
    """`fit_predict` for `probe.evaluation.groups.crossfit`: the plain probe with this l2.

    It begins at `near`, which may have seen what is held out, where that can be forgotten.
    """
    tol = ROUGH
    if near is not None:
        tol = min(SAME_HEAD, _unseen_tol(near))
        if tol < FINEST:
            near, tol = None, ROUGH

    def fit_predict(images: NDArray[np.int64], holdout: NDArray[np.int64]) -> NDArray[np.floating]:
        rows = problem.rows(images)
        X, y, weights = take_rows(problem.X, rows), problem.y[rows], problem.weights(rows)
        plain = LogisticSolver(X, y, problem.num_classes, sample_weight=weights, basis=problem.basis)
        [solution] = plain.path([l2], init=near, tol=tol, judged=False)
        return F.softmax(problem.logits(solution, holdout), dim=1).numpy()

    return fit_predict


def effective_frequency(
    problem: ProbeProblem, solver: SolverSettings, holdout: NDArray[np.int64]
) -> list[float]:
    """K effective frequencies (Classes Are Not Equal, eq. 11).

    EF(c) is the mean probability that a plain probe gives class c on samples of class c that it has not seen;
    cross-fitting lets every training row be such a sample once.
    """
    path = LogisticPath(problem, lambda rows: problem.loss(PLAIN, rows))
    l2 = select_l2(problem, solver, holdout, path)["l2"]
    held_out = held_out_probabilities(problem, l2, path.solved.get(l2))
    _, own = groups.crossfit(problem.labels, problem.num_classes, held_out)
    return np.maximum(own, RAREST).tolist()
