"""The learning rate as a pure function of the optimiser step: nothing to save, nothing to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig


def factor(step: int, total: int, warmup: int) -> float:
    """What the peak rate is multiplied by at `step` (from 0): linear warm-up, then half a cosine to 0.

    The first warm-up step is 1/warmup, the first step after it is 1; step `total` would be 0.

    >>> [round(factor(s, 8, 2), 2) for s in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


@dataclass(frozen=True)
class Falls:
    """Steps at which the rate is multiplied by `factor`, instead of following a cosine."""

    steps: tuple[int, ...]
    factor: float

    @classmethod
    def of(cls, settings: TrainConfig, epochs: int, steps: int) -> Falls | None:
        """Those of `schedule: steps` in so many epochs of so many steps; None: the cosine."""
        if settings.schedule != "steps":
            return None
        in_epochs = [m * epochs if m < 1 else m for m in settings.milestones]
        return cls(tuple(round(m * steps) for m in in_epochs), settings.milestone_factor)

    def at(self, step: int) -> float:
        """What the peak rate is multiplied by at a step."""
        return self.factor ** sum(step >= milestone for milestone in self.steps)


@dataclass(frozen=True)
class Schedule:
    """The learning rate of `total` steps: linear warm-up to `peak`, then half a cosine to 0, or steps."""

    peak: float
    total: int
    warmup: int
    falls: Falls | None = None

    def warmth(self, step: int, part: float = 0.0) -> float:
        """How far the warm-up is at a step, or this part of all steps if that is longer: up to 1."""
        return min(1.0, (step + 1) / max(1, self.warmup, round(part * self.total)))

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if self.falls is None or step < self.warmup:
            return self.peak * factor(step, self.total, self.warmup)
        return self.peak * self.falls.at(step)


def check(settings: TrainConfig) -> None:
    """Refuse milestones that a training of the given length never reaches."""
    late = [m for m in settings.milestones if settings.epochs is not None and m >= max(1, settings.epochs)]
    if settings.schedule == "steps" and late:
        raise UserError(
            f"train.milestones={late[0]:g} is never reached in train.epochs={settings.epochs}; "
            "numbers below 1 are parts of the training"
        )
