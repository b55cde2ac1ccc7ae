"""The course of a K-vector over training, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.core.class_stats import StatisticsModule

LIMIT = 64


class History(StatisticsModule):
    """Snapshots at equally spaced steps, fewer than `limit`: when full, every other one is dropped.

    All of it is in buffers: a checkpoint holds the course so far, and a pass that must leave no trace (SAM's
    second one, a rehearsal) leaves none here either.
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
        step, stride, held = self.course.tolist()
        if step % stride == 0:
            self.values[held] = value
            held += 1
            if held == len(self.values):
                every_other = self.values[::2].clone()
                held, stride = len(every_other), 2 * stride
                self.values[:held] = every_other
        self.course.copy_(torch.tensor([step + 1, stride, held]))

    def as_lists(self) -> dict[str, list]:
        """For JSON: {"step": [...], "value": [[K numbers], ...]}."""
        _, stride, held = self.course.tolist()
        return {"step": [stride * i for i in range(held)], "value": self.values[:held].tolist()}
