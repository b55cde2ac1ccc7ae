"""Learning from failure: what a biased twin gets wrong counts more (Nam et al. 2020)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.errors import UserError
from probe.losses.base import Loss, MeanLoss
from probe.losses.functional import LffState, lff_step
from probe.methods.base import Method
from probe.methods.networks import twin
from probe.methods.protocols import BatchLike, NetworkLike


class LfF(Method):
    """mean w_i l_i + mean (1 - p_b(y_i)^q): the network that is kept, and a twin b that trusts easy samples.

    The twin minimises q times the generalised cross-entropy (the released gradient, p^q times that of
    cross-entropy, times q). The weight w = b / (b + d) compares moving averages of a sample's losses under
    the two (`probe.losses.functional.lff_step`); on frozen features the twin is a second head. It works
    around losses that are a mean over samples.
    """

    biased_losses: Tensor  # N: moving average of each training sample's loss under the twin
    debiased_losses: Tensor  # N: under the network
    seen_labels: Tensor  # N, -1 before a sample's first visit

    def __init__(self, loss: Loss, *, q: float, ema: float) -> None:
        super().__init__(loss)
        if not loss.sample_mean:
            raise UserError(f"lff weights samples, and {loss.name} is not a mean over samples")
        self.q, self.ema = q, ema

    def build(self, network: NetworkLike, labels: NDArray[np.int64]) -> None:
        self.twin = twin(network, fresh=self.from_scratch)
        empty = LffState.empty(len(labels), like=torch.zeros(0))
        self.register_buffer("biased_losses", empty.biased)
        self.register_buffer("debiased_losses", empty.debiased)
        self.register_buffer("seen_labels", empty.labels)

    def copies(self) -> tuple[Any, ...]:
        return (self.twin,)

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        scores, _ = network.parts(batch.inputs, self.takes)
        other = self.twin(batch.inputs)
        with torch.autocast(scores.device.type, enabled=False):
            values, own = cast(MeanLoss, self.loss).losses(scores.float(), batch.targets)
            log_p = -F.cross_entropy(other.float(), batch.targets, reduction="none")
            own = torch.ones_like(values) if own is None else own
            index = batch.index.to(values.device)
            joined = collectives.gather(values, own, log_p, batch.targets, index)
            values, own, log_p, targets, index = joined
            weights = self._weights(-log_p.detach(), values.detach(), targets, index)
            debiased = (own * weights * values).sum() / own.sum()
            return debiased - torch.expm1(self.q * log_p).mean()

    def _weights(self, biased: Tensor, debiased: Tensor, targets: Tensor, index: Tensor) -> Tensor:
        """N weights of the joined batch; in training the losses are remembered first."""
        state = LffState(self.biased_losses, self.debiased_losses, self.seen_labels)
        weights, state = lff_step(biased, debiased, targets, index, state, ema=self.ema)
        if self.training:
            self.biased_losses, self.debiased_losses, self.seen_labels = state
        return weights
