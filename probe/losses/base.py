"""What every loss shares: checked input, full precision inside autocast, and one mean over all processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.class_stats import ClassStats, StatisticsModule
from probe.errors import UserError
from probe.losses.spec import LossSpec

# How far beyond 1 a cosine can be rounded. float32 may come from a product in TF32 or bfloat16, both of which
# round after two to three digits.
ROUNDING = {torch.float64: 1e-6, torch.float32: 0.02, torch.float16: 0.02, torch.bfloat16: 0.04}


@dataclass(frozen=True)
class ClassInfo:
    """The classes a loss is made for."""

    method: LossSpec
    num_classes: int
    counts: Tensor | None  # K, float64; an empty class counts as one sample: nothing becomes infinite
    stats: ClassStats | None

    @classmethod
    def of(cls, method: LossSpec, num_classes: int, counts: Any, stats: ClassStats | None) -> ClassInfo:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise UserError(f"{method.name}: num_classes must be at least 2, not {num_classes!r}")
        if counts is None and stats is not None:
            counts = stats.count
        if counts is None and "counts" in method.needs:
            raise UserError(f"{method.name} needs class_counts: {num_classes} numbers of training samples")
        if counts is not None:
            counts = torch.as_tensor(counts, dtype=torch.float64, device="cpu")
            if counts.shape != (num_classes,):
                raise UserError(f"class_counts must be {num_classes} numbers, not {tuple(counts.shape)}")
            if not bool((counts >= 0).all()) or not bool((counts > 0).any()):
                raise UserError("class_counts must be non-negative, and not all zero")
            smallest = counts[counts > 0].min().clamp(max=1)
            counts = torch.where(counts > 0, counts, smallest)
        return cls(method, num_classes, counts, stats)

    @property
    def prior(self) -> Tensor:
        """pi_k = n_k / sum n."""
        assert self.counts is not None, f"{self.method.name} does not declare that it needs counts"
        return self.counts / self.counts.sum()


class Loss(StatisticsModule, ABC):
    """A function of (logits, targets, features) that returns the mean over the batch.

    Half-precision input is computed in float32; otherwise the input's dtype is kept. On several processes the
    result is the loss of the joined batch on every one of them (see `probe.core.collectives`).
    """

    rows_stay = True  # are `rows` those of the whole training, or do they move with it?
    degenerate_remark = "every class is treated alike, so it cannot differ from cross-entropy"

    def __init__(self, problem: ClassInfo) -> None:
        super().__init__()
        self.method = problem.method
        self.num_classes = problem.num_classes
        self._calls = 0

    @property
    def name(self) -> str:
        return self.method.name

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        self._check(logits, targets, features)
        with torch.autocast(logits.device.type, enabled=False):
            return self.compute(_full(logits), targets, None if features is None else _full(features))

    @abstractmethod
    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        """The loss of the batch of all processes, in full precision."""

    def rows(self) -> ClassAdjustment | None:
        """The convex problem on frozen features as rows of one family; None if it is not in the family."""
        return None

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called by a training loop before each epoch, for losses with a schedule."""

    @property
    def degenerate(self) -> bool:
        """True when, for these classes, what the method does to the logits cannot differ from ERM."""
        rows = self.rows() if self.method.frozen == "exact" and self.name != "erm" else None
        return rows is not None and rows.same_as_plain()

    @property
    def remark(self) -> str | None:
        """One line for reports when the method degenerates, else None."""
        return f"{self.name}: {self.degenerate_remark}" if self.degenerate else None

    def extra_repr(self) -> str:
        return f"{self.name}, num_classes={self.num_classes}"

    def _check(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> None:
        n, k = len(targets), self.num_classes
        if logits.ndim != 2 or logits.shape != (n, k):
            raise UserError(f"{self.name}: {self.method.takes} must be {n} x {k}, not {tuple(logits.shape)}")
        if targets.is_floating_point():
            if not self.method.soft_targets:
                raise UserError(f"{self.name} takes labels, not probabilities; turn Mixup and CutMix off")
            if targets.shape != (n, k):
                raise UserError(f"{self.name}: probabilities must be {n} x {k}, not {tuple(targets.shape)}")
        elif targets.ndim != 1:
            raise UserError(f"{self.name}: targets must be one label a row, not shape {tuple(targets.shape)}")
        elif n and targets.device.type == "cpu" and not torch.compiler.is_compiling():
            # On other devices this would wait for the queue at every step.
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= k:
                raise UserError(f"{self.name}: labels run from {low} to {high}, but num_classes is {k}")
        if self.method.takes == "cosines":
            self._check_cosines(logits)
        if features is not None and (features.ndim != 2 or len(features) != n):
            raise UserError(f"{self.name}: features must be {n} rows, not shape {tuple(features.shape)}")

    def _check_cosines(self, cosines: Tensor) -> None:
        """Logits in their place would be taken for angles that do not exist.

        A look at a CPU's tensor costs a microsecond; on other devices it waits for the queue, so that only
        calls 1, 2, 4, 8, ... look: logits that start small do not stay small.
        """
        if torch.compiler.is_compiling() or not len(cosines):
            return
        self._calls += 1
        skipped = cosines.device.type != "cpu" and self._calls & (self._calls - 1)
        if skipped or cosines.device.type == "meta":
            return
        low, high = map(float, cosines.detach().aminmax())
        if max(-low, high) > 1 + ROUNDING.get(cosines.dtype, 0.0):
            raise UserError(
                f"{self.name} takes cosines, and these run from {low:.4g} to {high:.4g}: give it "
                "head.cosines(features), of a probe.heads.Cosine, not logits"
            )

    def _required(self, features: Tensor | None) -> Tensor:
        if features is None:
            raise UserError(f"{self.name} needs the features: call loss(logits, targets, features)")
        return features


class MeanLoss(Loss, ABC):
    """A loss that is a (weighted) mean over samples: only the samples' losses are left to say."""

    @abstractmethod
    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Each sample's loss, and its weight (None: all 1)."""

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        return collectives.mean(*self.losses(logits, targets))


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n), rescaled to sum K (Cui et al. 2019, as every release does)."""
    weights = (1 - beta) / (1 - beta**counts)
    return weights * len(counts) / weights.sum()
