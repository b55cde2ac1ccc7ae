"""The objective of adjusted logistic regression, and its two evaluators.

    f(W, b) = sum_i v_i CE(a_i (W h_i + b) + c_i, y_i) + l2/2 |W|²

B problems that differ in l2 only are evaluated together: their heads are stacked into one matrix product.
Everything is in the coordinates of a `Basis`: theta is B x K x (r + 1), the bias last. Logits are B x K x N:
with the rows last, products and exponentials run along memory whatever the number of classes.

`Resident` keeps rotated rows and logits in memory. Logits are linear in the step, Z + t dZ, so that a line
search costs no matrix product: one forward and one backward product an iteration, whatever the search does.
`Streamed` reads blocks and fuses forward and backward, so that it reads the features once for every
evaluation and never holds N x K numbers; it is also the float64 evaluator that judges every solution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from probe.core.adjustment import ClassAdjustment
from probe.core.row_share import RowShare
from probe.solve.basis import Basis, rows_at_once
from probe.solve.devices import exact_sum
from probe.solve.inputs import FeatureRows

# Logits further below the largest than this are set to it: exp(-60) and exp(-300) add nothing to a sum, and
# are far above the smallest normal number, because arithmetic on denormals is many times slower.
FLOOR = {torch.float32: -60.0, torch.float64: -300.0}


class BlockCrossEntropy:
    """v CE(a z + c) of blocks of logits, with gradient and curvature: what `probe.core.adjustment` declares.

    It is not that module's code because it has B heads at once with the samples last, and because it must
    stay accurate for samples that are fitted to the last digit, where a loss of 1e-20 still has a gradient.
    """

    def __init__(
        self, targets: Tensor, adjustment: ClassAdjustment, sample_weight: Tensor | None, dtype: torch.dtype
    ) -> None:
        def cast(t: Tensor) -> Tensor:
            return t.to(device=targets.device, dtype=dtype)

        self.targets = targets
        self.dtype = dtype
        self.floor = FLOOR[dtype]
        self.shift = None if adjustment.shift is None else cast(adjustment.shift)
        self.scale = None if adjustment.scale is None else cast(adjustment.scale)[targets]
        weight = None if adjustment.weight is None else cast(adjustment.weight)[targets]
        if sample_weight is not None:
            weight = cast(sample_weight) if weight is None else weight * cast(sample_weight)
        self.weight = weight

    def __call__(self, z: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """For B x K x n logits of rows from `start` on: the B sums of losses, df/dz (B x K x n), and the
        curvature sum_i v a² p (1 - p) of every class (B x K)."""
        losses, residual, curvature = self.by_row(z, start)
        total = exact_sum(losses, (1, 2))
        return total, residual, curvature.sum(2).to(total.dtype)  # a model: its digits do not count

    def by_row(self, z: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (B x 1 x n), df/dz and curvature v a² p (1 - p) (both B x K x n), nothing summed."""
        part = slice(start, start + z.shape[2])
        y = self.targets[part].expand(len(z), 1, -1)
        if self.scale is not None:
            z = z * self.scale[part]
        if self.shift is not None:
            z = z + (self.shift[:, None] if self.shift.ndim == 1 else self.shift[self.targets[part]].T)
        top = z.amax(dim=1, keepdim=True)
        e = (z - top).clamp_min_(self.floor).exp_()
        own = e.gather(1, y)
        # 1 - p_y as the sum of the others: no cancellation when p_y rounds to 1
        others = e.scatter_(1, y, 0.0).sum(dim=1, keepdim=True)
        total = own + others
        residual = e.div_(total)
        q = others / total
        losses = torch.where(q < 0.5, -torch.log1p(-q), total.log() + top - z.gather(1, y))
        residual.scatter_(1, y, -q)
        size = residual.abs()
        curvature = size.mul_(1 - size)
        if self.scale is not None:
            residual *= self.scale[part]
            curvature *= self.scale[part].square()
        if self.weight is not None:
            for term in (losses, residual, curvature):
                term *= self.weight[part]
        return losses, residual, curvature

    def probabilities(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """For K x N logits of one problem: p (K x N), and v a² (N; None: all 1). They make d²f/dz²."""
        z = z if self.scale is None else z * self.scale
        if self.shift is not None:
            z = z + (self.shift[:, None] if self.shift.ndim == 1 else self.shift[self.targets].T)
        p = (z - z.amax(dim=0)).clamp_min_(self.floor).exp_()
        p /= p.sum(dim=0)
        bend = None if self.scale is None else self.scale.square()
        if self.weight is not None:
            bend = self.weight if bend is None else bend * self.weight
        return p, bend


@dataclass
class Point:
    """Where the solver stands: B problems side by side."""

    theta: Tensor  # B x K x (r + 1)
    value: Tensor  # B, float64
    gradient: Tensor  # like theta
    curvature: Tensor  # B x K, float64
    logits: Tensor | None = None  # B x K x N, when they are kept

    def keep(self, which: Tensor) -> Point:
        """Only some of the problems."""
        logits = None if self.logits is None else self.logits[which]
        return Point(
            self.theta[which], self.value[which], self.gradient[which], self.curvature[which], logits
        )


class Line(Protocol):
    """f along theta + t d, one t for each of the B problems."""

    def value(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """f(t) and its slope, both B, float64."""

    def take(self, t: Tensor) -> Point:
        """The point at t, which must be the last one that was valued."""


class Evaluator(Protocol):
    """f and its gradient for B problems at once, in one precision."""

    dtype: torch.dtype
    share: RowShare  # of the rows: what is summed over them is summed over processes
    patience: float  # c2 of the curvature condition: how exact a line search is worth its price

    def at(self, theta: Tensor, l2: Tensor) -> Point:
        """The point of B x K x (r + 1) coordinates, one l2 per problem."""

    def line(self, point: Point, direction: Tensor, l2: Tensor) -> Line:
        """f from a point along a direction."""


def penalty(theta: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """l2/2 |W|² (B, float64) and its gradient; the bias is free."""
    gradient = theta * l2.to(theta).view(-1, 1, 1)
    gradient[..., -1] = 0
    return 0.5 * l2 * theta[..., :-1].square().sum(dim=(1, 2), dtype=torch.float64), gradient


def dot(a: Tensor, b: Tensor) -> Tensor:
    """B inner products, in float64."""
    return (a * b).sum(dim=(1, 2), dtype=torch.float64)


def _product(a: Tensor, rows: Tensor) -> Tensor:
    """a @ rows in the precision of the rows, as numbers like those of a."""
    return (a.to(rows.dtype) @ rows).to(a.dtype)


class Resident:
    """Rotated rows and logits in memory.

    `coarse` are the same rows, perhaps in fewer bits, for products whose last digits do not count where
    another evaluator has the last word: changes along a direction, gradients and Hessians. Values are of
    `rows`.
    """

    patience = 0.4  # another value costs N x K operations, against N x D x K for the products

    def __init__(
        self, rows: Tensor, loss: BlockCrossEntropy, share: RowShare, coarse: Tensor | None = None
    ) -> None:
        self.rows, self.loss, self.share = rows, loss, share
        self.coarse = rows if coarse is None else coarse
        self.dtype = rows.dtype

    def at(self, theta: Tensor, l2: Tensor) -> Point:
        return self._point(theta, self.logits(theta), l2)

    def line(self, point: Point, direction: Tensor, l2: Tensor) -> Line:
        return _LogitLine(self, point, direction, l2)

    def logits(self, theta: Tensor) -> Tensor:
        """B x K x N, of B x K x (r + 1) coordinates."""
        return _product(theta.flatten(0, 1), self.rows.T).view(*theta.shape[:2], -1)

    def change(self, direction: Tensor) -> Tensor:
        """That of the logits along a direction."""
        return _product(direction.flatten(0, 1), self.coarse.T).view(*direction.shape[:2], -1)

    def hessian(self, logits: Tensor, l2: float) -> Hessian:
        """d²f where one problem's logits (K x N) are these."""
        p, bend = self.loss.probabilities(logits)
        return Hessian(self.rows, self.coarse, self.loss.targets, p, bend, l2, self.share)

    def _point(self, theta: Tensor, logits: Tensor, l2: Tensor) -> Point:
        sums, residual, curvature = self.loss(logits)
        return self.finish(theta, logits, l2, self.share.total(sums)[0], residual, curvature)

    def finish(
        self, theta: Tensor, logits: Tensor, l2: Tensor, sums: Tensor, residual: Tensor, curvature: Tensor
    ) -> Point:
        """The point of these coordinates and logits; the loss of all rows is known: one backward product."""
        amount, gradient = penalty(theta, l2)
        backward = _product(residual.flatten(0, 1), self.coarse).view_as(theta)
        backward, curvature = self.share.total(backward, curvature)
        gradient += backward
        return Point(theta, sums + amount, gradient, curvature, logits)


@dataclass(frozen=True)
class Hessian:
    """d²f of one problem whose rows are in memory."""

    rows: Tensor  # N x (r + 1)
    coarse: Tensor  # the same for its products: see `Resident`
    targets: Tensor  # N
    p: Tensor  # K x N, probabilities
    bend: Tensor | None  # N, v a²; None: all 1
    l2: float
    share: RowShare

    def __call__(self, direction: Tensor) -> Tensor:
        """Its product with a direction (K x (r + 1)): as much work as a gradient."""
        z = _product(direction, self.coarse.T)
        # against the row's own class, so that nothing cancels where p_y rounds to 1
        z = z.sub_(z.gather(0, self.targets.unsqueeze(0)))
        mean = (self.p * z).sum(dim=0)
        z = z.sub_(mean).mul_(self.p)
        if self.bend is not None:
            z *= self.bend
        bent, amount = self.share.total(_product(z, self.coarse))[0], self.l2 * direction
        amount[:, -1] = 0
        return bent + amount

    def by_row(self) -> Tensor:
        """K x N: how much each row bends each class, v a² p (1 - p)."""
        y = self.targets.unsqueeze(0)
        others = self.p.scatter(0, y, 0.0).sum(dim=0, keepdim=True)  # 1 - p_y, without cancellation
        bends = (self.p * (1 - self.p)).scatter_(0, y, self.p.gather(0, y) * others)
        return bends if self.bend is None else bends * self.bend


class _LogitLine:
    def __init__(self, evaluator: Resident, point: Point, direction: Tensor, l2: Tensor) -> None:
        assert point.logits is not None
        self.evaluator, self.point, self.direction, self.l2 = evaluator, point, direction, l2
        self.change = evaluator.change(direction)
        w, d = point.theta[..., :-1], direction[..., :-1]
        self.square, self.cross, self.length = dot(w, w), dot(w, d), dot(d, d)

    def value(self, t: Tensor) -> tuple[Tensor, Tensor]:
        assert self.point.logits is not None
        self.logits = self.point.logits + self.change * t.to(self.change).view(-1, 1, 1)
        sums, residual, curvature = self.evaluator.loss(self.logits)
        sums, slope = self.evaluator.share.total(sums, dot(residual, self.change))
        self.terms = sums, residual, curvature
        amount = 0.5 * self.l2 * (self.square + t * (2 * self.cross + t * self.length))
        return sums + amount, slope + self.l2 * (self.cross + t * self.length)

    def take(self, t: Tensor) -> Point:
        theta = self.point.theta + self.direction * t.to(self.direction).view(-1, 1, 1)
        return self.evaluator.finish(theta, self.logits, self.l2, *self.terms)


class Streamed:
    """Blocks of the features as they were given; the head is rotated instead of the rows.

    Blocks are worked on where the loss is, theta and all sums are where float64 is.
    """

    patience = 0.9  # every value is a pass over the data

    def __init__(
        self, basis: Basis, features: FeatureRows, loss: BlockCrossEntropy, on_pass: Callable[[], object]
    ) -> None:
        self.basis, self.features, self.loss, self.on_pass = basis, features, loss, on_pass
        self.dtype, self.device, self.share = loss.dtype, loss.targets.device, features.share
        self.mean = basis.mean.to(self.dtype).to(self.device)
        self.vectors = None if basis.vectors is None else basis.vectors.to(self.dtype)

    def at(self, theta: Tensor, l2: Tensor) -> Point:
        b, k, r = theta.shape
        inner, bias = theta[..., :-1].reshape(b * k, r - 1), theta[..., -1].reshape(b * k)
        weight = inner if self.vectors is None else inner @ self.vectors.T
        value, curvature, outer, slopes = self._pass(weight.to(self.device), bias.to(self.device), b)
        self.on_pass()
        amount, gradient = penalty(theta, l2)
        inward = outer if self.basis.vectors is None else outer @ self.basis.vectors
        gradient[..., :-1] += inward.view(b, k, r - 1).to(self.dtype)
        gradient[..., -1] += slopes.view(b, k).to(self.dtype)
        return Point(theta, value + amount, gradient, curvature)

    def _pass(self, weight: Tensor, bias: Tensor, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss (B), curvature (B x K), gradient of weights (BK x D) and of biases (BK), over all rows."""
        k = len(weight) // b
        home = self.basis.home

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=home)

        value, curvature, outer, slopes = zeros(b), zeros(b, k), zeros(*weight.shape), zeros(b * k)
        rows = rows_at_once(len(self.mean) + 3 * b * k, self.device)
        for start, centred in self.features.centred(self.mean, rows):
            logits = torch.addmm(bias[:, None], weight, centred.T).view(b, k, -1)
            sums, residual, bends = self.loss(logits, start)
            flat = residual.flatten(0, 1)
            value += sums.to(home)
            curvature += bends.to(home)
            outer += (flat @ centred).to(home)
            slopes += flat.sum(1).to(home)  # of a block, as exact as the product
        value, curvature, outer, slopes = self.share.total(value, curvature, outer, slopes)
        return value, curvature, outer, slopes

    def line(self, point: Point, direction: Tensor, l2: Tensor) -> Line:
        return _PassLine(self, point, direction, l2)


class _PassLine:
    def __init__(self, evaluator: Streamed, point: Point, direction: Tensor, l2: Tensor) -> None:
        self.evaluator, self.start, self.direction, self.l2 = evaluator, point.theta, direction, l2

    def value(self, t: Tensor) -> tuple[Tensor, Tensor]:
        self.point = self.evaluator.at(
            self.start + self.direction * t.to(self.direction).view(-1, 1, 1), self.l2
        )
        return self.point.value, dot(self.point.gradient, self.direction)

    def take(self, t: Tensor) -> Point:
        return self.point
