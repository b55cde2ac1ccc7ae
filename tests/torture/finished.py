"""A small run that went well, for tortures of what a run leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from torture.answers import command

COLOURS = {"blue": (40, 60, 200), "green": (60, 180, 70), "red": (200, 50, 40)}


def photographs(root: Path, names: dict[str, tuple[int, int, int]] | None = None, number: int = 4) -> Path:
    """An image folder of noisy colours, `number` images a class and split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, colour in (names or COLOURS).items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = np.clip(np.array(colour) + rng.normal(0, 60, (24, 24, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


def run(folder: Path, *words: str) -> Path:
    """The run folder of a probe of `folder/photographs`, made if need be."""
    root = folder / "photographs"
    if not root.exists():
        photographs(root)
    given = ["--backbone", "cifar-resnet20", "--data", str(root), "--l2", "1", "features.workers=0"]
    before = set((folder / "runs").glob("[!.]*"))
    done = command(["run", *given, *words, "--out", str(folder / "runs")])
    assert done.exit_code == 0, done.stderr
    (made,) = set((folder / "runs").glob("[!.]*")) - before
    return made
