"""Filling the cache: every image of a split through a frozen backbone, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from probe.data.images import Changed
from probe.errors import UserError, nearest
from probe.features.batches import Loader
from probe.features.cache_key import SHARD_ROWS, key_of
from probe.features.encoder import BatchEncoder, default_batch, device_of, evaluation_mode, worth_compiling
from probe.features.feature_set import FeatureSet
from probe.features.matrix import Matrix
from probe.features.pipeline import Asked, Encoded, default_workers, encoded
from probe.features.store import Damage, Entry
from probe.system import world
from probe.system.cache_dir import cache_root
from probe.system.locks import Claims
from probe.system.progress import bar

DTYPES = {"float32": torch.float32, "float16": torch.float16}
ATTEMPTS = 3  # at an entry that somebody else removes or damages while it is written
POLL_SECONDS = 0.2  # how often to look whether the runs that hold the last shards have finished them


class BadImageFound(Exception):
    """The first image to be skipped, by this run or another: from here on the decoder is an ingredient."""


class Unusable(UserError):
    """These rows cannot become features, so what this run has written of the entry is worthless."""


@dataclass(frozen=True)
class ExtractionJob:
    """What one run needs to fill an entry."""

    backbone: Any
    split: Any
    entry: Entry
    lacking: Entry  # where features go that lack the bad images; `entry` itself where none may be skipped
    dtype: torch.dtype
    batch_size: int
    workers: int
    skip_bad_images: bool
    progress: bool
    autocast: str | None
    compile: bool


def extract(
    backbone: Any,
    split: Any,
    *,
    cache: str | Path | None = None,
    dtype: str = "float32",
    batch_size: int | None = None,
    workers: int | None = None,
    skip_bad_images: bool = False,
    progress: bool = True,
    autocast: str | None = None,
    compile: bool | Literal["auto"] = "auto",
    shard_rows: int = SHARD_ROWS,
) -> FeatureSet:
    """The features of every image of `split`, from the cache or computed into it.

    Safe to kill, to repeat and to run several times at once on one cache, also under torchrun: the
    processes share the shards between them and all return the whole.

    cache            folder; else $PROBE_CACHE, else the user's cache folder
    dtype            how features are stored: "float32" or "float16" (half the disk; read back as float32)
    batch_size       images in one forward pass; by default chosen for the device
    workers          CPU: streams that decode and encode, one core each; GPU: decoding processes
    skip_bad_images  leave out images that cannot be decoded (`.skipped`) instead of stopping
    autocast         "bfloat16" or "float16": mixed precision, on a GPU only; part of the key
    compile          torch.compile; "auto" where so many images earn its cost back
    """
    started = time.perf_counter()
    device = device_of(backbone)
    _check(dtype=dtype, batch_size=batch_size, workers=workers, autocast=autocast, split=split, device=device)
    entries = _entries(backbone, split, cache, dtype, skip_bad_images, autocast, shard_rows)
    entry, shards, problems = _looked_up(entries)
    found = shards is not None
    if shards is None:
        entry.prepare(problems)
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
            autocast,
            worth_compiling(len(split), device) if compile == "auto" else compile,
        )
        entry, shards = _filled(job)
    entry.sweep()
    return _open(entry, shards, split, cached=found, started=started)


def find(
    backbone: Any,
    split: Any,
    *,
    cache: str | Path | None = None,
    dtype: str = "float32",
    skip_bad_images: bool = False,
) -> FeatureSet | None:
    """The features of `split` if all of them are in the cache, sound. Asks the backbone only who it is."""
    started = time.perf_counter()
    entry, shards, _ = _looked_up(_entries(backbone, split, cache, dtype, skip_bad_images))
    if shards is None:
        return None
    entry.sweep()
    return _open(entry, shards, split, cached=True, started=started)


def _entries(
    backbone: Any,
    split: Any,
    cache: str | Path | None,
    dtype: str,
    skip_bad_images: bool,
    autocast: str | None = None,
    shard_rows: int = SHARD_ROWS,
) -> list[Entry]:
    """Where the features may be: under the key of all images or, where some may be skipped, of the rest."""
    key = key_of(
        backbone,
        split,
        fingerprint=backbone.digest(),  # of the weights as they are now, trained or not
        dtype=dtype,
        skip_bad_images=skip_bad_images,
        autocast=autocast,
        shard_rows=shard_rows,
    )
    keys = [key, key.without_bad_images()] if skip_bad_images else [key]
    return [Entry(cache_root(cache), key) for key in keys]


def _looked_up(entries: list[Entry]) -> tuple[Entry, dict[int, Path] | None, list[Damage]]:
    """The first complete entry and its shards; else the one to go on with, and what is damaged in it."""
    for entry in entries:
        shards, problems = entry.complete()
        if shards is not None:
            return entry, shards, []
        if entry is entries[0] or entry.folder.is_dir():
            chosen = entry, None, problems
    return chosen


def _check(
    *, dtype: str, batch_size: int | None, workers: int | None, autocast: str | None, split: Any, device: Any
) -> None:
    if dtype not in DTYPES:
        raise UserError(f'features cannot be stored as "{dtype}"{nearest(dtype, DTYPES)}')
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch size {batch_size}: it must be at least 1")
    if workers is not None and workers < 0:
        raise UserError(f"{workers} workers: give 0 or more")
    if autocast is not None and (device.type == "cpu" or autocast not in ("bfloat16", "float16")):
        raise UserError(f'autocast "{autocast}" on {device.type}: it is bfloat16 or float16, on a GPU only')
    if len(split) == 0:
        raise UserError(f"{split.name} has no images; nothing to extract")


# -- computing ---------------------------------------------------------------------------------------------


def _filled(job: ExtractionJob) -> tuple[Entry, dict[int, Path]]:
    """The entry that came to be, and its shards: another than was begun, where an image had to be skipped."""
    begun = job.entry
    try:
        shards = _fill(job)
    except BadImageFound:
        job.lacking.prepare([])
        job.lacking.adopt(begun)
        job = replace(job, entry=job.lacking)
        shards = _fill(job)
    if job.entry is not begun:
        job.entry.adopt(begun)  # what another run has added to it meanwhile is not needed any more
    return job.entry, shards


def _fill(job: ExtractionJob) -> dict[int, Path]:
    """Compute what is missing, wait for what others compute, commit; the entry's shards, verified."""
    entry, rank = job.entry, world.rank()
    written: list[Path] = []
    rows = sum(len(entry.key.range_of(shard)) for shard in entry.missing())
    try:
        with (
            evaluation_mode(job.backbone),
            bar(f"extracting {job.split.title}", rows, "images", show=job.progress and rank == 0) as advance,
        ):
            encoder = BatchEncoder(
                job.backbone, batch_size=job.batch_size, autocast=job.autocast, compile=job.compile
            )
            for _ in range(ATTEMPTS):
                while missing := entry.missing():
                    before = len(written)
                    _compute(job, encoder, missing, written, advance)
                    if len(written) == before:
                        time.sleep(POLL_SECONDS)
                _check_unmoved(job)
                entry.commit()
                shards, problems = entry.complete()
                if shards is not None:
                    return shards
                entry.discard(problems)  # damaged or removed meanwhile: what is sound stays
    except UserError as error:
        entry.drop(written if isinstance(error, (Unusable, Changed)) else [])
        raise
    raise UserError(f"the cache entry {entry.folder} keeps being damaged while it is written; check the disk")


