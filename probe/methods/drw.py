"""Deferred re-weighting: plain at first, class-balanced at the end (Cao et al. 2019)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from probe.core import collectives
from probe.errors import UserError
from probe.losses.base import Loss, MeanLoss, effective_weights
from probe.methods.base import Method
from probe.methods.protocols import BatchLike, NetworkLike


class DRW(Method):
    """sum w_y l / sum w_y over the batch; w is 1 in the first `after` of the epochs, then effective-number
    weights. Works around every loss that is a mean over samples (erm, ldam, focal, ...).
    """

    weights: Tensor

    def __init__(self, loss: Loss, *, counts: Any, after: float, beta: float) -> None:
        """`counts` are the K class counts; `loss` must give the loss of each sample (`losses`)."""
        super().__init__(loss)
        if not loss.sample_mean:
            raise UserError(f"drw weights samples, and {loss.name} is not a mean over samples")
        counts = torch.as_tensor(counts).to(torch.float64).clamp(min=1)
        self.after = after
        self.deferred = True
        self.register_buffer("weights", effective_weights(counts, beta).float(), persistent=False)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        super().start_epoch(epoch, epochs)
        self.deferred = epoch < round(self.after * epochs)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        if self.deferred:
            return super().objective(network, batch)
        scores, _ = network.parts(batch.inputs, self.takes)
        with torch.autocast(scores.device.type, enabled=False):
            values, own = cast(MeanLoss, self.loss).losses(scores.float(), batch.targets)
            if batch.targets.is_floating_point():
                weights = batch.targets @ self.weights
            else:
                weights = self.weights[batch.targets]
            return collectives.mean(values, weights if own is None else own * weights)
