"""What the memory layout is worth: a training step of a convnet with channels last against channels first.

Both sides are the same EfficientNet-lite0 with the same weights on the same images in memory; a step is the
forward and the backward pass, with batch-norm frozen as in fine-tuning. Steps alternate on the same threads,
and medians count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import backbones

LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


def network(layout: torch.memory_format) -> nn.Module:
    """The encoder, trainable, in this layout."""
    encoder = backbones.load("effnet-lite0").encoder.requires_grad_(True).eval()
    return encoder.to(memory_format=layout)  # type: ignore[call-overload]


def seconds(encoder: nn.Module, images: Tensor) -> float:
    """Of one step."""
    begin = time.perf_counter()
    encoder(images).square().mean().backward()
    return time.perf_counter() - begin


def race(batch: int, pixels: int, rounds: int) -> list[float]:
    """Median seconds of a step, by layout."""
    images = torch.randn(batch, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
    sides = [(network(layout), images.contiguous(memory_format=layout)) for layout in LAYOUTS.values()]
    times = [[seconds(*side) for side in sides] for _ in range(rounds + 1)]
    return np.median(times[1:], axis=0).tolist()  # the first round warms up


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(argv)
    last, first = race(given.batch, given.pixels, given.rounds)
    print(f"channels last {1000 * last:.0f} ms a step, first {1000 * first:.0f} ms: {first / last:.2f} x")


if __name__ == "__main__":
    main()
