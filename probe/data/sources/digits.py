"""scikit-learn's handwritten digits, read from the installed package: the data set that is always there."""

from __future__ import annotations

import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from probe.data.dataset import Split
from probe.data.holdout import stratified_holdout
from probe.data.images import Images
from probe.errors import UserError

SIDE = 64  # pixels of the enlarged image; the backbone's own resize does the rest
TEST_FRACTION = 0.25
TEST_SEED = 0
CLASS_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class DigitImages(Images):
    """8 x 8 grey images, enlarged when asked for."""

    def __init__(self, pixels: np.ndarray) -> None:
        self._pixels = pixels  # N x 8 x 8, uint8

    def stored(self, row: int) -> bytes:
        # The side is part of the content: another one would give other pixels.
        return bytes([SIDE]) + self._pixels[row].tobytes()

    def where(self, row: int) -> str:
        return f"number {row} of the embedded digits"

    def decoded(self, stored: bytes, row: int) -> Image.Image:
        small = Image.frombytes("L", (8, 8), stored[1:])
        return small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")

    def hashed(self) -> np.ndarray:
        found = [hashlib.sha256(self.stored(row)).digest() for row in range(len(self._pixels))]
        return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 32)


def read() -> dict[str, Split]:
    """Train and test; the test quarter is stratified and always the same."""
    with gzip.open(_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    labels = table[:, -1]
    pixels = (table[:, :-1] * 255 // 16).astype(np.uint8).reshape(-1, 8, 8)
    ids = [f"digits:{i:04d}" for i in range(len(labels))]
    everything = Split("digits", DigitImages(pixels), labels, ids, CLASS_NAMES)
    train, test = stratified_holdout(labels, TEST_FRACTION, TEST_SEED)
    return {"train": everything.subset(train, "train"), "test": everything.subset(test, "test")}


def _file() -> Path:
    """The table inside scikit-learn; found without importing it, which would take over a second."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.exists():
            return file
    raise UserError(
        "the embedded digits come with scikit-learn, which is not installed: pip install scikit-learn"
    )
