"""Nested collaborative learning: experts learn from labels, hard classes and each other (Li et al. 2022)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from probe.core import collectives
from probe.errors import UserError
from probe.losses.base import Loss, filled_counts
from probe.losses.functional.experts import hard_classes, learned
from probe.methods.base import Method
from probe.methods.memories import Queue
from probe.methods.networks import MomentumCopy, Projection, twin
from probe.methods.protocols import BatchLike, NetworkLike

HARD = 0.3  # of the classes, where their number is not given: the share of all published settings
TEMPERATURE, QUEUE, WIDTH, MOMENTUM = 0.2, 1024, 64, 0.999  # of the contrast, as released


class NCL(Method):
    """`probe.losses.functional.ncl` of the network and `experts` - 1 others, each with a view of its own.

    The loss inside says which logits a sample has (`Loss.margin_logits`): plain ones, or with an angular
    margin (`dbm-ncl`); log counts are added here. The network is expert 0; the mean of all experts predicts.
    `contrast` is the weight of a MoCo loss for each expert, whose keys see further views. Labels count twice,
    in all classes and in the hard ones, and `weight` is a factor on both: 1 as published, 0.5 gives an expert
    the rate that it would have alone. Over the first `ramp` of the epochs the hard part, and what experts
    learn from each other, grow from nothing: both need experts that know something.
    """

    one_view = False
    log_counts: Tensor

    def __init__(
        self,
        loss: Loss,
        *,
        counts: Any,
        experts: int,
        hard: int | None,
        factor: float,
        contrast: float,
        weight: float,
        ramp: float,
    ) -> None:
        super().__init__(loss)
        if not loss.gives_logits:
            raise UserError(f"experts share logits, and {loss.name} has none to share; use erm, or dbm")
        sizes = filled_counts(torch.as_tensor(counts).to(torch.float64))
        self.number, self.factor, self.contrast, self.weight = experts, factor, contrast, weight
        self.growing, self.grown = ramp, 1.0  # epochs (a part of all) until all of it acts, and how much does
        self.hard = max(1, round(HARD * len(sizes))) if hard is None else int(hard)
        self.views = ("own",) * experts + ("contrast",) * (experts if contrast else 0)
        self.register_buffer("log_counts", sizes.log().float(), persistent=False)

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.others = nn.ModuleList(twin(network, fresh=self.from_scratch) for _ in range(self.number - 1))
        if self.contrast:
            dim = network.head.dim
            experts = self.experts(network)
            self.projections = nn.ModuleList(Projection(dim, dim, WIDTH, norm=False) for _ in experts)
            pairs = zip(experts, self.projections, strict=True)
            self.slow = nn.ModuleList(MomentumCopy(e, p, MOMENTUM) for e, p in pairs)
            self.queues = nn.ModuleList(Queue(QUEUE, WIDTH) for _ in experts)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        super().start_epoch(epoch, epochs)
        self.grown = min(1.0, epoch / (self.growing * epochs)) if self.growing > 0 else 1.0

    def experts(self, network: NetworkLike) -> list[Any]:
        return [network, *self.others]

    def copies(self) -> list[Any]:
        slow = [copy.network for copy in self.slow] if self.contrast else []
        return [*self.others, *slow]

    def after_step(self, network: NetworkLike) -> None:
        if self.contrast:
            for copy, expert, head in zip(self.slow, self.experts(network), self.projections, strict=True):
                copy.follow(expert, head)  # type: ignore[operator]

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        views = [*batch.views, *[batch.inputs] * self.number][: self.number]
        parts = [e.parts(v, self.takes) for e, v in zip(self.experts(network), views, strict=True)]
        with torch.autocast(batch.targets.device.type, enabled=False):
            *scores, targets = collectives.gather(*(part[0].float() for part in parts), batch.targets)
            mask = hard_classes(scores[0], targets, self.hard)
            logits = [self.loss.margin_logits(z, targets) + self.log_counts for z in scores]
            labels, others = learned(logits, targets)
            hard, hard_others = learned([z * mask for z in logits], targets)
            nested = hard + self.factor * (others + hard_others)
            value = self.weight * ((2 - self.grown) * labels + self.grown * nested)
        if not self.contrast or len(batch.views) <= self.number:  # evaluated by one view
            return value
        features, keys = [part[1] for part in parts], batch.views[self.number :]
        return value + self.contrast * self._contrast(features, keys, batch.targets)

    def _contrast(self, features: list[Tensor], key_views: Any, targets: Tensor) -> Tensor:
        """The sum over experts of a MoCo loss: a sample's own key against the queue's."""
        total = targets.new_zeros((), dtype=torch.float32)
        for number, (rows, view) in enumerate(zip(features, key_views, strict=True)):
            queries, keys = self.projections[number](rows).float(), self.slow[number](view).float()
            queries, keys, labels = collectives.gather(queries, keys, targets)
            queries, keys = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
            queue = self.queues[number]
            held = queue.held()[0]  # type: ignore[operator]
            own = (queries * keys).sum(1, keepdim=True)
            scores = torch.cat([own, queries @ held.T], dim=1) / TEMPERATURE
            total = total + F.cross_entropy(scores, torch.zeros_like(labels))
            if self.training:
                queue.push(keys, labels)  # type: ignore[operator]
        return total
