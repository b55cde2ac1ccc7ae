"""What training asks of a method. The answers here are those of a plain loss; a method overrides some.

The loop knows no method by name. It asks, in this order:

    stages(epochs)                  how many trainings in a row, and how long is each?
    begin_stage(stage, training)    anything to do before one starts (look at errors, start again)?
    wanted_stats(), prepare(stats)  which class statistics does it start from? They are taken by a pass
    sampler, together, repeats()    which samples make an epoch, and which are kept together?
    views                           how many random views of each image?
    start_epoch(epoch, epochs)
    ramp, set_strength(fraction)    how long, and how far, does its own term grow, before each step?
    step(step)                      what is a step? (gradients, then an update)
    objective(network, batch)       what is minimised on a (micro-)batch?
    end_epoch(epoch, training)

What a method must remember is in its buffers and parameters, as in any torch module: those are saved with
every checkpoint, equal on all processes. Parameters of its own (centres, a second network) are trained.
What it may ask in return is in `probe.methods.protocols`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.core.class_stats import ClassStats
from probe.losses.base import Loss
from probe.losses.spec import NeededStats
from probe.methods.protocols import BatchLike, NetworkLike, StepLike, TrainingLike


class Method(nn.Module):
    """A loss, minimised by one update per batch."""

    views = 1
    sampler: str | None = None  # None: the recipe's

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    @property
    def takes(self) -> str:
        """What the loss takes first: "logits" or "cosines"."""
        return self.loss.spec.takes

    @property
    def together(self) -> int:
        """Images of one class that a batch should hold, where classes are many; 1: as they come."""
        return self.loss.together

    @property
    def uses_partners(self) -> bool:
        """Does a sample's loss look at the others of its class in the batch?"""
        return self.loss.uses_partners

    def wanted_stats(self) -> NeededStats | None:
        """Class statistics of the training set that it starts from; None: it needs none."""
        return self.loss.wanted_stats()

    def prepare(self, stats: ClassStats) -> None:
        """Start from these statistics, of the network as it is before a stage's first step."""
        self.loss.prepare(stats)

    @property
    def ramp(self) -> float:
        """Part of a stage over which its own term grows; the warm-up, where that is longer."""
        return self.loss.ramp

    def set_strength(self, fraction: float) -> None:
        """Called before every step: how far the warm-up, or `ramp`, is, up to 1."""
        self.loss.set_strength(fraction)

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of each stage; every stage has its own warm-up and cosine schedule."""
        return (epochs,)

    def begin_stage(self, stage: int, training: TrainingLike) -> None:
        """Called once before a stage's first step, with the network as the stage before left it."""

    def repeats(self) -> NDArray[np.int64] | None:
        """N counts: how often each sample appears in an epoch of this stage; None: once."""
        return None

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Called before an epoch's first step, with the number of epochs in the stage."""
        self.loss.start_epoch(epoch, epochs)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        """Forward pass and loss: a scalar, the mean over the batch of all processes (`core.collectives`)."""
        scores, features = network.parts(batch.inputs, self.takes)
        return self.loss(scores, batch.targets, features)

    def step(self, step: StepLike) -> float:
        """Move the weights by one optimiser step; returns the loss before it."""
        loss = step.gradients()
        step.update()
        return loss

    def end_epoch(self, epoch: int, training: TrainingLike) -> None:
        """Called after an epoch's last step, before validation."""
