"""What training asks of a method. The answers here are those of a plain loss; a method overrides some.

The loop knows no method by name. It asks, in this order:

    build(network, labels)          which networks and memories of its own does it need? Once, before all else
    stages(epochs)                  how many trainings in a row, and how long is each?
    begin_stage(stage, training)    anything to do before one starts (look at errors, start again)?
    wanted_stats(), prepare(stats)  which class statistics does it start from? They are taken by a pass
    sampler, together, repeats()    which samples make an epoch, and which are kept together?
    views                           which random views of each image? (`probe.train.inputs.augment.KINDS`)
    freezes                         does this stage leave all but the classifier as it is?
    start_epoch(epoch, epochs)
    ramp, set_strength(fraction)    how long, and how far, does its own term grow, before each step?
    step(step)                      what is a step? (gradients, then an update)
    objective(network, batch)       what is minimised on a (micro-)batch?
    after_step(network)             anything that follows the weights (a momentum copy)?
    end_epoch(epoch, training)

What a method must remember is in its buffers and parameters, as in any torch module: those are saved with
every checkpoint, equal on all processes. Parameters of its own (centres, a projection, a second network) are
trained, unless they need no gradient. Buffers move in training mode only, and a new tensor takes the place of
the old one, which a backward pass may still need. `probe.methods.networks` and `probe.methods.memories` have
the pieces; what a method may ask in return is in `probe.methods.protocols`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.core.class_stats import ClassStats
from probe.losses.base import Loss
from probe.losses.spec import NeededStats
from probe.methods.protocols import BatchLike, NetworkLike, StepLike, TeacherLike, TrainingLike


class Method(nn.Module):
    """A loss, minimised by one update per batch."""

    views: tuple[str, ...] = ("own",)  # of each image; the first is what `batch.inputs` is
    one_view = True  # can it do with the first view alone? Cached features have no other
    sampler: str | None = None  # None: the recipe's
    head: Literal["linear", "cosine"] | None = (
        None  # the kind where the recipe names none; None: what the loss takes
    )
    freezes = False  # is the encoder (and an adapter) left as it is, batch-norm included, in this stage?
    trains_later = False  # do later stages train weights that the first one leaves alone?
    searchable = True  # does the classifier learn from the first step on, so that a short trial shows a rate?
    steepness = 1.0  # of its loss, where that of cross-entropy is 1: an adapter's rate is divided by it
    from_scratch = False  # does the network begin at random weights? Set before `build`
    teacher: str | None = None  # a run folder whose network is to be `taught_by`

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

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        """Make networks and memories of its own, before the optimiser is made.

        `network` has its weights of step 0, `labels` are the N of the training set. Random weights drawn here
        are functions of the seed, so that every process has the same. It may be called again, and then begins
        anew.
        """

    def copies(self) -> Sequence[nn.Module]:
        """Its networks that began as (a part of) the trained one: frozen batch-norm is frozen there too."""
        return ()

    def experts(self, network: NetworkLike) -> Sequence[NetworkLike]:
        """The networks whose mean logits are its prediction, the trained one first."""
        return (network,)

    def taught_by(self, teacher: TeacherLike) -> None:
        """Take the network of the run folder that `teacher` names; called before `build`."""

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
        self.loss.see_groups(batch.groups)
        if batch.mixed is not None and not self.loss.spec.soft_targets:
            return self.loss.mixed(scores, *batch.mixed, batch.share, features)
        return self.loss(scores, batch.targets, features)

    def step(self, step: StepLike) -> float:
        """Move the weights by one optimiser step; returns the loss before it."""
        loss = step.gradients()
        step.update()
        return loss

    def after_step(self, network: NetworkLike) -> None:
        """Called after every optimiser step, with the weights that it has moved."""

    def end_epoch(self, epoch: int, training: TrainingLike) -> None:
        """Called after an epoch's last step, before validation."""
        if self.loss.asks_for_pass:
            self.loss.see_groups(training.groups)
            self.loss.see_all(training.training_logits(), torch.as_tensor(np.array(training.labels)))
