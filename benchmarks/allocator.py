"""What keeping freed memory is worth: training steps of a convnet on the CPU, with and without it.

A process cannot take the setting back, so each side is a process of its own: the same EfficientNet-lite0 on
the same images in memory, forward and backward pass with batch-norm frozen as in fine-tuning, one thread.
Processes alternate, and medians over their median steps count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.layout import network, seconds
from probe.system.allocator import keep_freed_memory

SIDES = ("kept", "returned")


def side(kept: bool, batch: int, pixels: int, steps: int) -> float:
    """Median seconds of a step in this process."""
    if kept and not keep_freed_memory():
        raise SystemExit("this system's memory allocator is not glibc's: there is nothing to compare")
    torch.set_num_threads(1)
    images = torch.randn(batch, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
    encoder = network(torch.channels_last)
    images = images.contiguous(memory_format=torch.channels_last)
    return float(np.median([seconds(encoder, images) for _ in range(steps + 2)][2:]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process")
    given = parser.parse_args(argv)
    size = (given.batch, given.pixels, given.steps)
    if given.side:
        print(side(given.side == SIDES[0], *size))
        return
    command = [sys.executable, "-m", "benchmarks.allocator", *(f"--batch={size[0]}", f"--pixels={size[1]}")]
    times = [
        [
            float(subprocess.check_output([*command, f"--steps={size[2]}", f"--side={name}"], text=True))
            for name in SIDES
        ]
        for _ in range(given.rounds)
    ]
    kept, returned = np.median(times, axis=0)
    ratio = returned / kept
    print(f"memory kept {1000 * kept:.0f} ms a step, returned {1000 * returned:.0f} ms: {ratio:.2f} x")


if __name__ == "__main__":
    main()
