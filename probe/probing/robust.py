"""Distributionally robust probes, solved exactly: the smoothed worst class.

    minimise  N/t log( 1/K sum_k exp(t L_k) ) + l2/2 |W|²,      L_k = mean CE of class k (plus a constant)

is within N log(K)/t of N max_k L_k. It is the saddle point of a weighted logistic regression over class
weights q on the simplex,

    max_q min_W  N sum_k q_k L_k - N/t KL(q | uniform) + l2/2 |W|²,

concave in q: each round solves the inner problem (warm-started) and moves log q towards t L. The difference
of the two values bounds how far both are from the optimum, so the end is certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.errors import UserError
from probe.losses.base import Loss, WorstClass
from probe.solve.basis import Basis
from probe.solve.inputs import BLOCK
from probe.solve.logistic import MAX_ITER, LogisticSolver
from probe.solve.solution import LinearSolution

TOL = 1e-4  # certified relative excess of the objective
MAX_ROUNDS = 100
INNER, INNER_ROUGH = 1e-2, 1e-1  # of it: the excess of the inner problems, judged or not


@dataclass(frozen=True)
class Round:
    """The inner solution for one q, and the values that enclose the optimum."""

    log_q: Tensor  # of each class, or other group; -inf where it has no rows
    losses: Tensor  # mean cross-entropies, with the loss's offset
    solution: LinearSolution
    lower: float
    upper: float

    @classmethod
    def of(cls, log_q: Tensor, plain: Tensor, n: float, worst: WorstClass, solution: LinearSolution) -> Round:
        """From the mean cross-entropies `plain` of the classes, or groups, under the inner solution; all rows
        together weigh n."""
        q, t, present = log_q.exp(), worst.sharpness, log_q.isfinite()
        k = math.log(int(present.sum()))
        raised = plain + worst.offset.double()
        penalty = solution.objective - n * float((q * plain).sum())
        spread = float((q * torch.where(present, log_q + k, 0)).sum()) / t
        smooth = (torch.logsumexp(t * raised[present], 0) - k) / t
        lower = penalty + n * (float((q * raised).sum()) - spread)
        return cls(log_q, raised, solution, lower, penalty + n * float(smooth))

    @property
    def settled(self) -> float:
        return (self.upper - self.lower) / max(abs(self.upper), 1e-12)


def saddle(
    at: Callable[[Tensor, LinearSolution | None], Round],
    start: Tensor,
    loss: Loss,
    worst: WorstClass,
    *,
    tol: float = TOL,
    max_rounds: int = MAX_ROUNDS,
) -> Round:
    """The saddle point, from log q `start` on; `at(log_q, init)` solves the inner problem."""
    best, step = at(start, None), 1.0
    for _ in range(max_rounds):
        if best.settled <= tol:
            return best
        present = best.log_q.isfinite()
        towards = torch.where(present, worst.sharpness * best.losses - best.log_q, 0)
        new = at(torch.log_softmax(best.log_q + step * towards, 0), best.solution)
        # The lower value is concave in q: a step that does not raise it was too long.
        if new.lower > best.lower:
            best, step = new, min(1.0, 1.5 * step)
        else:
            step /= 2
    raise UserError(
        f"{loss.name} did not settle in {max_rounds} rounds (sharpness {worst.sharpness:g}): lower sharpness"
    )


def settle(
    loss: Loss,
    X: Any,
    y: Any,
    *,
    l2: float,
    sample_weight: Any = None,
    basis: Basis | None = None,
    tol: float = TOL,
    max_rounds: int = MAX_ROUNDS,
) -> LinearSolution | None:
    """Move a robust loss's class weights to the saddle point: then `loss.adjustment()` is its exact problem,
    which begins best where the saddle point ended.

    `X` are N x D features, `y` N labels. Other losses know their adjustment beforehand
    and are left as they are.

    >>> near = settle(loss, X, y, l2=1.0, basis=basis)
    >>> solution = logistic.fit(X, y, 37, l2=1.0, adjustment=loss.adjustment(), basis=basis, init=near)
    """
    if loss.worst_class() is None:
        return None
    solver = LogisticSolver(X, y, loss.num_classes, sample_weight=sample_weight, basis=basis)
    return settle_on(solver, loss, l2=l2, tol=tol, max_rounds=max_rounds)


def settle_on(
    solver: LogisticSolver,
    loss: Loss,
    *,
    l2: float,
    tol: float = TOL,
    max_rounds: int = MAX_ROUNDS,
    judged: bool = True,
) -> LinearSolution | None:
    """The same on the rows of a solver, whatever its own adjustment is; see its `path` for `judged`."""
    worst = loss.worst_class()
    if worst is None:
        return None
    inner = _Inner(solver, loss, worst, l2, tol * (INNER if judged else INNER_ROUGH), judged)
    return saddle(inner.at, inner.start, loss, worst, tol=tol, max_rounds=max_rounds).solution


class _Inner:
    """The weighted problem over class weights q."""

    def __init__(
        self, solver: LogisticSolver, loss: Loss, worst: WorstClass, l2: float, tol: float, judged: bool
    ) -> None:
        self.solver, self.loss, self.worst, self.l2, self.tol = solver, loss, worst, l2, tol
        self.judged = judged
        weight = (
            torch.ones(len(solver.labels), dtype=torch.float64) if solver.weight is None else solver.weight
        )
        self.size = torch.bincount(solver.labels, weights=weight, minlength=loss.num_classes)
        own = solver.features.share.mine
        self.y, self.weight = own(solver.labels), own(weight)
        self.present = self.size > 0
        self.start = torch.where(self.present, -math.log(int(self.present.sum())), -torch.inf).double()

    def at(self, log_q: Tensor, init: LinearSolution | None) -> Round:
        loss, n = self.loss, float(self.size.sum())
        self.worst.set_weights(log_q.exp(), self.size)
        solver = self.solver.adjusted(loss.adjustment())
        [solution] = solver.solve([self.l2], init=init, tol=self.tol, max_iter=MAX_ITER, judged=self.judged)
        plain = self._sums(solution) / self.size.clamp(min=1e-300)
        return Round.of(log_q, plain, n, self.worst, solution)

    def _sums(self, solution: LinearSolution) -> Tensor:
        """K: the weighted cross-entropies of each class's rows, added up."""
        sums, features, device = torch.zeros_like(self.size), self.solver.features, solution.device
        head = [t.to(device) for t in (solution.bias, solution.weight)]
        for start, block in features.blocks(BLOCK, head[0].dtype, device):
            part = slice(start, start + len(block))
            scores = torch.addmm(head[0], block, head[1].T).cpu().double()
            losses = F.cross_entropy(scores, self.y[part], reduction="none") * self.weight[part]
            sums.index_add_(0, self.y[part], losses)
        return features.share.total(sums)[0]
