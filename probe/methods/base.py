"""What training asks of a method. The answers here are those of a plain loss; a method overrides some.

The loop knows no method by name. It asks, in this order:

    stages(epochs)              how many trainings in a row, and how long is each?
    begin_stage(stage, run)     anything to do before one starts (look at errors, start again)?
    sampler, repeats()          which samples make an epoch?
    views                       how many random views of each image?
    start_epoch(epoch, epochs)
    step(window)                what is a step? (gradients, then an update)
    objective(network, batch)   what is minimised on a (micro-)batch?
    end_epoch(epoch, run)

What a method must remember is in its buffers and parameters, as in any torch module: those are saved with
every checkpoint, equal on all processes. Parameters of its own (centres, a second network) are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from probe.train.inputs.batch import Batch
    from probe.train.loop import Training
    from probe.train.model.network import Network
    from probe.train.step import Window


class Method(nn.Module):
    """A loss, minimised by one update a batch."""

    views = 1
    sampler: str | None = None  # None: the recipe's

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    @property
    def takes(self) -> str:
        """What the loss takes first: "logits" or "cosines"."""
        return self.loss.spec.takes

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of each stage; every stage has its own warm-up and cosine."""
        return (epochs,)

    def begin_stage(self, stage: int, run: Training) -> None:
        """Called once before a stage's first step, with the network as the stage before left it."""

    def repeats(self) -> NDArray[np.int64] | None:
        """How often each sample stands in an epoch of this stage; None: once."""
        return None

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.loss.start_epoch(epoch, epochs)

    def objective(self, network: Network, batch: Batch) -> Tensor:
        """The loss of the joined batch (see `probe.core.collectives`)."""
        scores, features = network.parts(batch.inputs, self.takes)
        return self.loss(scores, batch.targets, features)

    def step(self, window: Window) -> float:
        """Move the weights by one optimiser step; returns the loss before it."""
        loss = window.gradients()
        window.update()
        return loss

    def end_epoch(self, epoch: int, run: Training) -> None:
        """Called after an epoch's last step, before validation."""
