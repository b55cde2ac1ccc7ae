"""The K margins over the course of a training, in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probe.core.class_stats import StatisticsModule

LIMIT = 64  # snapshots: enough for a curve, whatever the length of the training


class MarginHistory(StatisticsModule):
    """Snapshots at equally spaced steps, fewer than `limit`: when full, every other one is dropped.

    All of it is in buffers: a checkpoint holds the course so far, and a pass that must leave no trace (SAM's
    second one, a dry run) leaves none here either.
    """

    values: Tensor  # limit x K
    course: Tensor  # steps so far, steps between snapshots, snapshots held

    def __init__(self, size: int, limit: int = LIMIT) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(limit, size))
        self.register_buffer("course", torch.tensor([0, 1, 0]))

    def __len__(self) -> int:
        return int(self.course[2])

    @torch.no_grad()
    def add(self, value: Tensor) -> None:
        """The K margins after one more step."""
        step, stride, held = self.course.tolist()
        if step % stride == 0:
            self.values[held] = value
            held += 1
            if held == len(self.values):
                every_other = self.values[::2].clone()
                held, stride = len(every_other), 2 * stride
                self.values[:held] = every_other
        self.course.copy_(torch.tensor([step + 1, stride, held]))

    def snapshots(self) -> list[tuple[int, list[float]]]:
        """(step, the K margins then), in order."""
        _, stride, held = self.course.tolist()
        return [(stride * i, margins) for i, margins in enumerate(self.values[:held].tolist())]

    def as_lists(self) -> dict[str, list[Any]]:
        """The same by column: {"step": [...], "value": [[K numbers], ...]}."""
        snapshots = self.snapshots()
        return {"step": [step for step, _ in snapshots], "value": [margins for _, margins in snapshots]}
