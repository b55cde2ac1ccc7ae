"""Computing the shards that a cache entry still lacks.

A killed extraction is resumed here: shards that are on disk and sound stay, the others are computed. Several
runs (or the processes of torchrun) share the work: each claims a shard, computes it and saves it, and waits
for what the others have claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backbones.backbone import Backbone
from probe.core.eval_mode import evaluation_mode
from probe.data import Split
from probe.data.images import ImageChanged
from probe.errors import UserError
from probe.features.batches import BatchLoader, BatchRequest
from probe.features.encoder import BatchEncoder
from probe.features.pipeline import EncodedBatch, encoded
from probe.features.store import Entry
from probe.features.views import CENTER, View
from probe.system import world
from probe.system.locks import FolderLocks
from probe.system.progress import bar

ATTEMPTS = 3  # at an entry that somebody else removes or damages while it is written
POLL_SECONDS = 0.2  # how often to look whether the runs that hold the last shards have finished them
MISSING, HERE, SKIPPED = 0, 1, 2  # what has become of a row of a shard


class BadImageFound(Exception):
    """The first image to be skipped, by this run or another: from here on the decoder is part of the key."""


class UnusableFeatures(UserError):
    """These rows cannot become features, so what this run has written of the entry is worthless."""


@dataclass(frozen=True)
class ExtractionJob:
    """What one run needs to fill an entry."""

    backbone: Backbone
    split: Split
    entry: Entry
    lacking: Entry  # for features that lack the bad images; `entry` itself where none may be skipped
    dtype: torch.dtype
    batch_size: int
    workers: int
    skip_bad_images: bool
    progress: bool
    precision: str
    compile: bool
    view: View = CENTER

    @property
    def title(self) -> str:
        """What the progress bar says: the split, and the view if it is not the usual one."""
        return self.split.title if self.view == CENTER else f"{self.split.title} ({self.view.name})"


def fill(job: ExtractionJob) -> tuple[Entry, dict[int, Path]]:
    """The complete entry and its shards; not the entry that was begun, where an image had to be skipped."""
    begun = job.entry
    try:
        shards = _complete(job)
    except BadImageFound:
        job.lacking.prepare([])
        job.lacking.adopt(begun)
        job = replace(job, entry=job.lacking)
        shards = _complete(job)
    if job.entry is not begun:
        job.entry.adopt(begun)  # what another run has added to it meanwhile is no longer needed
    return job.entry, shards


def _complete(job: ExtractionJob) -> dict[int, Path]:
    """Compute what is missing, wait for what others compute, commit; returns the verified shards."""
    entry, rank = job.entry, world.rank()
    written: list[Path] = []
    rows = sum(len(entry.key.range_of(shard)) for shard in entry.missing())
    try:
        with (
            evaluation_mode(job.backbone),
            bar(f"extracting {job.title}", rows, "images", show=job.progress and rank == 0) as advance,
        ):
            encoder = BatchEncoder(
                job.backbone, batch_size=job.batch_size, precision=job.precision, compile=job.compile
            )
            for _ in range(ATTEMPTS):
                while missing := entry.missing():
                    before = len(written)
                    _compute(job, encoder, missing, written, advance)
                    if len(written) == before:
                        time.sleep(POLL_SECONDS)
                _check_frozen(job)
                entry.commit()
                shards, damaged = entry.complete()
                if shards is not None:
                    return shards
                entry.discard(damaged)  # damaged or removed meanwhile: what is sound stays
    except UserError as error:
        entry.drop(written if isinstance(error, (UnusableFeatures, ImageChanged)) else [])
        raise
    raise UserError(f"the cache entry {entry.folder} keeps being damaged while it is written; check the disk")


def _check_frozen(job: ExtractionJob) -> None:
    """Prove that the weights are still those that the key names."""
    if job.backbone.digest() != job.entry.key.ingredients["backbone"]["fingerprint"]:
        raise UnusableFeatures(
            f"the weights of {job.backbone.name} changed during extraction; freeze them first"
        )


def _compute(
    job: ExtractionJob,
    encoder: BatchEncoder,
    missing: list[int],
    written: list[Path],
    advance: Callable[[int], None],
) -> None:
    """Compute those of the missing shards that no other run is computing; never waits for one."""
    loader = BatchLoader(job.split, job.backbone.preprocessing, job.view)
    all_labels = np.array(job.split.labels)
    with FolderLocks(job.entry.folder) as locks:
        requests = _requests(job, missing, locks)
        with closing(encoded(requests, loader, encoder, job.workers)) as stream:
            for shard, features, index in _assembled(job, stream, advance):
                labels = torch.from_numpy(all_labels[index.numpy()])
                written.append(job.entry.save(shard, features, labels, index))
                locks.release(shard)


def _requests(job: ExtractionJob, missing: list[int], locks: FolderLocks) -> Iterator[BatchRequest]:
    """Batches of the shards that can be locked, drawn lazily: a shard is locked when its turn comes.

    Under torchrun the shards are dealt round-robin; a process that is done continues with the others'.
    """
    rank, size = world.rank(), world.size()
    for shard in sorted(missing, key=lambda shard: ((shard - rank) % size, shard)):
        if job.lacking is not job.entry and job.lacking.folder.is_dir():
            raise BadImageFound
        if not locks.acquire(shard):
            continue
        if shard in job.entry.present():  # finished by another run since we looked
            locks.release(shard)
            continue
        rows = job.entry.key.range_of(shard)
        for start in range(0, len(rows), job.batch_size):
            yield BatchRequest(shard, rows[start : start + job.batch_size])


def _assembled(
    job: ExtractionJob, stream: Iterator[EncodedBatch], advance: Callable[[int], None]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Join batches into shards: (shard, features n x dim, row numbers n).

    Every row is put at its own place, and a shard is only given out when all of its rows have arrived.
    """
    key = job.entry.key
    features = torch.empty(key.shard_rows, job.backbone.dim, dtype=job.dtype)
    state = torch.full((key.shard_rows,), MISSING, dtype=torch.int8)
    for batch, values in stream:
        if batch.failure is not None:
            raise batch.failure
        if batch.bad and not job.skip_bad_images:
            raise UnusableFeatures(next(iter(batch.bad.values())))
        if batch.bad and not key.lacks_rows:
            raise BadImageFound
        expected = key.range_of(batch.shard)
        at = torch.tensor(batch.rows, dtype=torch.int64) - expected.start
        features[at] = _stored(values, batch.rows, job)
        state[at] = HERE
        state[[row - expected.start for row in batch.bad]] = SKIPPED
        advance(batch.requested)
        if bool((state[: len(expected)] != MISSING).all()):
            here = (state[: len(expected)] == HERE).nonzero().flatten()
            whole = len(here) == len(expected)
            yield batch.shard, features[: len(expected)] if whole else features[here], here + expected.start
            state.fill_(MISSING)
    if bool((state != MISSING).any()):
        raise RuntimeError("a shard ended with rows missing")


def _stored(values: Tensor, rows: list[int], job: ExtractionJob) -> Tensor:
    """Features (n x dim) in the dtype of the cache; raises for the first image where they are not finite."""
    stored = values.to(job.dtype)
    if bool(stored.isfinite().all()):
        return stored
    first = int((~stored.isfinite().all(1)).nonzero()[0])
    sample = job.split.ids[rows[first]]
    if bool(values[first].isfinite().all()):
        raise UnusableFeatures(
            f'a feature of "{sample}" is {float(values[first].abs().max()):.0f}, '
            "beyond float16's 65504; store float32"
        )
    raise UnusableFeatures(
        f'the features of "{sample}" ({job.split.name}) are not finite (NaN or infinity); '
        f"check the weights of {job.backbone.name} and this image"
    )
