"""Deferred re-weighting: plain at first, class-balanced at the end (Cao et al. 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probe.errors import UserError
from probe.losses.base import Loss, effective_weights
from probe.methods.base import Method


class DRW(Method):
    """sum w_y l / sum w_y over the batch; w is 1 in the first `after` of the epochs, then effective-number
    weights. What a loss has beside its mean over samples (ELM's and MR²'s pull) stays as it is.
    """

    weights: Tensor

    def __init__(self, loss: Loss, *, counts: Any, after: float, beta: float) -> None:
        """`counts` are the K class counts; `loss` must have a mean over samples to weight."""
        super().__init__(loss)
        if not loss.takes_class_weights:
            raise UserError(f"drw weights samples, and {loss.name} has no mean over samples")
        counts = torch.as_tensor(counts).to(torch.float64).clamp(min=1)
        self.after = after
        self.register_buffer("weights", effective_weights(counts, beta).float(), persistent=False)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        super().start_epoch(epoch, epochs)
        deferred = epoch < round(self.after * epochs)
        self.loss.class_weights = None if deferred else self.weights
