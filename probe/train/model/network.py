"""Encoder and head as one module: what is trained, evaluated, averaged and saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from probe.core.scaling import NEUTRAL, Scaling
from probe.heads import Head, PlainHead
from probe.train.parallel import dtensor


class Network(nn.Module):
    """inputs -> features (N x D, raw) -> scores (N x K); the scaling between them is constant."""

    head: Head
    mean: Tensor | None
    spread: Tensor | None

    def __init__(self, encoder: nn.Module, head: Head, scaling: Scaling = NEUTRAL) -> None:
        super().__init__()
        self.encoder, self.head, self.unit_norm = encoder, head, scaling.unit_norm
        self.register_buffer("mean", scaling.mean, persistent=False)
        self.register_buffer("spread", scaling.spread, persistent=False)

    def scaled(self, features: Tensor) -> Tensor:
        """n x D features as the head sees them."""
        return Scaling(self.mean, self.spread, self.unit_norm)(features)

    def forward(self, inputs: Tensor) -> Tensor:
        """N x K logits."""
        return self.head(self.scaled(self.encoder(inputs)))

    def parts(self, inputs: Tensor, takes: str) -> tuple[Tensor, Tensor]:
        """What a loss is given: n x K logits or cosines, and the n x D features of its representation terms.

        Those are the encoder's own, or an adapter's where the head has one.
        """
        features = self.encoder(inputs)
        scaled = self.scaled(features)
        embedded = self.head.embed(scaled)
        return self.head.scores(embedded, takes), features if embedded is scaled else embedded

    def embedded(self, inputs: Tensor) -> Tensor:
        """n x D features as the classifier sees them: scaled, and through an adapter where there is one."""
        return self.head.embed(self.scaled(self.encoder(inputs)))

    @torch.no_grad()
    def take(self, state: dict[str, Tensor]) -> None:
        """Copy the weights of another moment, in place: optimisers and wrappers keep their references."""
        own = self.state_dict()
        for name, value in state.items():
            dtensor.put(own[name], value)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of every weight and buffer, whole, on the CPU."""
        return dtensor.snapshot(self.state_dict())


class OwnHead(Head):
    """The classifier of a loss that owns one (LGM's Gaussians), as a head."""

    sized = False  # a centre has a place; a penalty would pull it away from its class, to zero

    def __init__(self, loss: Any, dim: int) -> None:
        super().__init__(dim, loss.num_classes)
        self.loss = loss

    def scores(self, embedded: Tensor, takes: str = "logits") -> Tensor:
        return self.loss.scores(embedded)

    def plain(self) -> PlainHead:
        """With one variance the distances are linear in h, up to what all classes share."""
        loss = self.loss
        if loss.log_variance is None:
            return PlainHead("linear", {"weight": loss.centres, "bias": -loss.centres.square().sum(1) / 2})
        return PlainHead("gaussian", {"centres": loss.centres, "log_variance": loss.log_variance})
