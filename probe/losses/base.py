"""What every loss shares: checked input, full precision inside autocast, and one mean over all processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.class_stats import ClassStats, StatisticsModule
from probe.errors import UserError
from probe.losses.spec import LossSpec, NeededStats

# How far beyond 1 a cosine can be rounded. float32 may come from a product in TF32 or bfloat16, both of which
# round after two to three digits.
ROUNDING = {torch.float64: 1e-6, torch.float32: 0.02, torch.float16: 0.02, torch.bfloat16: 0.04}


@dataclass(frozen=True)
class ClassInfo:
    """The classes that a loss is made for."""

    spec: LossSpec
    num_classes: int
    counts: Tensor | None  # K, float64; an empty class counts as one sample: nothing becomes infinite
    stats: ClassStats | None
    group_counts: Tensor | None = (
        None  # G, float64, all positive: it acts on these groups, not on the classes
    )

    @classmethod
    def of(cls, spec: LossSpec, num_classes: int, counts: Any, stats: ClassStats | None) -> ClassInfo:
        """Checked; `counts` are K numbers of any kind, or taken from `stats`."""
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise UserError(f"{spec.name}: num_classes must be at least 2, not {num_classes!r}")
        if counts is None and stats is not None:
            counts = stats.count
        if counts is None and "counts" in spec.needs:
            raise UserError(f"{spec.name} needs class_counts: {num_classes} numbers of training samples")
        if counts is not None:
            counts = torch.as_tensor(counts, dtype=torch.float64, device="cpu")
            if counts.shape != (num_classes,):
                raise UserError(f"class_counts must be {num_classes} numbers, not {tuple(counts.shape)}")
            if not bool((counts >= 0).all()) or not bool((counts > 0).any()):
                raise UserError("class_counts must be non-negative, and not all zero")
            counts = filled_counts(counts)
        return cls(spec, num_classes, counts, stats)

    def grouped(self, counts: Any) -> ClassInfo:
        """The same for a loss that acts on G groups with these counts of training samples."""
        found = torch.as_tensor(counts, dtype=torch.float64, device="cpu")
        if found.ndim != 1 or len(found) < 2 or not bool((found > 0).all()):
            raise UserError(f"{self.spec.name}: group_counts must be at least 2 positive numbers")
        return replace(self, group_counts=found)

    @property
    def acted_on(self) -> tuple[int, Tensor | None]:
        """How many groups the loss acts on, and their counts: the classes', unless it is `grouped`."""
        if self.group_counts is not None:
            return len(self.group_counts), self.group_counts
        return self.num_classes, self.counts

    @property
    def required_counts(self) -> Tensor:
        """The K counts of a loss whose row says that it needs them."""
        assert self.counts is not None, f"{self.spec.name} does not declare that it needs counts"
        return self.counts

    @property
    def prior(self) -> Tensor:
        """pi_k = n_k / sum n."""
        return self.required_counts / self.required_counts.sum()


@dataclass(frozen=True)
class FitContext:
    """How a head was fitted, as far as it decides what a report must say about the loss."""

    exact: bool  # on frozen features, by the exact solver
    l2_chosen: bool  # on validation rows, and not given
    method: str | None = None  # that the loss is inside of, and that adds something of its own


@dataclass(frozen=True)
class Margins:
    """A loss's margin for every class, and the class statistics behind it (K numbers each)."""

    gamma: Tensor
    mean_norm2: Tensor  # |mu_k|^2
    spread2: Tensor  # |s_k|^2
    history: list[
        tuple[int, list[float]]
    ]  # (step, the K margins then), equally spaced; none if they are exact


@dataclass(frozen=True)
class WorstClass:
    """An exact problem that is the smoothed worst class, log(mean_k exp(t (L_k + offset_k))) / t."""

    sharpness: float  # t
    offset: Tensor  # K
    set_weights: Callable[[Tensor, Tensor], None]  # from then on, sum_k q_k L_k: K weights q, K class sizes


