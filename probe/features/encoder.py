"""A batch of pixels becomes features: the device side of extraction."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from backbones.backbone import Backbone
from backbones.errors import reason
from probe.errors import UserError

log = logging.getLogger("probe.features")

# Compiling takes as long as extracting some 4,000 images on two cores, and makes the rest 1.4 x faster;
# faster devices need more images to earn it back.
COMPILE_PAYS_FROM = {"cpu": 20_000, "cuda": 400_000}


# Pixels in one forward pass: on a CPU the activations of a stream should stay in its caches.
BATCH_PIXELS = {"cpu": 4 * 224**2, "cuda": 256 * 224**2}


def device_of(backbone: Backbone) -> torch.device:
    """Where the backbone's weights are; the CPU if it has none."""
    return next((p.device for p in backbone.parameters()), torch.device("cpu"))


def default_batch(device: torch.device, size: int) -> int:
    """Images of this size in one forward pass."""
    return min(1024, max(4, BATCH_PIXELS.get(device.type, BATCH_PIXELS["cuda"]) // size**2))


def worth_compiling(images: int, device: torch.device) -> bool:
    """The rule behind compile="auto": depends on the split alone, so a resumed run decides the same."""
    possible = device.type == "cuda" or (sys.platform == "linux" and shutil.which("g++") is not None)
    return possible and images >= COMPILE_PAYS_FROM.get(device.type, sys.maxsize)


class BatchEncoder:
    """Pixels in, float32 features out, in the layout and precision that are fastest for the device.

    Channels-last is the native layout of convolutions on CPUs and tensor cores; it does not touch the
    attention layers of a transformer.
    """

    def __init__(self, backbone: Backbone, *, batch_size: int, autocast: str | None, compile: bool) -> None:
        self.backbone = backbone
        self.device = device_of(backbone)
        self.dtype = next((p.dtype for p in backbone.parameters()), torch.float32)
        self.batch_size = batch_size
        self.autocast = getattr(torch, autocast) if autocast else None
        self.compiled = compile
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward: Callable[[Tensor], Tensor] = backbone
        self._first = threading.Lock()

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> Tensor:
        """N x 3 x size x size, uint8 -> N x dim, on the CPU."""
        n = len(pixels)
        if n == 0:
            return torch.empty(0, self.backbone.dim)
        with self._first:
            if self.compiled and self._forward is self.backbone:
                self._compile(pixels)
        if self.compiled and n < self.batch_size:  # one shape, one compilation
            pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - n, *pixels.shape[1:])])
        pixels = pixels.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        features = self._halving(pixels)[:n]
        if features.shape != (n, self.backbone.dim):
            told = f"{tuple(features.shape)}, not {(n, self.backbone.dim)}"
            raise UserError(f"{self.backbone.name} gives features of shape {told}; correct its dim")
        return features.float().cpu()

    def _compile(self, like: Tensor) -> None:
        """Compile on a blank batch; a machine that cannot (no C++ compiler, say) continues without."""
        blank = like.new_zeros(self.batch_size, *like.shape[1:])
        self._forward = torch.compile(self.backbone, dynamic=False)
        try:
            self._halving(blank.to(self.device, memory_format=torch.channels_last))
        except Exception as error:
            log.warning("cannot compile %s, continuing without: %s", self.backbone.name, reason(error))
            self._forward, self.compiled = self.backbone, False

    def _halving(self, pixels: Tensor) -> Tensor:
        """Forward; a batch that does not fit the device's memory is split in two until it does."""
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
