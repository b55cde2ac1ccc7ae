"""The course of a K-vector over training, in bounded memory."""

from __future__ import annotations

from torch import Tensor


class History:
    """Snapshots at equally spaced steps, at most `limit`: when full, every other one is dropped.

    Snapshots stay on their device until `as_lists`, so recording never waits for a GPU.
    """

    def __init__(self, limit: int = 128) -> None:
        self.limit, self.stride, self.step = limit, 1, 0
        self.steps: list[int] = []
        self.values: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, value: Tensor) -> None:
        if self.step % self.stride == 0:
            self.steps.append(self.step)
            self.values.append(value.detach().clone())
            if len(self.steps) == self.limit:
                self.steps, self.values = self.steps[::2], self.values[::2]
                self.stride *= 2
        self.step += 1

    def as_lists(self) -> dict[str, list]:
        """For JSON: {"step": [...], "value": [[K numbers], ...]}."""
        return {"step": list(self.steps), "value": [v.tolist() for v in self.values]}
