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
from probe.features.precision import FULL, ingredient, prove
from probe.features.transfers import Collected, transfers

log = logging.getLogger("probe.features")

# Compiling takes as long as extracting some 4,000 images on two cores, and makes the rest 1.4 x faster;
# faster devices need more images to earn it back.
COMPILE_PAYS_FROM = {"cpu": 20_000, "cuda": 400_000}


# Pixels in one forward pass: on a CPU the activations of a stream should stay in its caches.
BATCH_PIXELS = {"cpu": 4 * 224**2, "cuda": 256 * 224**2}
PROVED = 32  # images of the first batch that are encoded in float32 too: a whole one may not fit


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

    def __init__(self, backbone: Backbone, *, batch_size: int, precision: str, compile: bool) -> None:
        self.backbone = backbone
        self.device = device_of(backbone)
        self.dtype = next((p.dtype for p in backbone.parameters()), torch.float32)
        self.batch_size = batch_size
        self.precision = precision
        self.compiled = compile
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward: Callable[[Tensor], Tensor] = backbone
        self._transfers = transfers(self.device)
        self._first = threading.Lock()
        self._proved = precision == FULL

    def __call__(self, pixels: Tensor) -> Tensor:
        """N x 3 x size x size, uint8 -> N x dim, on the CPU."""
        return self.begin(pixels)()

    @torch.inference_mode()
    def begin(self, pixels: Tensor) -> Collected:
        """Send a batch; the result waits for its features. The pixels must not change until then."""
        n = len(pixels)
        if n == 0:
            return lambda: torch.empty(0, self.backbone.dim)
        with self._first:
            if self.compiled and self._forward is self.backbone:
                self._compile(pixels)
        if self.compiled and n < self.batch_size:  # one shape, one compilation
            pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - n, *pixels.shape[1:])])
        sent = self._transfers.to_device(pixels)
        features = self._halving(sent)[:n]
        if features.shape != (n, self.backbone.dim):
            told = f"{tuple(features.shape)}, not {(n, self.backbone.dim)}"
            raise UserError(f"{self.backbone.name} gives features of shape {told}; correct its dim")
        with self._first:
            if not self._proved:
                self._prove(features[:PROVED], sent[:n][:PROVED])
        return self._transfers.to_host(features)

    def _prove(self, features: Tensor, sent: Tensor) -> None:
        """Compare features with those of the same images in float32, by the network itself."""
        full = self.backbone(self.backbone.preprocessing.normalise(sent).to(self.dtype))
        prove(self.backbone.name, self.precision, features.float().cpu(), full.float().cpu())
        self._proved = True

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
        low = ingredient(self.precision)
        try:
            with torch.autocast(self.device.type, getattr(torch, low)) if low else nullcontext():
                return self._forward(self.backbone.preprocessing.normalise(pixels).to(self.dtype))
        except torch.OutOfMemoryError:
            if len(pixels) == 1:
                raise UserError(
                    f"one image does not fit the memory of {self.device}; use a smaller image size"
                ) from None
        half = len(pixels) // 2
        return torch.cat([self._halving(pixels[:half]), self._halving(pixels[half:])])
