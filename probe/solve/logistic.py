"""Multinomial logistic regression with class adjustments, solved exactly.

    minimise  sum_i v_i CE(a_i (W h_i + b) + c_i, y_i) + l2/2 |W|²          (bias not penalised)

which is l2 times scikit-learn's objective with C = 1/l2. The answer is certified: see `probe.solve.lbfgs`.
Passes run in float32 on large data; every solution is judged, and if need be finished, in float64.

>>> basis = Basis(X)                                   # the expensive part, once for these features
>>> erm = fit(X, y, 37, l2=1.0, basis=basis)
>>> heads = path(X, y, 37, [100.0, 10.0, 1.0], adjustment=mr2.adjustment(), basis=basis)

Adding one vector to all classes' weights changes no probability; the penalty makes the weights sum to 0 over
classes, and of the equivalent biases the one with mean 0 is returned. A class without a sample takes no part:
its weights are 0 and its bias is a large negative number, so that it is never predicted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from probe.core import bfloat16
from probe.core.adjustment import ClassAdjustment
from probe.core.threads import free_threads
from probe.errors import UserError
from probe.solve import certificate, cost, devices
from probe.solve.basis import Basis
from probe.solve.certificate import Outcome
from probe.solve.class_blocks import block_size
from probe.solve.counted_classes import checked, present_classes, restricted, without_absent
from probe.solve.inputs import FeatureRows, as_l2s, as_labels, as_weights
from probe.solve.lbfgs import Memory
from probe.solve.objective import BlockCrossEntropy, Evaluator, Resident, Streamed
from probe.solve.schedule import Schedule
from probe.solve.solution import ABSENT_BIAS, LinearSolution

__all__ = ["Basis", "LinearSolution", "LogisticSolver", "fit", "path"]

TOL = 1e-7  # certified relative excess of the objective
PATH_TOL = 1e-6  # along a path, where heads are compared by their validation scores
MAX_ITER = 2000
REMEMBERED = 32  # solutions kept to start others from
SAME_HEAD = 1e-4  # tolerance above which heads show by which way they were found
FLOAT32_TOL = 1e-7  # what float32 passes can certify; below it, float64 takes over
SHARED = 8  # values of l2 in one pass over the data, where a pass is what costs
CLOSE = 2.0  # factor between neighbours of a path up to which following it beats sharing passes
LOGIT_COPIES = 5  # N x K buffers that an evaluation holds: logits, their change, and three intermediate ones
SAMPLED = 10  # one row in so many, at most, is solved first, where all of them must be streamed
FEWEST_SAMPLED = 1_000  # rows of such a sample
SAMPLE_TOL = 1e-3  # and how well it is solved: what is left is the sample's own error
TANGENT_STEPS = 2.0  # steps of a path beyond which its tangent says less than its last point
TANGENT_FACTOR = 30.0  # and factor between the l2 of two solutions beyond which the line between them does


def fit(
    X: Any,
    y: Any,
    num_classes: int,
    *,
    l2: float,
    adjustment: ClassAdjustment | None = None,
    sample_weight: Any = None,
    basis: Basis | None = None,
    init: LinearSolution | None = None,
    tol: float = TOL,
    max_iter: int = MAX_ITER,
) -> LinearSolution:
    """One head.

    X is N x D (tensor, array or cached matrix), y holds N labels in 0..num_classes-1. `adjustment` is what a
    loss declares (default: plain cross-entropy), `sample_weight` are N numbers, `basis` is that of X or of
    other rows in the same directions, `init` is where to start, and `tol` is the certified relative excess
    of the objective at which to stop.
    """
    solver = LogisticSolver(
        X, y, num_classes, adjustment=adjustment, sample_weight=sample_weight, basis=basis
    )
    return solver.solve([l2], init=init, tol=tol, max_iter=max_iter)[0]


def path(
    X: Any,
    y: Any,
    num_classes: int,
    l2s: Sequence[float],
    *,
    adjustment: ClassAdjustment | None = None,
    sample_weight: Any = None,
    basis: Basis | None = None,
    init: LinearSolution | None = None,
    tol: float = PATH_TOL,
    max_iter: int = MAX_ITER,
    block: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[LinearSolution]:
    """A head for each l2, in the order given; the same heads that `fit` returns, for much less time.

    Values are solved from the strongest on, `block` of them in one pass over the data. By default that is
    one where neighbours are close, because following the path from its last two points takes a tenth of the
    iterations; values far apart share passes when a pass is what costs (a GPU, streamed features).
    `progress(n)` is called as values are finished.
    """
    solver = LogisticSolver(
        X, y, num_classes, adjustment=adjustment, sample_weight=sample_weight, basis=basis
    )
    return solver.path(l2s, init=init, tol=tol, max_iter=max_iter, block=block, progress=progress)


class LogisticSolver:
    """One data set, ready to be solved for any l2; remembers what it solved and starts from there."""

    def __init__(
        self,
        X: Any,
        y: Any,
        num_classes: int,
        *,
        adjustment: ClassAdjustment | None = None,
        sample_weight: Any = None,
        basis: Basis | None = None,
    ) -> None:
        self.features = FeatureRows(X)
        self.num_classes = num_classes
        self.labels = as_labels(y, num_classes, self.features.shape[0])
        self.weight = as_weights(sample_weight, self.features.shape[0])
        self.basis = _fitting(basis, self.features)
        if self.basis.features.source is self.features.source and self.basis.share == self.features.share:
            self.features = self.basis.features  # which may be on the device already
        self.features.hold_on(self.basis.device, self.basis.budget)
        self._use(adjustment or ClassAdjustment())
        self._related: list[tuple[float, Tensor]] = []  # like `_known`, under another adjustment

    def _use(self, adjustment: ClassAdjustment) -> None:
        self._adjustment = adjustment = checked(adjustment, self.num_classes)
        self.present = present_classes(self.labels, self.weight, adjustment, self.num_classes)
        weight = without_absent(self.weight, self.labels, self.present, self.num_classes)
        position = torch.zeros(self.num_classes, dtype=torch.int64)
        position[self.present] = torch.arange(len(self.present))
        mine = self.features.share.mine

        def loss(device: torch.device, dtype: torch.dtype) -> BlockCrossEntropy:
            targets = position[mine(self.labels)].to(device)
            own = None if weight is None else mine(weight).to(dtype).to(device)
            return BlockCrossEntropy(targets, restricted(adjustment, self.present), own, dtype)

        self._judge = self._streamed(loss(self.basis.home, torch.float64))
        self._loss = loss(self.basis.device, self.basis.dtype)
        self._known: list[tuple[float, Tensor]] = []  # (log l2, theta) of what was solved
        self._memory = Memory()

    def adjusted(self, adjustment: ClassAdjustment | None) -> LogisticSolver:
        """The same rows under another adjustment, whose solves start from what was solved here."""
        if self._resident(1):
            self._rotated, self._rounds and self._rounded  # noqa: B018 - made here: every copy shares them
        other = copy(self)
        other._use(adjustment or ClassAdjustment())
        same = torch.equal(other.present, self.present)
        other._related = [*self._related, *self._known][-REMEMBERED:] if same else []
        return other

    def path(
        self,
        l2s: Sequence[float],
        *,
        init: LinearSolution | None = None,
        tol: float = PATH_TOL,
        max_iter: int = MAX_ITER,
        block: int | None = None,
        progress: Callable[[int], object] | None = None,
        judged: bool = True,
    ) -> list[LinearSolution]:
        """A head for each l2, in the order given: what the function `path` returns.

        Not `judged` in float64, it is certified by float32 alone: enough for a tolerance far above rounding.
        """
        values = as_l2s(l2s)
        order = sorted(set(values), reverse=True)
        block = block or self._block(order)
        solved: dict[float, LinearSolution] = {}
        for start in range(0, len(order), block):
            part = order[start : start + block]
            solved |= zip(
                part, self.solve(part, init=init, tol=tol, max_iter=max_iter, judged=judged), strict=True
            )
            init = None
            if progress is not None:
                progress(len(part))
        return [solved[value] for value in values]

    def solve(
        self,
        l2s: Sequence[float],
        *,
        init: LinearSolution | None = None,
        tol: float,
        max_iter: int,
        judged: bool = True,
    ) -> list[LinearSolution]:
        """Some values in one pass."""
        values = as_l2s(l2s)
        fast = self._evaluator(len(values))
        if isinstance(fast, Streamed) and init is None and not (self._known or self._related):
            self._learn_from_some(max(values))
        theta = torch.stack([self._start(value, init) for value in values])
        memory = self._memory.map(lambda t: t[-1:].expand(len(values), -1, -1))
        # half of it in float32, so that the judge, who sees float64, has nothing left to do in most cases
        goal = tol if fast.dtype == torch.float64 else max(tol, FLOAT32_TOL) / 2
        schedule = Schedule(
            fast,
            self._judge,
            self.basis.spectrum,
            values,
            self._block_size(len(values)),
            max_iter,
            memory,
            self._rough(fast, tol, len(values)),
            cost.gap_watch(),
        )
        work = self.features.share.most * self.basis.rank * len(self.present)
        with free_threads(work), devices.tf32(self.basis.tf32):
            outcomes = schedule.solve(theta, goal, tol if judged else None)
        self._memory = schedule.memory
        solved = [(math.log(v), o.theta.to(fast.dtype)) for v, o in zip(values, outcomes, strict=True)]
        self._known = [*self._known, *solved][-REMEMBERED:]
        return [self._solution(v, o) for v, o in zip(values, outcomes, strict=True)]

    def _block(self, falling: Sequence[float]) -> int:
        close = all(a < CLOSE * b for a, b in itertools.pairwise(falling))
        return 1 if close or (self.basis.device.type == "cpu" and self._resident(1)) else SHARED

    def _spare(self, heads: int) -> int:
        """Numbers that may be in memory beside rows and logits; below 0: these do not fit."""
        columns = self.basis.rank + LOGIT_COPIES * heads * len(self.present)
        return self.basis.budget // self.basis.dtype.itemsize - self.features.share.most * columns

    def _resident(self, heads: int) -> bool:
        return self.basis.device == self.basis.home and self._spare(heads) >= 0

    def _block_size(self, heads: int) -> int:
        classes = len(self.present)
        spare = max(0, self._spare(heads) - self._rounds * self._of_rounded)
        counted = self.features.shape[0] if self.weight is None else int((self.weight > 0).sum())
        return block_size(counted, classes, spare // (classes * (self.basis.rank + 1)))

    def _evaluator(self, heads: int) -> Evaluator:
        if self._resident(heads):
            return Resident(self._rotated, self._loss, self.features.share)
        cost.start(cost.of(self.features, len(self.present), heads))
        return self._streamed(self._loss)

    def _rough(self, fast: Evaluator, tol: float, heads: int) -> Resident | None:
        """For the way to a tolerance at which another way ends in nearly the same head; the same rows in
        bfloat16, if the device is fast at it."""
        if not isinstance(fast, Resident) or tol > SAME_HEAD or not self._rounds:
            return None
        if self._spare(heads) < self._of_rounded or not self._block_size(heads):
            return None
        return Resident(fast.rows, fast.loss, fast.share, self._rounded)

    def _streamed(self, loss: BlockCrossEntropy) -> Streamed:
        return Streamed(self.basis, self.features, loss, cost.one_pass)

    def _learn_from_some(self, l2: float) -> None:
        """Begin where a tenth of the rows (fewer, if these do not fit) would end: their passes cost a tenth.

        The loss of a tenth is a tenth, so l2 is too. Start and curvature carry over; the certificate is of
        all rows, as without.
        """
        n, share = self.features.shape[0], self.features.share
        each = (self.basis.rank + LOGIT_COPIES * len(self.present)) * self.basis.dtype.itemsize
        stride = max(SAMPLED, -(-n * each // (min(cost.SAMPLE, self.basis.budget) * share.size + 1)))
        if self.basis.rank < self.features.shape[1] or n < FEWEST_SAMPLED * stride:
            return
        rows = torch.arange(0, n, stride)
        if not set(self.present.tolist()) <= set(self.labels[rows].tolist()):
            return  # a class of which the sample knows nothing would have to be found by everyone
        weight = None if self.weight is None else self.weight[rows]
        few = LogisticSolver(
            _rows_of(self.features.source, rows),
            self.labels[rows],
            self.num_classes,
            adjustment=self._adjustment,
            sample_weight=weight,
            basis=self.basis,
        )
        if few._resident(1) and torch.equal(few.present, self.present):
            few.solve([l2 / stride], tol=SAMPLE_TOL, max_iter=MAX_ITER, judged=False)
            self._known = [(math.log(l2), few._known[-1][1])]
            self._memory = Memory([(step, stride * change) for step, change in few._memory.pairs])

    @cached_property
    def _rotated(self) -> Tensor:
        rotated = self.basis.rotated(self.features)
        assert rotated is not None  # `_fitting` chose a basis that holds these rows
        return rotated

    @cached_property
    def _rounds(self) -> bool:
        """Are products in bfloat16 faster, and is there memory for the rows? On all processes, or on none."""
        fast = self.basis.dtype == torch.float32 and bfloat16.is_native(self.basis.device)
        able = torch.tensor([float(fast and self._spare(1) >= self._of_rounded)])
        share = self.features.share
        return certificate.holds(share.total(able)[0] == share.size)

    @property
    def _of_rounded(self) -> int:
        """The memory of rounded rows, in numbers of the basis's precision."""
        return -(-self.features.share.most * (self.basis.rank + 1) // 2)

    @cached_property
    def _rounded(self) -> Tensor:
        return self._rotated.bfloat16()

    def _start(self, l2: float, init: LinearSolution | None) -> Tensor:
        """On the line through the two nearest solutions in log l2, if they are near; else the nearest one.
        Solutions under another adjustment count where they are nearer than all of this one's."""
        if init is not None:
            # a class that it had no sample of: as unlikely as the rarest that it knew
            bias = init.bias[self.present]
            seen = bias > ABSENT_BIAS / 2
            rarest = torch.where(seen, bias, torch.inf).amin().nan_to_num(posinf=0.0)
            return self.basis.to_rotated(init.weight[self.present], torch.where(seen, bias, rarest))
        here = math.log(l2)
        both = (self._known, self._related)
        known = [sorted(some, key=lambda known: abs(known[0] - here))[:2] for some in both]
        if not any(known):
            shape = (len(self.present), self.basis.rank + 1)
            return torch.zeros(shape, dtype=torch.float64, device=self.basis.home)
        near = min((some for some in known if some), key=lambda some: abs(some[0][0] - here))
        first, theta = near[0]
        if len(near) == 2 and near[1][0] != first:
            second, other = near[1]
            share = (here - first) / (second - first)
            near_enough = abs(second - first) < math.log(TANGENT_FACTOR)
            if -TANGENT_STEPS <= share <= 1 and near_enough:
                return theta + share * (other - theta)
        return theta

    def _solution(self, l2: float, outcome: Outcome) -> LinearSolution:
        inner, free = self.basis.from_rotated(outcome.theta)
        weight = inner.new_zeros(self.num_classes, inner.shape[1])
        bias = free.new_full((self.num_classes,), ABSENT_BIAS)
        weight[self.present] = inner
        bias[self.present] = free - free.mean()
        weight, bias = (t.to(self.features.dtype).to(self.features.device) for t in (weight, bias))
        return LinearSolution(
            weight,
            bias,
            l2,
            outcome.value,
            outcome.gap,
            outcome.iterations,
            outcome.status,
            self.basis.device,
        )


def _fitting(basis: Basis | None, features: FeatureRows) -> Basis:
    """The given basis if it holds these rows, else a new one."""
    if basis is None:
        return Basis(features.source)
    if len(basis.mean) != features.shape[1]:
        raise UserError(f"the basis has {len(basis.mean)} dimensions, the features have {features.shape[1]}")
    if features.source is not basis.features.source:
        features.refuse_non_finite()
    if basis.rank < features.shape[1] and basis.rotated(features) is None:
        return Basis(features.source, device=basis.device, budget=basis.budget, tf32=basis.tf32)
    return basis


def _rows_of(source: Any, rows: Tensor) -> Any:
    """Some rows: a view where the matrix is on disk, else a copy."""
    return source.view(rows) if hasattr(source, "stored_blocks") else source[rows]
