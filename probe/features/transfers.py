"""Pixels to the device and features back, beside the computing where the device has queues for it.

On a GPU each direction has a stream of its own: the next batch is copied in and the last one out while the
device computes. What has been sent is collected one batch later, so that nobody waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

WITH_STREAMS = ("cuda", "xpu")
Collected = Callable[[], Tensor]  # waits for the features of a batch and gives them, on the CPU


class Transfers(Protocol):
    """The two ways between the CPU and a device."""

    def to_device(self, pixels: Tensor) -> Tensor:
        """A batch on the device, channels last; the CPU's copy must stay as it is until collected."""

    def to_host(self, features: Tensor) -> Collected:
        """Begin to copy features to the CPU."""


def transfers(device: torch.device) -> Transfers:
    """The fastest way there is for this device."""
    return Streams(device) if device.type in WITH_STREAMS else InTurn(device)


class InTurn:
    """One thing after the other: on a CPU nothing is copied, and MPS has one queue."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_device(self, pixels: Tensor) -> Tensor:
        return pixels.to(self.device, memory_format=torch.channels_last)

    def to_host(self, features: Tensor) -> Collected:
        found = features.float().cpu()
        return lambda: found


class Streams:
    """A stream for each direction; events order them with the device's own stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._in: Any = torch.Stream(device)
        self._out: Any = torch.Stream(device)

    def to_device(self, pixels: Tensor) -> Tensor:
        computing = torch.accelerator.current_stream(self.device)
        with self._in:
            sent = pixels.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        computing.wait_stream(self._in)
        sent.record_stream(computing)  # its memory is not given away while the forward pass needs it
        return sent

    def to_host(self, features: Tensor) -> Collected:
        features = features.float()
        self._out.wait_stream(torch.accelerator.current_stream(self.device))
        with self._out:
            found = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            found.copy_(features, non_blocking=True)
            features.record_stream(self._out)
            copied = self._out.record_event()

        def collected() -> Tensor:
            copied.synchronize()
            return found

        return collected
