"""L-BFGS for several convex problems at once, preconditioned, with a certified stop.

Where rows are streamed, it solves the problem; where they are in memory, it leads to where the quadratic
model is good, and `probe.solve.newton` takes over.

Memory. Pairs are kept as (step, change of the *loss* gradient); the penalty's share, l2 x step, is added when
they are used. A pair therefore stays exact for another l2, and a path passes its memory from value to value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from probe.solve import certificate
from probe.solve.certificate import Outcome, Progress, gap, hessian_diagonal, sum_zero
from probe.solve.line_search import along
from probe.solve.objective import Evaluator, Point, dot

PAIRS = 8  # steps remembered; more do not shorten the runs on real features
STALL = 10  # iterations without measurable progress, after which precision is exhausted
FLATTEST = 1e-12  # cosine of step and change of gradient below which a pair is rounding, and not curvature


@dataclass
class Memory:
    """The last steps and what they did to the gradient of the loss."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each B x K x (r + 1)

    def add(self, step: Tensor, change: Tensor) -> None:
        """One more pair; the oldest is forgotten."""
        self.pairs = [*self.pairs[-(PAIRS - 1) :], (step, change)]

    def map(self, f: Callable[[Tensor], Tensor]) -> Memory:
        """Another dtype, device or choice of the B problems."""
        return Memory([(f(s), f(c)) for s, c in self.pairs])

    def direction(self, gradient: Tensor, diagonal: Tensor, l2: Tensor) -> Tensor:
        """-H^-1 g by the two-loop recursion around the diagonal `diagonal`."""
        q, used = gradient, []
        slope = _penalised(l2, gradient)
        for step, change in reversed(self.pairs):
            y = change + slope * step
            sy = _inner(step, y)
            rho = torch.where(sy > FLATTEST * _inner(step, step).sqrt() * _inner(y, y).sqrt(), 1 / sy, 0.0)
            alpha = rho * _inner(step, q)
            q = q - alpha * y
            used.append((step, y, rho, alpha))
        q = _scaled(q, diagonal)
        if used:
            step, y, rho, _ = used[0]
            size = 1 / (rho * _inner(y, _scaled(y, diagonal)))
            q = q * torch.where((rho > 0) & size.isfinite(), size, 1.0)
        for step, y, rho, alpha in reversed(used):
            q = q + (alpha - rho * _inner(y, q)) * step
        return -q


def minimise(
    evaluator: Evaluator,
    spectrum: Tensor,
    theta: Tensor,
    l2: Tensor,
    *,
    tol: float,
    max_iter: int,
    memory: Memory,
    watch: Callable[[float, float], object] | None = None,
    give_up: Callable[[float], bool] | None = None,
    stall: int = STALL,
) -> tuple[list[Outcome], Memory]:
    """Solve the B problems of `l2` from `theta` (B x K x (r + 1)); `spectrum` are the basis's r variances.

    A problem is solved when its certified gap is at most `tol` of its value. The memory returned holds all B
    problems and can be passed on. `watch` is told the largest relative gap of an iteration, and `tol`;
    `give_up` is told it too, and says whether this shall be the last one. `stall` is how many iterations
    without measurable progress end it.
    """
    dtype, share = evaluator.dtype, evaluator.share
    (theta,) = share.agreed(theta - theta.mean(dim=1, keepdim=True))
    point = evaluator.at(theta.to(dtype), l2)
    memory = memory.map(lambda t: t.to(dtype))
    spectrum = torch.cat([spectrum, spectrum.new_ones(1)]).to(dtype)
    progress = Progress(l2, dtype, stall)
    alive = list(range(len(l2)))
    outcomes: dict[int, Outcome] = {}
    kept: dict[int, Memory] = {}
    for iteration in range(max_iter + 1):
        diagonal = hessian_diagonal(point.curvature, spectrum, l2)
        value, left = share.agreed(point.value, gap(point, diagonal, l2))
        ratio = certificate.number((left / value).max())
        last = iteration == max_iter or (give_up is not None and give_up(ratio))
        words = certificate.status(left <= tol * value, progress.note(value, left), last)
        if watch is not None:
            watch(ratio, tol)
        for i, word in enumerate(words):
            if word:
                row = alive[i]
                outcomes[row] = Outcome.of(point, i, left, iteration, word)
                kept[row] = memory.map(lambda t, i=i: t[i])  # type: ignore[misc]
        on = torch.tensor([i for i, word in enumerate(words) if not word], device=l2.device)
        if not len(on):
            break
        if len(on) < len(alive):
            alive = [row for row, word in zip(alive, words, strict=True) if not word]
            l2, point, diagonal = l2[on], point.keep(on), diagonal[on]
            memory = memory.map(lambda t, on=on: t[on])  # type: ignore[misc]
            progress.keep(on)
        new = _step(evaluator, point, diagonal, l2, memory)
        step = new.theta - point.theta
        memory.add(step, new.gradient - point.gradient - _penalised(l2, step) * step)
        point = new
    order = range(len(outcomes))
    return [outcomes[i] for i in order], _stack([kept[i] for i in order])


def _step(evaluator: Evaluator, point: Point, diagonal: Tensor, l2: Tensor, memory: Memory) -> Point:
    (direction,) = evaluator.share.agreed(memory.direction(point.gradient, diagonal, l2))
    (slope,) = evaluator.share.agreed(dot(point.gradient, direction))
    uphill = ~(slope < 0)
    if certificate.holds(uphill.any()):
        # rounding spoilt the memory: fall back on the preconditioned gradient
        plain = -_scaled(point.gradient, diagonal)
        direction = torch.where(uphill.view(-1, 1, 1), plain, direction)
        slope = dot(point.gradient, direction)
    return along(evaluator, point, direction, slope, l2)


def _scaled(gradient: Tensor, diagonal: Tensor) -> Tensor:
    """The preconditioned gradient."""
    return sum_zero(gradient / diagonal)


def _penalised(l2: Tensor, like: Tensor) -> Tensor:
    """l2 for weights and 0 for the bias, B x 1 x (r + 1)."""
    row = l2.to(like).view(-1, 1, 1).repeat(1, 1, like.shape[-1])
    row[..., -1] = 0
    return row


def _inner(a: Tensor, b: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(a.flatten(1), b.flatten(1))
    return products.view(-1, 1, 1)


def _stack(memories: list[Memory]) -> Memory:
    """Problems that ended at different times, side by side again; the latest pairs that all have."""
    shared = min((len(m.pairs) for m in memories), default=0)
    if not shared:
        return Memory()
    steps = [torch.stack([m.pairs[-i][0] for m in memories]) for i in range(shared, 0, -1)]
    changes = [torch.stack([m.pairs[-i][1] for m in memories]) for i in range(shared, 0, -1)]
    return Memory(list(zip(steps, changes, strict=True)))
