"""A small package as somebody else would install it: code, and entry points that name its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# A backbone and a data set from outside: the mean colour of an image, and images of one colour each.
CODE = """
import hashlib

import numpy as np
from PIL import Image

from backbones import Parts, Preprocessing, Spec
from backbones.sources import Scratch
from probe.data import Images, DatasetSpec, Split

COLOURS = ((200, 30, 30), (30, 200, 30), (30, 30, 200))


def mean_colour(spec, weights, *, tap, image_size):
    from torch import nn

    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 8))
    return Parts(net, 8, "pooled", Preprocessing(size=16, resize=16), "mean colour", "none")


class Painted(Images):
    def __init__(self, labels):
        self.labels = labels

    def stored(self, row):
        noise = np.random.default_rng(row).integers(-20, 20, (6, 6, 3))
        return (np.array(COLOURS[self.labels[row]]) + noise).astype(np.uint8).tobytes()

    def decoded(self, stored, row):
        return Image.frombytes("RGB", (6, 6), stored)

    def where(self, row):
        return f"number {row} of my data"

    def hashed(self):
        digests = [hashlib.sha256(self.stored(row)).digest() for row in range(len(self.labels))]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)


def read():
    labels = np.arange(60) % 3
    ids = [f"{i:02d}" for i in range(60)]
    everything = Split("all", Painted(labels), labels, ids, ("red", "green", "blue"))
    return {"train": everything.subset(range(42), "train"), "test": everything.subset(range(42, 60), "test")}


NET = Spec("my-net", mean_colour, "mean colour", Scratch(), {"pooled": 8}, 16, "mit")
BY_PATH = Spec("my-path-net", "my_package:mean_colour", "mean colour", Scratch(), {"pooled": 8}, 16, "mit")
DATA = DatasetSpec("my-data", "My data", classes=3, sizes={"train": 42, "test": 18}, read=read)
SMALLER = DatasetSpec("my-smaller-data", "Fewer", classes=3, sizes={"train": 42, "test": 17}, read=read)
"""
ROWS = {
    "backbones": {
        "my-net": "my_package:NET",
        "my-path-net": "my_package:BY_PATH",
        "broken-net": "my_package:NO",
    },
    "datasets": {
        "my-data": "my_package:DATA",
        "my-smaller-data": "my_package:SMALLER",
        "broken-data": "my_other_package:DATA",
        "pets": "my_package:DATA",
    },
}


def install(folder: Path, code: str = CODE, rows: Mapping[str, Mapping[str, str]] = ROWS) -> Path:
    """Put a package `my_package` with these entry points into `folder`, as pip would; put it on the path."""
    about = folder / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "my_package.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    groups = (
        [f"[mr2_probe.{kind}]", *(f"{n} = {v}" for n, v in found.items())] for kind, found in rows.items()
    )
    (about / "entry_points.txt").write_text("\n".join(line for group in groups for line in group) + "\n")
    return folder


def python(folder: Path, words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run Python with the package of `folder` installed."""
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
