"""Just train twice: the second training sees the errors of the first more often (Liu et al. 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.losses.base import Loss
from probe.methods.base import Method
from probe.methods.protocols import TrainingLike


class JTT(Method):
    """Stage 1 trains `first_epochs`; stage 2 starts again from step 0, with each error `up` times per epoch.

    Good values depend on the data; choose both on validation. Without errors stage 2 is plain training.
    """

    count: Tensor  # N: how often each sample appears in an epoch of stage 2; empty before it

    def __init__(self, loss: Loss, *, first_epochs: int, up: int, errors: str = "training") -> None:
        """`errors` is read by the exact solver (`probe.probing.second_stage`); a training counts its own."""
        super().__init__(loss)
        self.first_epochs, self.up = first_epochs, up
        self.register_buffer("count", torch.empty(0, dtype=torch.int64))

    def stages(self, epochs: int) -> tuple[int, ...]:
        return (self.first_epochs, epochs)

    def begin_stage(self, stage: int, training: TrainingLike) -> None:
        if stage == 1:
            labels = torch.as_tensor(np.array(training.labels))
            wrong = training.training_logits().argmax(dim=1) != labels
            self.count = torch.where(wrong, self.up, 1)
            training.restart()

    def repeats(self) -> NDArray[np.int64] | None:
        return self.count.cpu().numpy() if len(self.count) else None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.count = torch.empty_like(state_dict[prefix + "count"])  # grows when stage 2 begins
        super()._load_from_state_dict(state_dict, prefix, *args)
