"""How close extraction comes to the bare forward pass, and how far ahead of a plain loop it is.

    python -m benchmarks.extraction [--data FOLDER] [--images 256] [--repeats 5] [--json]

Three ways through the same model and images, measured in turns, so that a busy machine slows all alike:

    bare      forward passes on ready tensors, channels-last; the faster of all threads on one batch and one
              batch for each thread (decoding, which is not in it, shares the cores with ours)
    plain     timm's model and transform, default memory format: decode, transform, forward, one after another
    ours      probe.features.extract into an empty cache: decode, resize, forward, checksum, write, flush

Then peak memory of extracting n and 4 n images.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

import backbones
import probe.data
import probe.features

BACKBONE = "effnet-lite0"
BATCH = 64
STREAM_BATCH = 4
OF_BARE, OVER_PLAIN, MEMORY_GROWTH = 0.85, 2.2, 1.05  # wanted: at least, at least, at most


def photographs(root: Path, count: int, short_side: int) -> Path:
    """A folder of JPEG files that cost about what photographs cost: smooth shapes, edges and some grain."""
    rng = np.random.default_rng(0)
    width = short_side * 4 // 3
    for i in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((width, short_side), Image.Resampling.BICUBIC)
        edges = np.asarray(smooth.quantize(12).convert("RGB").filter(ImageFilter.SMOOTH), dtype=np.int16)
        grain = rng.normal(0, 6, (short_side, width, 1)).astype(np.int16)
        pixels = Image.fromarray(np.clip(edges + grain, 0, 255).astype(np.uint8))
        path = root / ("train" if i % 8 else "test") / f"class-{i // 8 % 2}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels.save(path, quality=90)
    return root


def bare_wide(model: torch.nn.Module, ready: Tensor) -> float:
    """Seconds for the ready tensors, every batch on all threads."""
    started = time.perf_counter()
    with torch.inference_mode():
        for batch in ready.split(BATCH):
            model(batch)
    return time.perf_counter() - started


def bare_streams(model: torch.nn.Module, ready: Tensor) -> float:
    """Seconds for the ready tensors, one batch for each thread."""

    def work(batch: Tensor) -> None:
        with torch.inference_mode():
            model(batch)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, ready.split(STREAM_BATCH)))
    seconds = time.perf_counter() - started
    torch.set_num_threads(threads)
    return seconds


def plain(model: torch.nn.Module, transform: Callable[[Any], Tensor], split: Any) -> float:
    """Seconds for the loop that everybody writes first."""
    started = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, len(split), BATCH):
            rows = range(start, min(start + BATCH, len(split)))
            model(torch.stack([transform(split[row][0]) for row in rows]))
    return time.perf_counter() - started


def ours(backbone: Any, split: Any, options: dict[str, Any]) -> float:
    """Seconds for a complete extraction into an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        f = probe.features.extract(backbone, split, cache=cache, progress=False, **options)
        seconds = time.perf_counter() - started
        assert not f.cached
        assert len(f) == len(split)
    return seconds


def timm_transform(model: torch.nn.Module) -> Callable[[Any], Tensor]:
    from timm.data import create_transform, resolve_model_data_config

    return create_transform(**resolve_model_data_config(model), is_training=False)


def rates(split: Any, repeats: int, compile: bool) -> dict[str, float]:
    """Median images/s of each way, in turns."""
    backbone = backbones.load(BACKBONE)
    everyday = copy.deepcopy(backbone.encoder)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = torch.stack([backbone.preprocessing.pixels(split[i][0]) for i in range(len(split))])
    ready = backbone.preprocessing.normalise(pixels).contiguous(memory_format=torch.channels_last)
    bare: Any = torch.compile(backbone, dynamic=False) if compile else backbone
    ways: dict[str, Callable[[], float]] = {
        "bare, all threads": partial(bare_wide, bare, ready),
        "bare, streams": partial(bare_streams, bare, ready),
        "plain": partial(plain, everyday, timm_transform(everyday), split),
        "ours": partial(ours, backbone, split, {"compile": compile}),
    }
    for name, way in ways.items():  # warm up; the plain loop, being slow, on its own first round
        if name != "plain":
            way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(way())
    return {name: len(split) / statistics.median(times) for name, times in seconds.items()}


MEMORY = """
import re, sys
from pathlib import Path
import backbones, probe.data, probe.features
split = probe.data.load(sys.argv[1])["train"]
rows = [row % len(split) for row in range(int(sys.argv[3]))]
split.ids, split.labels = [f"{i}" for i in range(len(rows))], split.labels[rows]
split._rows = __import__("numpy").array(rows)
backbone = backbones.load(sys.argv[4], image_size=64)
probe.features.extract(backbone, split, cache=sys.argv[2], shard_rows=256, progress=False)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def peak_memory(folder: Path, images: int) -> float:
    """MB that a process of its own needs at most to extract so many (repeated) images."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", MEMORY, str(folder), cache, str(images), BACKBONE]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    return float(done.stdout)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        made = photographs(Path(scratch), arguments.images * 8 // 7 + 8, arguments.short_side)
        folder = Path(arguments.data) if arguments.data else made
        split = probe.data.load(str(folder))["train"]
        split = split.subset(range(min(arguments.images, len(split))), "train")
        result: dict[str, Any] = {"images": len(split), "threads": torch.get_num_threads()}
        result["images/s"] = rates(split, arguments.repeats, arguments.compile)
        if not arguments.no_memory:
            small, large = (peak_memory(made, n) for n in (512, 2048))
            result["peak MB"] = {"512 images": small, "2048 images": large}
            result["memory growth"] = large / small
    speed = result["images/s"]
    result["of bare"] = speed["ours"] / max(speed["bare, all threads"], speed["bare, streams"])
    result["over plain"] = speed["ours"] / speed["plain"]
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="an image folder or parquet files; else photographs are made up")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--short-side", type=int, default=375, help="of the made-up photographs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compile both the bare model and ours")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"extraction, {BACKBONE}, {result['images']} images, {result['threads']} threads")
    for name, rate in result["images/s"].items():
        print(f"  {name:18} {rate:7.1f} images/s")
    print(f"  {'of bare':18} {result['of bare']:7.2f}   (wanted: at least {OF_BARE})")
    print(f"  {'over plain':18} {result['over plain']:7.2f} x (wanted: at least {OVER_PLAIN})")
    if "peak MB" in result:
        sizes = ", ".join(f"{mb:.0f} MB for {name}" for name, mb in result["peak MB"].items())
        growth = result["memory growth"]
        print(f"  {'memory growth':18} {growth:7.2f} x (wanted: at most {MEMORY_GROWTH}); {sizes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
