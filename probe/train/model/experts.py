"""Experts that predict by their mean: encoders side by side, and one head on all of their features."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from probe.recipe.train_settings import TrainConfig

if TYPE_CHECKING:
    from backbones.backbone import Backbone


class SideBySide(nn.Module):
    """Encoders of one architecture that see the same images: n x M D features, expert after expert."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(encoders)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([expert(images) for expert in self.experts], dim=1)


def kept(settings: TrainConfig) -> bool:
    """Are all experts left with the weights that are kept? An average, a best epoch and a mixture with the
    start are those of the network alone."""
    return settings.ema is None and settings.keep == "last" and not settings.wise


def widen(backbone: Backbone, number: int) -> None:
    """Give the backbone so many copies of its encoder, side by side."""
    encoders = [backbone.encoder, *(deepcopy(backbone.encoder) for _ in range(number - 1))]
    backbone.encoder = SideBySide(encoders).requires_grad_(False).eval()
    backbone.dim *= number


def number_of(backbone: Backbone) -> int:
    """How many experts it holds."""
    return len(backbone.encoder.experts) if isinstance(backbone.encoder, SideBySide) else 1
