"""Which optimiser works when.

Rows that are streamed: L-BFGS to the end. Rows in memory: L-BFGS until the optimum is near, because its
iterations cost least and bear any start, and on to the end where it is quick, as along a path; else Newton's
method, whose blocks of rows are dear to make and then shorten what is left to a third or less. In the end
float64 judges every solution, and finishes it if need be.

Where `rough` has the rows in fewer bits, the way there from afar is its work, and so are Newton's Hessians:
such products take half the time or less, and what they round off, the last steps and the certificate do not.
A start that is near is better than rounded gradients can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from probe.solve import certificate, lbfgs, newton
from probe.solve.certificate import Outcome, gap, hessian_diagonal, sum_zero
from probe.solve.lbfgs import Memory, minimise
from probe.solve.objective import Evaluator, Resident

NEAR = 0.1  # relative gap from which on Newton's method may take over
GRACE = 6  # iterations of L-BFGS from there on, after which its pace is known
MOST = 150  # iterations of Newton's method, many more than it should need: L-BFGS goes on then
WORTH = 40  # iterations left at that pace, from which on Newton's method takes less time
ROUGH = 1e-3  # relative gap that rounded gradients still tell
FAR = 10 * ROUGH  # and one from which on they lead there in less time
HALVED = 0.5  # of a gap: more may not be left by a step whose Hessian is rounded
PATIENCE = 3  # iterations without progress after which they tell no more


@dataclass
class Schedule:
    """B problems that differ in l2, to be solved by `fast` and judged by `judge`."""

    fast: Evaluator
    judge: Evaluator
    spectrum: Tensor  # r
    l2s: Sequence[float]  # B
    size: int  # rows of Newton's blocks; 0: no Newton
    max_iter: int
    memory: Memory
    rough: Resident | None = None  # like `fast`, with the rows in fewer bits
    watch: Callable[[float, float], object] | None = None

    def solve(self, theta: Tensor, goal: float, tol: float | None) -> list[Outcome]:
        """From B x K x (r + 1) to relative gaps of `goal` by `fast`, and `tol` by the judge (None: none)."""
        found = [Outcome(one, 0.0, math.inf, 0, "") for one in theta]
        in_memory = isinstance(self.fast, Resident) and self.size > 0
        if in_memory:
            pace = _Pace(goal)
            if self.rough is not None and self._far(theta):
                before = self.memory
                found = self._lbfgs(self.rough, found, max(goal, ROUGH), pace.slow, PATIENCE)
                if any(one.status == "stalled" for one in found):  # among gradients that are mostly rounding
                    self.memory, pace = before, _Pace(goal)
                found = [replace(one, gap=math.inf, status="") for one in found]
            if not pace.is_slow:
                found = self._lbfgs(self.fast, found, goal, pace.slow)
            found = self._newton(self.fast, found, goal)
            if any(one.status == "iterations" for one in found):
                found = self._lbfgs(self.fast, found, goal)
        else:
            found = self._lbfgs(self.fast, found, goal)
        if tol is None:
            return found
        unjudged = [replace(one, gap=math.inf) for one in found]
        if in_memory:
            found = self._newton(self.judge, unjudged, tol)
            if all(one.status == "converged" for one in found):
                return found
            unjudged = found
        return self._lbfgs(self.judge, unjudged, tol)

    def _far(self, theta: Tensor) -> bool:
        """Is the best start still so far away that rounded gradients tell the way?"""
        l2 = torch.tensor(self.l2s, dtype=torch.float64, device=theta.device)
        point = self.fast.at(sum_zero(theta).to(self.fast.dtype), l2)
        variances = torch.cat([self.spectrum, self.spectrum.new_ones(1)]).to(self.fast.dtype)
        diagonal = hessian_diagonal(point.curvature, variances, l2)
        value, left = self.fast.share.agreed(point.value, gap(point, diagonal, l2))
        return certificate.holds((left > FAR * value).all())

    def _lbfgs(
        self,
        evaluator: Evaluator,
        found: list[Outcome],
        tol: float,
        give_up: Callable[[float], bool] | None = None,
        patience: int = lbfgs.STALL,
    ) -> list[Outcome]:
        """All problems together."""
        left = self.max_iter - max(one.iterations for one in found)
        theta = torch.stack([one.theta for one in found])
        ended, self.memory = minimise(
            evaluator,
            self.spectrum,
            theta,
            torch.tensor(self.l2s, dtype=torch.float64, device=theta.device),
            tol=tol,
            max_iter=left,
            memory=self.memory,
            watch=self.watch,
            give_up=give_up,
            stall=patience,
        )
        return [_after(before, now) for before, now in zip(found, ended, strict=True)]

    def _newton(self, evaluator: Evaluator, found: list[Outcome], tol: float) -> list[Outcome]:
        """Each problem that has something left to do, and that rounding has not ended, by itself."""
        assert isinstance(self.fast, Resident)
        ended = []
        for one, l2 in zip(found, self.l2s, strict=True):
            if one.gap > tol * one.value and not (one.status == "stalled" and evaluator is self.fast):
                one = self._finished(evaluator, self.rough or self.fast, one, l2, tol)
                if one.status != "converged" and self.rough is not None:
                    self.rough = None  # what it rounds off is what bends these problems
                    one = self._finished(evaluator, self.fast, one, l2, tol)
            ended.append(one)
        return ended

    def _finished(self, evaluator: Evaluator, bent: Resident, one: Outcome, l2: float, tol: float) -> Outcome:
        """By Newton's method, with the Hessians of `bent`."""
        now = newton.finish(
            evaluator,
            bent,
            self.spectrum,
            one.theta,
            l2,
            size=self.size,
            tol=tol,
            max_iter=min(MOST, self.max_iter - one.iterations),
            least=math.inf if bent is self.fast else HALVED,
            watch=self.watch,
        )
        return _after(one, now)


class _Pace:
    """Of L-BFGS near the optimum, by the relative gaps of its iterations."""

    def __init__(self, goal: float) -> None:
        self.goal, self.best = goal, [math.inf]  # and the least gap so far, of each iteration
        self.is_slow = False

    def slow(self, ratio: float) -> bool:
        """Would it take long to the goal?"""
        if ratio > NEAR and len(self.best) == 1:
            return False
        self.best.append(min(ratio, self.best[-1]))
        done = len(self.best) - 2
        if done < GRACE or self.best[-1] <= self.goal or self.goal == 0:
            return False
        pace = math.log(self.best[1] / self.best[-1]) / done
        self.is_slow = math.log(self.best[-1] / self.goal) > WORTH * pace
        return self.is_slow


def _after(before: Outcome, now: Outcome) -> Outcome:
    return replace(now, iterations=before.iterations + now.iterations)
