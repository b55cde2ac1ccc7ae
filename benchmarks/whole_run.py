"""A whole `probe run` whose features are in the cache: groups, two methods, diagnostics and the page.

    python -m benchmarks.whole_run                      # 200 classes, 6,000 training images, 1,280 features
    python -m benchmarks.whole_run --classes 20         # less
    python -m benchmarks.whole_run --data FOLDER        # a real data set at its backbone's own size

Images are made here and encoded once, before anything is timed: colour fields, one for each class, that are
shifted, mirrored, mixed with others and noisy. Then the command is run as a user would, each time into a new
folder. At most 40 s on two free cores is wanted; seconds are the clock's and, in brackets, the processor's,
which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WANTED = 40.0
SIDE, SHIFT = 96, 24  # pixels of the images made here, and how far they are moved
PER_CLASS = {"train": 30, "test": 10}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_run", description=__doc__)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--data", help="a data set or folder, instead of images made here")
    parser.add_argument("--method", default="mr2", help="beside erm")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        words = ["--data", given.data] if given.data else ["--data", str(place / "images")]
        if not given.data:
            draw(place / "images", given.classes)
            words += ["--image-size", str(SIDE)]
        words += ["--method", given.method, "--cache", str(place / "cache")]
        timed(words, place / "first")  # extraction, and whatever else is made once
        found = [timed(words, place / str(number)) for number in range(given.repeats)]
    clock, cpu = median(row[0] for row in found), median(row[1] for row in found)
    promise = "" if given.data or clock <= WANTED else "  MORE THAN WANTED"
    print(f"whole run {clock:.1f} s ({cpu:.1f} s of the processor){promise}")
    stages = found[-1][2]
    print("  " + "   ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items()))


def timed(words: Sequence[str], out: Path) -> tuple[float, float, dict[str, float]]:
    """Seconds by the clock and of the processor of one `probe run`, and those of its stages."""
    before, begin = _children(), time.perf_counter()
    command = [sys.executable, "-m", "probe", "run", *words, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, cpu = time.perf_counter() - begin, _children() - before
    (result,) = out.glob("*/result.json")
    return seconds, cpu, json.loads(result.read_text())["timing"]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def draw(folder: Path, classes: int) -> None:
    """`train/<class>/*.png` and `test/<class>/*.png`; of later classes there is less in an image."""
    rng = np.random.default_rng(0)
    for k in range(classes):
        pattern = (_field(rng, 4, SIDE + SHIFT) + _field(rng, 16, SIDE + SHIFT)) / 2
        others = 0.05 + 0.35 * k / classes
        for split, number in PER_CLASS.items():
            place = folder / split / f"class {k:03d}"
            place.mkdir(parents=True)
            for i in range(number):
                x, y = rng.integers(0, SHIFT, 2)
                own = pattern[x : x + SIDE, y : y + SIDE][:, :: rng.choice([-1, 1])]
                image = (1 - others) * own + others * _field(rng, int(rng.integers(3, 12)), SIDE)
                image = image + 8 * rng.normal(size=image.shape)
                Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(place / f"{i}.png")


def _field(rng: np.random.Generator, cells: int, side: int) -> NDArray[np.float32]:
    """Random colours, `cells` along each side, with smooth transitions."""
    colours = np.clip(128 + 60 * rng.normal(size=(cells, cells, 3)), 0, 255).astype(np.uint8)
    return np.asarray(Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC), np.float32)


if __name__ == "__main__":
    main()
