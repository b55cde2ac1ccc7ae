"""A micro-batch of a training step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """n samples: this process's share of a batch, or a micro-batch of it."""

    views: tuple[Tensor, ...]  # each n x ...: what the encoder takes; several where a method asks for views
    targets: Tensor  # n labels, or n x K probabilities (Mixup, CutMix)
    index: Tensor  # n row numbers of the training set, on the CPU
    mixed: tuple[Tensor, Tensor] | None = None  # n labels of each image, and of the one mixed into it
    groups: Tensor | None = None  # n: what a method acts on, where that is not the classes; on the CPU

    @property
    def inputs(self) -> Tensor:
        """The first view."""
        return self.views[0]

    @property
    def share(self) -> Tensor:
        """What part of a mixed image is the first one: one number for the batch, without waiting for it."""
        assert self.mixed is not None, "only asked for where images were mixed"
        first, second = self.mixed
        own = self.targets.gather(1, first.unsqueeze(1)).squeeze(1)  # 1 where both labels are the same
        return torch.where(first == second, 1.0, own).amin()

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; the row numbers stay on the CPU."""
        if self.targets.device == device:
            return self
        views = tuple(view.to(device, non_blocking=True) for view in self.views)
        return replace(self, views=views, targets=self.targets.to(device, non_blocking=True))
