"""L-BFGS for several convex problems at once, preconditioned, with a certified stop.

Stop. f is l2-strongly convex in W, and |df/dW|² / (2 l2) is at once the duality gap of the natural dual
point: an upper bound of f - f*, not a guess (the bias, which is free, adds its Newton decrement). A problem
is solved when the bound is below tol x f; on real features it is 2 to 5 times the true excess.

Memory. Pairs are kept as (step, change of the *loss* gradient); the penalty's share, l2 x step, is added when
they are used. A pair therefore stays exact for another l2, and a path passes its memory from value to value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from probe.core.row_share import RowShare
from probe.solve.objective import Evaluator, Line, Point, dot

PAIRS = 8  # steps remembered; more do not shorten the runs on real features
STALL = 10  # iterations without measurable progress, after which precision is exhausted
MEASURABLE = {torch.float32: 1e-7, torch.float64: 1e-13}  # relative fall of f that rounding cannot explain
FLATTEST = 1e-12  # cosine of step and change of gradient below which a pair is rounding, and not curvature

# The line search. c1 is the textbook's (Nocedal and Wright, ch. 3); c2 is the evaluator's `patience`.
C1 = 1e-4  # sufficient decrease: at least this share of what the slope at 0 promises
SLACK = 4  # roundings of f that sufficient decrease may be missed by: near the optimum f cannot tell
TRIALS = 30  # values of t; a bracket that is halved so often is narrower than float32 can step
MARGIN = 0.1  # of the bracket, at both ends: a secant that lands there hardly narrows it, so bisect instead
DOUBLE, FARTHEST = 2.0, 5.0  # outside a bracket: step without a usable secant, and how far to trust one

# The Hessian's diagonal. A class that no sample is unsure about has curvature 0, and would get endless steps.
LEAST_CURVATURE = 1e-4  # of the mean over classes
TINY = 1e-30  # and if all classes are flat: the diagonal is divided by


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
        q = _preconditioned(q, diagonal)
        if used:
            step, y, rho, _ = used[0]
            size = 1 / (rho * _inner(y, _preconditioned(y, diagonal)))
            q = q * torch.where((rho > 0) & size.isfinite(), size, 1.0)
        for step, y, rho, alpha in reversed(used):
            q = q + (alpha - rho * _inner(y, q)) * step
        return -q


@dataclass
class LbfgsResult:
    """One solved problem."""

    theta: Tensor  # K x (r + 1)
    value: float
    gap: float  # certified: value - optimum is not more
    iterations: int
    status: str  # "converged" | "stalled" (no measurable progress left) | "iterations" (limit reached)


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
) -> tuple[list[LbfgsResult], Memory]:
    """Solve the B problems of `l2` from `theta` (B x K x (r + 1)); `spectrum` are the basis's r variances.

    A problem is solved when its certified gap is at most `tol` of its value. The memory returned holds all B
    problems and can be passed on. `watch` is told the largest relative gap of an iteration, and `tol`.
    """
    dtype, share = evaluator.dtype, evaluator.share
    (theta,) = share.agreed(theta - theta.mean(dim=1, keepdim=True))
    point = evaluator.at(theta.to(dtype), l2)
    memory = memory.map(lambda t: t.to(dtype))
    spectrum = torch.cat([spectrum, spectrum.new_ones(1)]).to(dtype)
    progress = _Progress(len(l2), l2.device, rate=MEASURABLE[dtype])
    alive = list(range(len(l2)))
    outcomes: dict[int, LbfgsResult] = {}
    kept: dict[int, Memory] = {}
    for iteration in range(max_iter + 1):
        diagonal = _diagonal(point, spectrum, l2)
        value, gap = share.agreed(point.value, _gap(point, diagonal, l2))
        status = _status(gap <= tol * value, progress.note(value, gap), iteration == max_iter)
        if watch is not None:
            watch(number((gap / value).max()), tol)
        for i, word in enumerate(status):
            if word:
                row = alive[i]
                outcomes[row] = LbfgsResult(
                    point.theta[i], number(point.value[i]), number(gap[i]), iteration, word
                )
                kept[row] = memory.map(lambda t, i=i: t[i])  # type: ignore[misc]
        on = torch.tensor([i for i, word in enumerate(status) if not word], device=l2.device)
        if not len(on):
            break
        if len(on) < len(alive):
            alive = [row for row, word in zip(alive, status, strict=True) if not word]
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
    if holds(uphill.any()):  # rounding spoilt the memory: fall back on the preconditioned gradient
        plain = -_preconditioned(point.gradient, diagonal)
        direction = torch.where(uphill.view(-1, 1, 1), plain, direction)
        slope = dot(point.gradient, direction)
    line = evaluator.line(point, direction, l2)
    slack = SLACK * torch.finfo(evaluator.dtype).eps * point.value.abs()
    return line.take(search(_Agreed(line, evaluator.share), point.value, slope, slack, evaluator.patience))


class _Agreed:
    """A line whose values are process 0's, so that the search takes the same turns everywhere."""

    def __init__(self, line: Line, share: RowShare) -> None:
        self.line, self.share, self.take = line, share, line.take

    def value(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = self.share.agreed(*self.line.value(t))
        return value, slope


def holds(condition: Tensor) -> bool:
    """The only place besides `_status` where numbers decide what is done next."""
    return bool(condition)


def number(value: Tensor) -> float:
    """The only place where they leave the device."""
    return float(value)


def search(line: Line, value: Tensor, slope: Tensor, slack: Tensor, patience: float) -> Tensor:
    """Steps t > 0 that meet the strong Wolfe conditions (0 where none does), for B convex functions.

    `value` and `slope` (B each) are those at t = 0. The root of the slope is bracketed and approached by the
    secant; the first guess is Newton's t = 1.
    """
    low, low_slope = torch.zeros_like(value), slope
    high, high_slope = torch.full_like(value, torch.inf), torch.full_like(value, torch.nan)
    t, done = torch.ones_like(value), torch.zeros_like(value, dtype=torch.bool)
    for _ in range(TRIALS):
        f, s = line.value(t)
        lower = f <= value + C1 * t * slope + slack
        done |= lower & (s.abs() <= patience * slope.abs())
        if holds(done.all()):
            return t
        beyond = ~lower | (s > 0)
        secant = low - low_slope * (t - low) / (s - low_slope)
        high, high_slope = torch.where(beyond, t, high), torch.where(beyond, s, high_slope)
        low, low_slope = torch.where(beyond, low, t), torch.where(beyond, low_slope, s)
        width = high - low
        inside = low - low_slope * width / (high_slope - low_slope)
        trusted = inside.isfinite() & (inside > low + MARGIN * width) & (inside < high - MARGIN * width)
        inside = torch.where(trusted, inside, low + width / 2)
        outside = torch.where(secant > t, torch.minimum(secant, FARTHEST * t), DOUBLE * t)
        t = torch.where(done, t, torch.where(high.isfinite(), inside, outside))
    t = torch.where(done, t, torch.where(line.value(low)[0] < value, low, 0.0))
    line.value(t)
    return t


class _Progress:
    """Counts iterations in which neither the value fell by more than rounding could explain nor the gap by
    half: near the optimum the gap still tells progress when the value cannot."""

    def __init__(self, size: int, device: torch.device, *, rate: float) -> None:
        self.value = torch.full((size,), torch.inf, dtype=torch.float64, device=device)
        self.gap, self.idle, self.rate = self.value, torch.zeros_like(self.value), rate

    def note(self, value: Tensor, gap: Tensor) -> Tensor:
        """Which of the problems are stuck."""
        lower, closer = value < self.value * (1 - self.rate), gap < self.gap / 2
        self.value = torch.where(lower, value, self.value)
        self.gap = torch.where(closer, gap, self.gap)
        self.idle = torch.where(lower | closer, 0.0, self.idle + 1)
        return self.idle >= STALL

    def keep(self, which: Tensor) -> None:
        """Only some of the problems."""
        self.value, self.gap, self.idle = self.value[which], self.gap[which], self.idle[which]


def _status(solved: Tensor, stalled: Tensor, last: bool) -> list[str]:
    words = []
    for ok, stuck in zip(solved.tolist(), stalled.tolist(), strict=True):
        words.append("converged" if ok else "stalled" if stuck else "iterations" if last else "")
    return words


def _diagonal(point: Point, spectrum: Tensor, l2: Tensor) -> Tensor:
    """The Hessian's diagonal, as `probe.solve.basis` models it (B x K x (r + 1)); no class is flat."""
    bends = point.curvature
    bends = torch.maximum(bends, LEAST_CURVATURE * bends.mean(dim=1, keepdim=True))
    bends = bends.clamp_min(TINY).to(spectrum)
    diagonal = bends.unsqueeze(-1) * spectrum
    diagonal[..., :-1] += l2.to(spectrum).view(-1, 1, 1)
    return diagonal


def _preconditioned(gradient: Tensor, diagonal: Tensor) -> Tensor:
    """The preconditioned gradient, with sum 0 over classes.

    Adding one vector to every class changes no probability: only the penalty bends that way, and a diagonal
    cannot know. Steps that stay in the sum-zero space, where gradients lie and the optimum is, never see it.
    """
    q = gradient / diagonal
    return q - q.mean(dim=1, keepdim=True)


def _gap(point: Point, diagonal: Tensor, l2: Tensor) -> Tensor:
    g = point.gradient.double()
    bias = g[..., -1].square() / diagonal[..., -1]
    return (g[..., :-1].square().sum(dim=(1, 2)) / l2 + bias.sum(dim=1)) / 2


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
