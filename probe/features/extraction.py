"""Features of a split: found in the cache, or computed into it by one pass through a frozen backbone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from backbones.backbone import Backbone
from probe.data import Split
from probe.errors import UserError, nearest
from probe.features.cache_key import SHARD_ROWS, IdentifiedBackbone, key_of
from probe.features.encoder import default_batch, device_of, worth_compiling
from probe.features.entry_format import Damage
from probe.features.feature_set import FeatureSet
from probe.features.matrix import Matrix
from probe.features.missing_shards import ExtractionJob, fill
from probe.features.pipeline import default_workers
from probe.features.precision import FULL, ingredient
from probe.features.precision import check as check_precision
from probe.features.store import Entry
from probe.features.views import CENTER, View
from probe.system.cache_dir import cache_root

TENSORS = ("features", "labels", "index")  # of a shard
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def extract(
    backbone: Backbone,
    split: Split,
    *,
    cache: str | Path | None = None,
    dtype: str = "float32",
    batch_size: int | None = None,
    workers: int | None = None,
    skip_bad_images: bool = False,
    progress: bool = True,
    precision: str = FULL,
    compile: bool | Literal["auto"] = "auto",
    shard_rows: int = SHARD_ROWS,
    view: str | View = CENTER,
) -> FeatureSet:
    """The features of every image of `split` (N x dim), from the cache or computed into it.

    Safe to kill, to repeat and to run several times at once on one cache, also under torchrun: the
    processes share the shards between them and all return the whole.

    cache            folder; else $PROBE_CACHE, else the user's cache folder
    dtype            how features are stored: "float32" or "float16" (half the disk; read back as float32)
    batch_size       images in one forward pass; by default chosen for the device
    workers          CPU: streams that decode and encode, one core each; GPU: decoding processes
    skip_bad_images  leave out images that cannot be decoded (`.skipped`) instead of stopping
    precision        of the forward pass: "float32", "bfloat16" or "float16" (`probe.features.precision`); the
                     first batch is compared with float32; part of the key
    compile          torch.compile; "auto": only where there are enough images to earn its cost back
    shard_rows       rows in one file of the cache; part of the key
    view             what is shown of each image (`probe.features.views`): "center", the evaluation crop;
                     "flip", its mirror image; "crop-1", "crop-2", ...; part of the key
    """
    started = time.perf_counter()
    device, view = device_of(backbone), view if isinstance(view, View) else View(view)
    _check(
        dtype=dtype, batch_size=batch_size, workers=workers, precision=precision, split=split, device=device
    )
    entries = _entries(backbone, split, cache, dtype, skip_bad_images, view, precision, shard_rows)
    entry, shards, damaged = _looked_up(entries)
    found = shards is not None
    if shards is None:
        entry.prepare(damaged)
        job = ExtractionJob(
            backbone,
            split,
            entry,
            entries[-1],
            DTYPES[dtype],
            batch_size or default_batch(device, backbone.preprocessing.size),
            default_workers(device) if workers is None else workers,
            skip_bad_images,
            progress,
            precision,
            worth_compiling(len(split), device) if compile == "auto" else compile,
            view,
        )
        entry, shards = fill(job)
    entry.sweep()
    return _open(entry, shards, split, cached=found, started=started)


def find(
    backbone: IdentifiedBackbone,
    split: Split,
    *,
    cache: str | Path | None = None,
    dtype: str = "float32",
    skip_bad_images: bool = False,
    view: str | View = CENTER,
    precision: str = FULL,
) -> FeatureSet | None:
    """The features of `split` if all of them are in the cache and sound; None otherwise.

    Only the backbone's identity is asked for, so `BackboneIdentity` will do: nothing is loaded.
    """
    started = time.perf_counter()
    view = view if isinstance(view, View) else View(view)
    entry, shards, _ = _looked_up(_entries(backbone, split, cache, dtype, skip_bad_images, view, precision))
    if shards is None:
        return None
    entry.sweep()
    return _open(entry, shards, split, cached=True, started=started)


def _entries(
    backbone: IdentifiedBackbone,
    split: Split,
    cache: str | Path | None,
    dtype: str,
    skip_bad_images: bool,
    view: View,
    precision: str = FULL,
    shard_rows: int = SHARD_ROWS,
) -> list[Entry]:
    """Where the features may be: under the key of all images or, where some may be skipped, of the others."""
    view.check(backbone)
    key = key_of(
        backbone,
        split,
        fingerprint=backbone.digest(),  # of the weights as they are now, trained or not
        dtype=dtype,
        skip_bad_images=skip_bad_images,
        autocast=ingredient(precision),
        shard_rows=shard_rows,
        view=view,
    )
    keys = [key, key.without_bad_images()] if skip_bad_images else [key]
    return [Entry(cache_root(cache), key) for key in keys]


def _looked_up(entries: list[Entry]) -> tuple[Entry, dict[int, Path] | None, list[Damage]]:
    """The first complete entry and its shards; else the one to continue, and what is damaged in it."""
    for entry in entries:
        shards, damaged = entry.complete()
        if shards is not None:
            return entry, shards, []
        if entry is entries[0] or entry.folder.is_dir():
            chosen = entry, None, damaged
    return chosen


def _check(
    *,
    dtype: str,
    batch_size: int | None,
    workers: int | None,
    precision: str,
    split: Split,
    device: torch.device,
) -> None:
    if dtype not in DTYPES:
        raise UserError(f'features cannot be stored as "{dtype}"{nearest(dtype, DTYPES)}')
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch size {batch_size}: it must be at least 1")
    if workers is not None and workers < 0:
        raise UserError(f"{workers} workers: give 0 or more")
    check_precision(precision, device)
    if len(split) == 0:
        raise UserError(f"{split.name} has no images; nothing to extract")


def _open(entry: Entry, shards: dict[int, Path], split: Split, *, cached: bool, started: float) -> FeatureSet:
    """Memory-map the verified shards and prove that they hold every row of the split once."""
    key = entry.key
    opened = [entry.opened(shards[number], _mapped) for number in range(key.shards)]
    features, labels, index = ([shard[name] for shard in opened] for name in TENSORS)
    y, rows = torch.cat(labels).numpy(), torch.cat(index).numpy()
    absent = np.setdiff1d(np.arange(key.rows), rows)
    if len(rows) + len(absent) != key.rows or (np.diff(rows) <= 0).any():
        raise RuntimeError(f"the entry {key.folder} does not hold every row once")
    if len(absent) and not key.lacks_rows:
        raise RuntimeError(f"the entry {key.folder} lacks {len(absent)} rows")
    if len(rows) == 0:
        raise UserError(f"none of the {key.rows} images of {split.name} can be read")
    return FeatureSet(
        X=Matrix(features, key.ingredients["backbone"]["dim"]),
        y=y,
        ids=[split.ids[row] for row in rows.tolist()],
        class_names=tuple(split.class_names),
        name=split.name,
        key=key.hash,
        cached=cached,
        seconds=time.perf_counter() - started,
        skipped=[split.ids[row] for row in absent.tolist()],
    )


def _mapped(shard: Path) -> dict[str, torch.Tensor]:
    """The tensors of a shard, memory-mapped."""
    from safetensors import safe_open

    with safe_open(shard, framework="pt") as file:
        return {name: file.get_tensor(name) for name in TENSORS}
