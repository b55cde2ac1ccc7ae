"""Small real data and backbones that several rooms' tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (60, 180, 70), "grey": (120, 120, 120), "red": (200, 50, 40)}


def paint(folder: Path, colour: tuple[int, int, int], number: int, rng: np.random.Generator) -> None:
    """Noisy pictures around a colour: easy to tell apart, but not without a mistake."""
    folder.mkdir(parents=True)
    for i in range(number):
        noise = rng.normal(0, 70, (24, 24, 3)) + rng.normal(0, 35, 3)
        pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of four classes: 15 training and 8 test images each."""
    root = tmp_path_factory.mktemp("data") / "colours"
    rng = np.random.default_rng(0)
    for split, number in (("train", 15), ("test", 8)):
        for name, colour in COLOURS.items():
            paint(root / split / name, colour, number, rng)
    return root


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One feature cache for the whole session: what one test extracts, another finds."""
    return tmp_path_factory.mktemp("cache")
