"""An exponential moving average of the weights, beside the weights that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from probe.train.model.network import Network


class WeightEMA:
    """ema <- m ema + (1 - m) weights after every step; m starts small, so that the start is soon forgotten.

    Buffers that count or hold statistics are copied, not averaged: they are averages already. Of sharded
    weights each process averages its own shard.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.decay = decay
        self.weights = {name: t.detach().clone() for name, t in network.state_dict().items()}
        self._parameters = {name for name, _ in network.named_parameters()}

    @torch.no_grad()
    def update(self, network: Network, step: int) -> None:
        """Take in the weights after `step` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            if name in self._parameters:
                self.weights[name].lerp_(value, 1 - decay)
            else:
                self.weights[name].copy_(value)

    def restart(self, network: Network) -> None:
        """Begin again with the network's weights."""
        for name, value in network.state_dict().items():
            self.weights[name].copy_(value)

    @contextmanager
    def used_by(self, network: Network) -> Iterator[None]:
        """Inside the block the network has the averaged weights."""
        own: dict[str, Tensor] = {name: t.detach().clone() for name, t in network.state_dict().items()}
        network.take(self.weights)
        try:
            yield
        finally:
            network.take(own)
