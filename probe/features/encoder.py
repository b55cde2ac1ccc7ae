"""A batch of bytes becomes features: the device side of extraction."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from probe.errors import UserError

log = logging.getLogger("probe.features")

# Compiling takes as long as extracting some 4,000 images on two cores, and makes the rest 1.4 x faster;
# faster devices need more images to earn it back.
COMPILE_PAYS_FROM = {"cpu": 20_000, "cuda": 400_000}


# Pixels in one forward pass: on a CPU the activations of a stream should stay in its caches.
BATCH_PIXELS = {"cpu": 4 * 224**2, "cuda": 256 * 224**2}


def device_of(backbone: Any) -> torch.device:
    return next((p.device for p in backbone.parameters()), torch.device("cpu"))


def default_batch(device: torch.device, size: int) -> int:
    """Images of this size in one forward pass."""
    return min(1024, max(4, BATCH_PIXELS.get(device.type, BATCH_PIXELS["cuda"]) // size**2))


def worth_compiling(images: int, device: torch.device) -> bool:
    """The rule behind compile="auto": depends on the split alone, so a resumed run decides the same."""
    possible = device.type == "cuda" or (sys.platform == "linux" and shutil.which("g++") is not None)
    return possible and images >= COMPILE_PAYS_FROM.get(device.type, sys.maxsize)


class BatchEncoder:
    """Bytes in, float32 features out, in the layout and precision that are fastest for the device.

    Channels-last is the native layout of convolutions on CPUs and tensor cores; it does not touch the
    attention layers of a transformer.
    """

    def __init__(self, backbone: Any, *, batch_size: int, autocast: str | None, compile: bool) -> None:
        self.backbone = backbone
        self.device = device_of(backbone)
        self.dtype = next((p.dtype for p in backbone.parameters()), torch.float32)
        self.batch_size = batch_size
        self.autocast = getattr(torch, autocast) if autocast else None
        self.compiled = compile
        backbone.to(memory_format=torch.channels_last)
        self._forward = backbone
        self._first = threading.Lock()

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """len(pixels) x dim, on the CPU."""
        n = len(pixels)
        if n == 0:
            return torch.empty(0, self.backbone.dim)
        with self._first:
            if self.compiled and self._forward is self.backbone:
                self._compile(pixels)
        if self.compiled and n < self.batch_size:  # one shape, one compilation
            pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - n, *pixels.shape[1:])])
        pixels = pixels.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        return self._halving(pixels)[:n].float().cpu()

    def _compile(self, like: Tensor) -> None:
        """Compile on a blank batch; a machine that cannot (no C++ compiler, say) goes on without."""
        blank = like.new_zeros(self.batch_size, *like.shape[1:])
        self._forward = torch.compile(self.backbone, dynamic=False)
        try:
            self._halving(blank.to(self.device, memory_format=torch.channels_last))
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("cannot compile %s, going on without: %s", self.backbone.name, reason)
            self._forward, self.compiled = self.backbone, False

    def _halving(self, pixels: Tensor) -> Tensor:
        """Forward; a batch that does not fit the device is cut in two until it does."""
        precision = torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()
        try:
            with precision:
                return self._forward(self.backbone.preprocessing.normalise(pixels).to(self.dtype))
        except torch.OutOfMemoryError:
            if len(pixels) == 1:
                raise UserError(
                    f"one image does not fit the memory of {self.device}; use a smaller image size"
                ) from None
        half = len(pixels) // 2
        return torch.cat([self._halving(pixels[:half]), self._halving(pixels[half:])])


@contextmanager
def evaluation_mode(backbone: Any) -> Iterator[None]:
    """No dropout and no moving batch statistics inside; as it was before, after."""
    training = {module for module in backbone.modules() if module.training}
    backbone.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
