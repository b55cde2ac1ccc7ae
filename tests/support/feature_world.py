"""A small real world for the feature tests: a convolutional backbone and a split of noise pictures.

Run as a script it extracts into the cache given as its argument, so that tests can start it several times,
kill it, and start it again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from PIL import Image
from torch import nn

from backbones.backbone import Backbone, Parts
from backbones.preprocess import Preprocessing
from probe.data import BadImage, Split

PREPROCESSING = Preprocessing(size=16, resize=18, interpolation="bilinear")
CLASSES = ("cat", "dog", "eel")


@dataclass(frozen=True)
class NoiseImages:
    """Row i is a picture drawn from seed i."""

    count: int
    delay: float = 0.0  # seconds of pretended decoding
    bad: frozenset[int] = frozenset()
    seen: list[int] = field(default_factory=list, compare=False)

    def rgb(self, row: int) -> Image.Image:
        self.seen.append(row)
        time.sleep(self.delay)
        if row in self.bad:
            raise BadImage(f"bad image {row:04d}.png: truncated; fix or remove it, or pass --skip-bad-images")
        pixels = np.random.default_rng(row).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    def digests(self) -> np.ndarray:
        return np.stack(
            [np.frombuffer(hashlib.sha256(f"{i}".encode()).digest(), np.uint8) for i in range(self.count)]
        )


def split(count: int = 100, name: str = "pets/train", **images: object) -> Split:
    ids = [f"{i:04d}.png" for i in range(count)]
    return Split(name, NoiseImages(count, **images), np.arange(count) % 3, ids, CLASSES)  # type: ignore[arg-type]


def backbone(
    seed: int = 0, *, tap: str = "pooled", encoder: nn.Module | None = None, **numbers: object
) -> Backbone:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)]
    encoder = encoder or nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    preprocessing = replace(PREPROCESSING, **numbers)  # type: ignore[arg-type]
    return Backbone("tiny", Parts(encoder, 32, tap, preprocessing, "tiny", "seed"))


def contents(folder: object) -> dict[str, bytes]:
    """Every file below a folder, by its relative name."""
    from pathlib import Path

    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()
    }  # type: ignore[arg-type]


def main() -> None:
    from probe import features

    if os.environ.get("WITH_ACCELERATE"):
        from accelerate import Accelerator

        assert Accelerator(cpu=True).num_processes == int(os.environ["WORLD_SIZE"])
    if os.environ.get("WITHOUT_LOCKS"):
        from probe.system import locks

        locks.FolderLocks.acquire = lambda self, shard: True  # type: ignore[method-assign]
    pictures = split(delay=float(os.environ.get("DELAY", 0)))
    options = {"cache": sys.argv[1], "shard_rows": 8, "batch_size": 4, "progress": False}
    for view in os.environ.get("VIEWS", "center").split():
        f = features.extract(backbone(), pictures, view=view, **options)  # type: ignore[arg-type]
    print(len(pictures._images.seen), f.X.tensor().double().sum().item(), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
