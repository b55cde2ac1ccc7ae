"""Supervised contrastive learning: beside the classifier's loss, or before it (Khosla et al. 2020)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import losses
from probe.losses.base import Loss
from probe.methods.base import Method
from probe.methods.networks import Projection, joined
from probe.methods.protocols import BatchLike, NetworkLike, TrainingLike


class SupCon(Method):
    """Two views of every image go through the encoder. joint: loss of both + weight * SupCon of projections.

    two: the contrast alone, for all but the last `head_epochs` of the epochs; then the classifier starts at
    the class means and is trained by the loss on the encoder as it is, batch-norm included. Cached features
    have one view, and an adapter is what the contrast trains there.
    """

    stage: Tensor  # 1 number: which one is under way

    def __init__(
        self,
        loss: Loss,
        *,
        stage: str,
        weight: float,
        temperature: float,
        base_temperature: float,
        head_epochs: float,
        hidden: int,
        embedding: int,
    ) -> None:
        super().__init__(loss)
        self.contrast = losses.make(
            "supcon",
            num_classes=loss.num_classes,
            temperature=temperature,
            base_temperature=base_temperature,
        )
        self.two, self.weight, self.head_epochs = stage == "two", weight, head_epochs
        self.hidden, self.embedding = hidden, embedding
        self.trains_later, self.searchable = self.two, not self.two
        self.register_buffer("stage", torch.zeros(1, dtype=torch.int64))

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.projection = Projection(network.head.dim, self.hidden, self.embedding)
        self.stage = torch.zeros_like(self.stage)

    @property
    def freezes(self) -> bool:  # type: ignore[override]
        return int(self.stage) == 1

    @property
    def views(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("own",) if self.freezes else ("own", "own")

    @property
    def uses_partners(self) -> bool:
        return not self.freezes

    def stages(self, epochs: int) -> tuple[int, ...]:
        last = max(1, round(self.head_epochs * epochs))
        return (max(1, epochs - last), last) if self.two else (epochs,)

    def begin_stage(self, stage: int, training: TrainingLike) -> None:
        self.stage = torch.full_like(self.stage, stage)
        if stage == 1:
            training.restart_head()

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        if self.freezes:
            with torch.no_grad():
                embedded = network.embedded(batch.inputs)
            return self.loss(network.head.scores(embedded, self.takes), batch.targets, embedded)
        scores, features = network.parts(joined(batch.views), self.takes)
        targets = batch.targets.repeat(len(batch.views))
        contrast = self.contrast(scores, targets, self.projection(features))
        return contrast if self.two else self.loss(scores, targets, features) + self.weight * contrast
