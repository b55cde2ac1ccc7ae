"""One training from warm-up to the end of its schedule; most methods have a single one."""

from __future__ import annotations

from dataclasses import dataclass

from probe.recipe.train_settings import TrainConfig
from probe.train.inputs.sampler import Sampler
from probe.train.schedule import Falls, Schedule


@dataclass(frozen=True)
class Stage:
    """How long it is, what it draws, and how its learning rate goes."""

    epochs: int
    sampler: Sampler
    steps: int  # of an epoch
    schedule: Schedule

    @classmethod
    def of(cls, settings: TrainConfig, epochs: int, sampler: Sampler, lr: float) -> Stage:
        """A stage of so many epochs, with the peak rate `lr`."""
        steps = sampler.steps
        warmup = round((settings.warmup_epochs or 0) * steps)
        falls = Falls.of(settings, epochs, steps)
        return cls(epochs, sampler, steps, Schedule(lr, epochs * steps, warmup, falls))
