"""A small run that went well, for tortures of what a run leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.torture.answers import command

COLOURS = {"blue": (40, 60, 200), "green": (60, 180, 70), "red": (200, 50, 40)}


def photographs(root: Path) -> Path:
    """An image folder of noisy colours, four images a class and split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, colour in COLOURS.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = np.clip(np.array(colour) + rng.normal(0, 60, (24, 24, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


def run(folder: Path) -> Path:
    """The folder of a finished run on `folder/photographs`."""
    _probe("run", folder, "--l2", "1", "--out", str(folder / "runs"))
    (made,) = (folder / "runs").glob("[!.]*")
    return made


def extract(folder: Path) -> None:
    """Fill the cache with the features of `folder/photographs`."""
    _probe("extract", folder)


def _probe(verb: str, folder: Path, *words: str) -> None:
    root = photographs(folder / "photographs")
    done = command([verb, "--backbone", "cifar-resnet20", "--data", str(root), "features.workers=0", *words])
    assert done.exit_code == 0, done.stderr


def without_charts(keep: Path | None = None) -> str:
    """In place of the chart library: no input reaches it, and its engine reserves more than a try may."""
    return ""
