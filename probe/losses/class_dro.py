"""The classes, or other groups, as adversary: weights q on the simplex that follow the worse ones.

Both losses are sum_k q_k L_k with q constant, L_k the batch's mean cross-entropy of class k (0 for a class
that the batch does not hold, whose weight then stays as it is). Where it is told of groups (`see_groups`),
k runs over those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.errors import UserError
from probe.losses.base import ClassInfo, FitContext, Loss, WorstClass

# Rounding errors of a class's mean loss, in units of the last digit. A head that starts at zero gives every
# class the same loss but for these, and their direction says nothing.
ROUNDING = 100.0

# How far the weights move to the best response, by the share of the training that is done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "constant": lambda done: 1.0,
}


class ClassWeighted(Loss, ABC):
    """sum_k q_k L_k: a subclass says how the K weights q move."""

    weights: Tensor
    constant_adjustment = False

    def __init__(self, classes: ClassInfo) -> None:
        super().__init__(classes)
        self.num_groups, _ = classes.acted_on
        self.register_buffer("weights", torch.full((self.num_groups,), 1 / self.num_groups))

    def follow(self, dtype: torch.dtype) -> None:
        before = self.weights.dtype
        super().follow(dtype)
        if self.weights.dtype != before:  # 1/K has more digits now
            self.weights = self.weights / self.weights.sum()

    @property
    def degenerate(self) -> bool:
        return False  # equal weights are where it starts, not what it does

    @abstractmethod
    def move(self, class_losses: Tensor, counts: Tensor) -> None:
        """One step of the weights, given this batch's K class losses and how many samples each class has."""

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        class_losses, counts = self.class_losses(logits, targets)
        self.follow(logits.dtype)
        if self.training:
            with torch.no_grad():
                self.move(class_losses.detach().to(self.weights), counts)
        return (self.weights.to(class_losses) * class_losses).sum()

    def class_losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """L_k over the batch of all processes (K), and the K numbers of samples."""
        sums, count = self.class_sums(logits, targets)
        sums, count = collectives.total(sums), collectives.total(count)
        return sums / count.clamp(min=1), count

    def class_sums(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy and number of the samples of each class (K each)."""
        losses = F.cross_entropy(logits, targets, reduction="none")
        groups = self.group_of(targets)
        sums = losses.new_zeros(self.num_groups).index_add(0, groups, losses)
        return sums, torch.zeros_like(sums).index_add(0, groups, torch.ones_like(losses))


class DRO(ClassWeighted):
    """q_k <- q_k exp(eta (L_k + C/sqrt(n_k))), normalised, before the loss is formed (Sagawa et al. 2020).

    Only the weights see the adjustment, and only classes of the batch move: a class that is absent keeps its
    share against the others.
    """

    offset: Tensor
    size: Tensor | None

    def __init__(
        self, classes: ClassInfo, *, eta: float = 0.01, adjustment: float = 0.0, sharpness: float = 16.0
    ) -> None:
        super().__init__(classes)
        self.eta, self.sharpness = eta, sharpness
        _, known = classes.acted_on
        if adjustment and known is None:
            raise UserError(f"{self.name}: an adjustment other than 0 needs class_counts")
        counts = torch.ones(self.num_groups) if known is None else known
        self.register_buffer("offset", adjustment / counts.sqrt(), persistent=False)
        self.register_buffer("size", known, persistent=False)

    def adjustment(self) -> ClassAdjustment | None:
        """The convex problem for the present weights: sum_k q_k L_k as weighted samples, v_k = q_k N / n_k.

        At first all classes weigh the same; `probe.probing.robust.settle` moves q to where it belongs.
        """
        if self.size is None or self.grouped:  # the solver then weights samples: `probe.probing.grouped`
            return None
        share = self.size.to(self.weights) / self.size.sum()
        return ClassAdjustment(weight=self.weights / share.clamp(min=torch.finfo(share.dtype).tiny))

    def worst_class(self) -> WorstClass:
        return WorstClass(self.sharpness, self.offset, self._set_weights)

    def _set_weights(self, weights: Tensor, sizes: Tensor) -> None:
        self.weights, self.size = weights, sizes

    def remarks(self, context: FitContext) -> list[str]:
        said = super().remarks(context)
        if context.exact and context.l2_chosen:
            said.append(
                f"{self.name}: l2 was chosen with equal class weights, before they moved to the worst class"
            )
        return said

    def move(self, class_losses: Tensor, counts: Tensor) -> None:
        q, present = self.weights, counts > 0
        score = q.log() + self.eta * (class_losses + self.offset.to(q))
        share = q[present].sum()
        self.weights = torch.where(present, share * score.masked_fill(~present, -torch.inf).softmax(0), q)


class FairDRO(ClassWeighted):
    """The worst weights in a chi-square ball (Jung et al. 2023), with the classes as groups:

        q_k = 1/K + sqrt(2 rho/K) (L_k - mean L)/|L - mean L|,

    so that sum q L = mean L + sqrt(2 rho) std L. The weights move towards it by a step that falls from 1 over
    the epochs: with every batch (the last known losses of all classes), or once an epoch, from the class
    losses over the epoch's batches or, as released, over a pass of the training set. Above rho =
    1/(2 (K - 1)) weights can turn negative and would reward errors; `project` puts them back on the simplex.
    """

    latest: Tensor
    known: Tensor
    epoch_sums: Tensor
    epoch_counts: Tensor
    epoch: Tensor  # that the sums belong to

    def __init__(
        self,
        classes: ClassInfo,
        *,
        rho: float = 0.5,
        every: str = "batch",
        schedule: str = "linear",
        project: bool = True,
    ) -> None:
        super().__init__(classes)
        self.rho, self.every, self.schedule, self.project = rho, every, schedule, project
        self.asks_for_pass = every == "pass"
        self.step = 1.0
        k = self.num_groups
        self.register_buffer("latest", torch.zeros(k))
        self.register_buffer("known", torch.zeros(k, dtype=torch.bool))
        self.register_buffer("epoch_sums", torch.zeros(k))
        self.register_buffer("epoch_counts", torch.zeros(k))
        self.register_buffer("epoch", torch.tensor(-1))

    @torch.no_grad()
    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Set the step for this epoch; once an epoch, move the weights by what the last one showed."""
        done = epoch / max(1, epochs)
        self.step = SCHEDULES[self.schedule](done)
        seen = self.epoch_counts > 0
        if self.every != "batch" and epoch != int(self.epoch) and bool(seen.any()):
            self.latest = torch.where(seen, self.epoch_sums / self.epoch_counts.clamp(min=1), self.latest)
            self.known = self.known | seen
            self._approach()
            self.epoch_sums = torch.zeros_like(self.epoch_sums)
            self.epoch_counts = torch.zeros_like(self.epoch_counts)
        self.epoch = torch.full_like(self.epoch, epoch)  # one that is resumed does not move them again

    @torch.no_grad()
    def see_all(self, logits: Tensor, targets: Tensor) -> None:
        """The class losses that the next epoch's weights follow."""
        self.follow(logits.dtype)
        sums, counts = self.class_sums(logits, targets)
        self.epoch_sums, self.epoch_counts = sums.to(self.epoch_sums), counts.to(self.epoch_counts)

    def move(self, class_losses: Tensor, counts: Tensor) -> None:
        if self.every == "batch":
            present = counts > 0
            self.latest = torch.where(present, class_losses, self.latest)
            self.known = self.known | present
            self._approach()
        elif self.every == "epoch":
            counts = counts.to(self.epoch_counts)
            self.epoch_sums = self.epoch_sums + counts * class_losses
            self.epoch_counts = self.epoch_counts + counts

    def _approach(self) -> None:
        # A class without a known loss stands at the mean, so it neither gains nor loses weight.
        mean = self.latest[self.known].mean()
        best = best_response(torch.where(self.known, self.latest, mean), self.rho)
        moved = self.weights + self.step * (best - self.weights)
        self.weights = onto_simplex(moved) if self.project else moved


def best_response(class_losses: Tensor, rho: float) -> Tensor:
    """The K weights of the chi-square ball with the largest weighted loss; uniform if all losses agree, up to
    rounding."""
    k = len(class_losses)
    deviation = class_losses - class_losses.mean()
    length = deviation.norm()
    noise = ROUNDING * torch.finfo(class_losses.dtype).eps * class_losses.norm()
    direction = torch.where(length > noise, deviation / length, 0)
    return 1 / k + math.sqrt(2 * rho / k) * direction


def onto_simplex(q: Tensor) -> Tensor:
    """The nearest point with non-negative entries that sum to 1 (by sorting)."""
    ordered = q.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(q) + 1, device=q.device)
    last = (ordered > excess).sum() - 1
    return (q - excess[last]).clamp(min=0)
