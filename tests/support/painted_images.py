"""Pictures that are easy to tell apart, but not without a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (60, 180, 70), "grey": (120, 120, 120), "red": (200, 50, 40)}


def paint(folder: Path, colour: tuple[int, int, int], number: int, rng: np.random.Generator) -> None:
    """Noisy pictures around a colour: easy to tell apart, but not without a mistake."""
    folder.mkdir(parents=True)
    for i in range(number):
        noise = rng.normal(0, 70, (24, 24, 3)) + rng.normal(0, 35, 3)
        pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
