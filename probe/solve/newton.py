"""Newton's method for rows in memory, each step by conjugate gradients.

L-BFGS needs 20 to 40 iterations for every digit where the penalty is weak, because one diagonal for all
classes is a poor picture of the Hessian. With `ClassBlocks` as the preconditioner conjugate gradients need 3
to 10, and each of their iterations is as much work: two products of the features. This pays near the optimum,
where a few blocks serve until the end.

What is solved and what bends may be of two precisions: values and gradients that are streamed in float64, on
the Hessian of float32 rows in memory, end at a float64 solution after one or two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probe.solve import certificate
from probe.solve.certificate import Outcome, Progress, gap, hessian_diagonal, sum_zero
from probe.solve.class_blocks import ClassBlocks
from probe.solve.line_search import along
from probe.solve.objective import Evaluator, Hessian, Resident, dot

STALL = 2  # steps without measurable progress, after which precision is exhausted
# A step is solved until an iteration gains no more than a share of their mean: half the root of the relative
# gap, as long as that is neither too much to be worth a step nor below what float32 can tell.
LOOSEST, TIGHTEST = 0.25, 1e-2
INNER = 40  # iterations of a step, at most: more is rounding
SPARE = 0.3  # of the tolerance: what the quadratic model may leave of it
MOVED = 0.3  # relative change of the classes' curvature from which on blocks are made anew


def finish(
    evaluator: Evaluator,
    resident: Resident,
    spectrum: Tensor,
    theta: Tensor,
    l2: float,
    *,
    size: int,
    tol: float,
    max_iter: int,
    least: float = math.inf,
    watch: Callable[[float, float], object] | None = None,
) -> Outcome:
    """Solve one problem from a `theta` (K x (r + 1)) that is near: `evaluator` says what f and its gradient
    are, `resident` has the rows; blocks have `size` of them. The certificate is that of `lbfgs.minimise`.

    Where two steps in a row leave more than `least` of the smallest gap so far, it has stalled.
    """
    dtype, share = evaluator.dtype, evaluator.share
    strength = torch.tensor([l2], dtype=torch.float64, device=spectrum.device)
    variances = torch.cat([spectrum, spectrum.new_ones(1)]).to(resident.dtype)
    (theta,) = share.agreed(sum_zero(theta)[None].to(dtype))
    point = evaluator.at(theta, strength)
    progress = Progress(strength, dtype, STALL)
    blocks, made_at, spent = None, torch.zeros_like(point.curvature), 0
    smallest, idle = math.inf, 0
    while True:
        diagonal = hessian_diagonal(point.curvature, variances.to(dtype), strength)
        value, left = share.agreed(point.value, gap(point, diagonal, strength))
        ratio = certificate.number(left / value)
        idle = 0 if ratio <= least * smallest else idle + 1
        smallest = min(smallest, ratio)
        stuck = progress.note(value, left) | (idle >= STALL)
        (word,) = certificate.status(left <= tol * value, stuck, spent >= max_iter)
        if watch is not None:
            watch(ratio, tol)
        if word:
            return Outcome.of(point, 0, left, spent, word)
        logits = resident.logits(point.theta.to(resident.dtype)) if point.logits is None else point.logits
        hessian = resident.hessian(logits[0], l2)
        if blocks is None or _far(point.curvature, made_at):
            blocks, made_at = ClassBlocks.of(hessian, variances, size), point.curvature
        share_of_gain = min(LOOSEST, max(TIGHTEST, math.sqrt(ratio) / 2))
        enough = 2 * l2 * SPARE * tol * certificate.number(value)
        gradient = point.gradient[0].to(resident.dtype)
        step, used = _newton_step(hessian, blocks, gradient, share_of_gain, enough, max_iter - spent)
        spent += used
        (direction,) = share.agreed(step[None].to(dtype))
        (slope,) = share.agreed(dot(point.gradient, direction))
        if certificate.holds(~(slope < 0)):
            return Outcome.of(point, 0, left, spent, "stalled")
        point = along(evaluator, point, direction, slope, strength)


def _far(curvature: Tensor, before: Tensor) -> bool:
    return certificate.holds((curvature - before).abs().sum() > MOVED * before.sum())


def _newton_step(
    hessian: Hessian, blocks: ClassBlocks, gradient: Tensor, share_of_gain: float, enough: float, most: int
) -> tuple[Tensor, int]:
    """-H^-1 g, roughly, and the iterations that it took.

    It ends where an iteration gains no more than a share of what one has gained on average (Nash and Sofer),
    or where the squared gradient that is left, of the weights, is `enough`.
    """
    step, left = torch.zeros_like(gradient), -gradient
    direction = blocks.solve(left)
    size, gained = _inner(left, direction, hessian), 0.0
    for iteration in range(1, min(INNER, most) + 1):
        bent = hessian(direction)
        bend = _inner(direction, bent, hessian)
        if not (bend > 0 and size > 0):  # rounding has used up what the gradient says
            break
        length = size / bend
        step, left = step + length * direction, left - length * bent
        gained += length * size
        weights = left[:, :-1]
        if iteration * length * size <= share_of_gain * gained or _inner(weights, weights, hessian) <= enough:
            break
        q = blocks.solve(left)
        size, before = _inner(left, q, hessian), size
        direction = q + size / before * direction
    return step, iteration


def _inner(a: Tensor, b: Tensor, hessian: Hessian) -> float:
    return certificate.number(hessian.share.agreed(dot(a[None], b[None]))[0])