class Loss(StatisticsModule, ABC):
    """A function of (logits, targets, features) that returns the mean over the batch.

    Half-precision input is computed in float32; otherwise the input's dtype is kept. On several processes the
    result is the loss of the joined batch on every one of them (see `probe.core.collectives`).

    Whoever trains, solves or reports asks the loss what it needs to know; nobody recognises one by its name.
    """

    constant_adjustment = True  # is `adjustment` that of the whole training, or does it move with it?
    sample_mean = False  # is it a mean over samples, whose own losses `losses` gives?
    takes_class_weights = False  # has it a mean over samples that `class_weights` may weight?
    uses_partners = False  # does a sample's loss look at the others of its class in the batch?
    together = (
        1  # images of one class that a batch should hold, where classes are many; 1: it does not matter
    )
    measures_frequency = False  # is `take_frequency` wanted? Set by a training that has images held out
    ramps = False  # does its own term grow from nothing over the warm-up? See `set_strength`
    gives_logits = False  # is it the plain mean of the cross-entropy of `margin_logits`?
    asks_for_pass = False  # does it look at the whole training set after each epoch? See `see_all`
    ramp = 0.0  # part of a training over which it does, where that is longer than the warm-up
    degenerate_remark = "every class is treated alike, so it cannot differ from cross-entropy"

    def __init__(self, classes: ClassInfo) -> None:
        super().__init__()
        self.spec = classes.spec
        self.num_classes = classes.num_classes
        self.strength = 1.0  # of its own term, beside cross-entropy
        # K weights of the samples' losses by their class, which a method sets; terms beside them keep theirs
        self.class_weights: Tensor | None = None
        self.grouped = classes.group_counts is not None
        self._batch_groups: Tensor | None = None
        self._calls = 0

    @property
    def name(self) -> str:
        """What `probe.losses.make` calls it."""
        return self.spec.name

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """The loss of N x K logits or cosines, N labels (or N x K probabilities) and N x D features."""
        self._check(logits, targets, features)
        with torch.autocast(logits.device.type, enabled=False):
            return self.compute(_full(logits), targets, None if features is None else _full(features))

    def see_groups(self, groups: Tensor | None) -> None:
        """The n groups of the samples that the next call is about; a training gives them with each batch."""
        self._batch_groups = groups

    def group_of(self, targets: Tensor) -> Tensor:
        """n: what each sample is weighted as, its group where the loss is `grouped`, else its class."""
        if not self.grouped:
            return targets
        groups = self._batch_groups
        if groups is None or groups.shape != targets.shape:
            raise UserError(f"{self.name} acts on groups: call see_groups with those of the batch first")
        return groups.to(targets.device)

    @abstractmethod
    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        """The loss of the batch of all processes, in full precision."""

    def adjustment(self) -> ClassAdjustment | None:
        """The convex problem on frozen features, for the exact solver; None if it is not of that family."""
        return None

    def worst_class(self) -> WorstClass | None:
        """What the exact solver has to settle before `adjustment` is the loss's problem; None: nothing."""
        return None

    def margins(self) -> Margins | None:
        """The margins of the classes, for losses that find them from statistics; None for all others."""
        return None

    def scores(self, features: Tensor) -> Tensor:
        """N x K logits of a loss that is a classifier itself (`spec.owns_head`), from N x D features."""
        raise NotImplementedError(f"{self.name} owns no classifier")

    def wanted_stats(self) -> NeededStats | None:
        """Which class statistics of the training set, as the network sees it before its first step, it starts
        from (`prepare`); None: the first batches are enough."""
        return None

    def prepare(self, stats: ClassStats) -> None:
        """Start from these statistics, the wanted ones; called before a training's first step."""

    def set_strength(self, fraction: float) -> None:
        """How much of its own term acts, 0 to 1: a training loop raises it over its warm-up, or `ramp`."""
        self.strength = fraction if self.ramps else 1.0

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called by a training loop before each epoch, for losses with a schedule."""

    def take_frequency(self, frequency: Tensor) -> None:
        """Go on with these effective frequencies (K), of the network as it is after the warm-up; for losses
        that have `frequency` and were not given one."""

    def margin_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The N x K logits whose cross-entropy is a sample's loss, with its margin in them."""
        raise NotImplementedError(f"{self.name} is more than a cross-entropy of logits")

    def see_all(self, logits: Tensor, targets: Tensor) -> None:
        """Called by a training loop after each epoch where it `asks_for_pass`: N x K logits and N labels of
        the training set."""

    @property
    def degenerate(self) -> bool:
        """True when, for these classes, what the loss does to the logits cannot differ from cross-entropy."""
        adjustment = self.adjustment() if self.spec.frozen == "exact" else None
        return adjustment is not None and adjustment.same_as_plain()

    @property
    def remark(self) -> str | None:
        """One line for reports when the loss is degenerate, else None."""
        return f"{self.name}: {self.degenerate_remark}" if self.degenerate else None

    def remarks(self, context: FitContext) -> list[str]:
        """What a report must say for its numbers to be read right, one line each."""
        if not self.degenerate:
            return []
        inside = "" if context.method is None else f", the loss inside {context.method}"
        return [f"{self.name}{inside}: {self.degenerate_remark}"]

    def weighted_mean(self, losses: Tensor, weights: Tensor | None, targets: Tensor) -> Tensor:
        """The mean of N losses with their own weights (None: all 1), times those of `class_weights`."""
        if self.class_weights is not None:
            by_class = self.class_weights.to(losses)
            given = targets.to(losses) @ by_class if targets.is_floating_point() else by_class[targets]
            weights = given if weights is None else weights * given
        return collectives.mean(losses, weights)

    def mixed(
        self, logits: Tensor, first: Tensor, second: Tensor, share: Tensor, features: Tensor | None = None
    ) -> Tensor:
        """The loss of images mixed from two (Mixup, CutMix): share L(first) + (1 - share) L(second).

        `first` and `second` are N labels each, `share` is one number, the first label's part. All terms are
        mixed so, those on features too: an image is pulled to either class as much as it shows of it.
        Statistics move once, with the label of the larger part.
        """
        main = torch.where(share >= 0.5, first, second)
        other = torch.where(share >= 0.5, second, first)
        part, training = torch.maximum(share, 1 - share), self.training
        loss: Tensor = part * self(logits, main, features)
        try:
            self.eval()
            loss = loss + (1 - part) * self(logits, other, features)
        finally:
            self.train(training)
        return loss

    def extra_repr(self) -> str:
        return f"{self.name}, num_classes={self.num_classes}"

    def _check(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> None:
        n, k = len(targets), self.num_classes
        if logits.ndim != 2 or logits.shape != (n, k):
            raise UserError(f"{self.name}: {self.spec.takes} must be {n} x {k}, not {tuple(logits.shape)}")
        if targets.is_floating_point():
            if not self.spec.soft_targets:
                raise UserError(f"{self.name} takes labels, not probabilities; turn Mixup and CutMix off")
            if targets.shape != (n, k):
                raise UserError(f"{self.name}: probabilities must be {n} x {k}, not {tuple(targets.shape)}")
        elif targets.ndim != 1:
            raise UserError(
                f"{self.name}: targets must be one label per row, not shape {tuple(targets.shape)}"
            )
        elif n and targets.device.type == "cpu" and not torch.compiler.is_compiling():
            # On other devices this would wait for the queue at every step.
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= k:
                raise UserError(f"{self.name}: labels run from {low} to {high}, but num_classes is {k}")
        if self.spec.takes == "cosines":
            self._check_cosines(logits)
        if features is not None and (features.ndim != 2 or len(features) != n):
            raise UserError(f"{self.name}: features must be {n} rows, not shape {tuple(features.shape)}")

    def _check_cosines(self, cosines: Tensor) -> None:
        """Logits in their place would be mistaken for angles that do not exist.

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

    sample_mean = True
    takes_class_weights = True

    @abstractmethod
    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of each of the N samples, and their N weights (None: all 1)."""

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        return self.weighted_mean(*self.losses(logits, targets), targets)


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n) of the K counts, rescaled to sum K (Cui et al. 2019, as released)."""
    weights = (1 - beta) / (1 - beta**counts)
    return weights * len(counts) / weights.sum()


def filled_counts(counts: Tensor) -> Tensor:
    """K counts in which an empty class counts as one sample: nothing becomes infinite."""
    return torch.where(counts > 0, counts, counts[counts > 0].min().clamp(max=1))


def log_prior(class_counts: Any, like: Tensor) -> Tensor:
    """log pi of K counts of any kind, in the dtype and on the device of `like`."""
    counts = filled_counts(torch.as_tensor(class_counts, dtype=torch.float64, device="cpu"))
    return (counts / counts.sum()).log().to(like)