def _check_unmoved(job: ExtractionJob) -> None:
    """Frozen means frozen: the key speaks of these weights, so prove that they are still the same."""
    if job.backbone.digest() != job.entry.key.ingredients["backbone"]["fingerprint"]:
        raise Unusable(f"the weights of {job.backbone.name} changed during extraction; freeze them first")


def _compute(
    job: ExtractionJob,
    encoder: BatchEncoder,
    missing: list[int],
    written: list[Path],
    advance: Callable[[int], None],
) -> None:
    """Compute those of the missing shards that no other run is computing; never waits for one."""
    loader = Loader(job.split, job.backbone.preprocessing)
    all_labels = np.array(job.split.labels)
    with Claims(job.entry.folder) as claims:
        asked = _asked(job, missing, claims)
        with closing(encoded(asked, loader, encoder, job.workers)) as stream:
            for shard, features, index in _assembled(job, stream, advance):
                labels = torch.from_numpy(all_labels[index.numpy()])
                written.append(job.entry.save(shard, features, labels, index))
                claims.release(shard)


def _asked(job: ExtractionJob, missing: list[int], claims: Claims) -> Iterator[Asked]:
    """Batches of the shards that can be claimed, drawn lazily: a shard is claimed when its turn comes.

    Under torchrun the shards are dealt round-robin; a process that is done goes on with the others'.
    """
    rank, size = world.rank(), world.size()
    for shard in sorted(missing, key=lambda shard: ((shard - rank) % size, shard)):
        if job.lacking is not job.entry and job.lacking.folder.is_dir():
            raise BadImageFound
        if not claims.take(shard):
            continue
        if shard in job.entry.present():  # finished by another run since we looked
            claims.release(shard)
            continue
        rows = job.entry.key.range_of(shard)
        for start in range(0, len(rows), job.batch_size):
            yield shard, rows[start : start + job.batch_size]


def _assembled(
    job: ExtractionJob, stream: Iterator[Encoded], advance: Callable[[int], None]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Join batches to whole shards: every row is put at its own place and proved to have arrived."""
    key = job.entry.key
    features = torch.empty(key.shard_rows, job.backbone.dim, dtype=job.dtype)
    state = torch.zeros(key.shard_rows, dtype=torch.int8)  # 0 not arrived, 1 here, 2 skipped
    for batch, values in stream:
        if batch.failure is not None:
            raise batch.failure
        if batch.bad and not job.skip_bad_images:
            raise Unusable(next(iter(batch.bad.values())))
        if batch.bad and not key.lacks_rows:
            raise BadImageFound
        expected = key.range_of(batch.shard)
        at = torch.tensor(batch.rows, dtype=torch.int64) - expected.start
        features[at] = _stored(values, batch.rows, job)
        state[at] = 1
        state[[row - expected.start for row in batch.bad]] = 2
        advance(batch.asked)
        if bool((state[: len(expected)] != 0).all()):
            here = (state[: len(expected)] == 1).nonzero().flatten()
            whole = len(here) == len(expected)
            yield batch.shard, features[: len(expected)] if whole else features[here], here + expected.start
            state.zero_()
    if state.any():
        raise RuntimeError("a shard ended with rows missing")


def _stored(values: Tensor, rows: list[int], job: ExtractionJob) -> Tensor:
    """Features in the dtype of the cache, or an error that names the first image whose numbers are bad."""
    stored = values.to(job.dtype)
    if bool(stored.isfinite().all()):
        return stored
    first = int((~stored.isfinite().all(1)).nonzero()[0])
    sample = job.split.ids[rows[first]]
    if bool(values[first].isfinite().all()):
        raise Unusable(
            f'a feature of "{sample}" is {float(values[first].abs().max()):.0f}, '
            "beyond float16's 65504; store float32"
        )
    raise Unusable(
        f'the features of "{sample}" ({job.split.name}) are not finite (NaN or infinity); '
        f"check the weights of {job.backbone.name} and this image"
    )


# -- opening -----------------------------------------------------------------------------------------------


def _open(entry: Entry, shards: dict[int, Path], split: Any, *, cached: bool, started: float) -> FeatureSet:
    """Map the verified shards and prove that they hold every row of the split once."""
    from safetensors import safe_open

    key = entry.key
    features, labels, index = [], [], []
    for number in range(key.shards):
        with safe_open(shards[number], framework="pt") as file:
            features.append(file.get_tensor("features"))
            labels.append(file.get_tensor("labels"))
            index.append(file.get_tensor("index"))
    entry.check_unchanged(shards.values())
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
