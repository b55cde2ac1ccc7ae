"""Where batches come from: cached features by indexing a tensor, or images through loader processes."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from probe.core.scaling import FeatureMatrix
from probe.data import decode_memory
from probe.data.decode import BadImage
from probe.data.images import passing
from probe.errors import UserError
from probe.system.world import leave_with_parent, usable_cores
from probe.train.inputs import augment
from probe.train.inputs.batch import Batch
from probe.train.seeding import derive_seed

Indices = NDArray[np.int64]
Pixels = Callable[[Any], Tensor]  # a PIL image -> uint8 channels x height x width


class SampleLoader(Protocol):
    """N labelled samples, loaded by row number."""

    @property
    def labels(self) -> Indices:
        """N labels."""

    @property
    def ids(self) -> Sequence[str]:
        """N names, for messages."""

    @property
    def groups(self) -> Tensor | None:
        """N groups that a method acts on; None: it acts on the classes."""

    @property
    def eval_batch_size(self) -> int:
        """Samples to evaluate at once."""

    @property
    def draws_views(self) -> bool:
        """Can it show a sample in several random views?"""

    def train_batches(self, epoch: int, parts: Sequence[Indices], views: Sequence[str]) -> Iterator[Batch]:
        """A batch for each part (row numbers), with these random views (`augment.KINDS`), which are functions
        of (seed, epoch, row, place in `views`)."""

    def eval_batches(self, parts: Sequence[Indices]) -> Iterator[Batch]:
        """A batch for each part, without randomness."""


class LabelledImages(Protocol):
    """N labelled images: a `probe.data.Split`, or `inputs.concat.Samples` of several."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Indices: ...

    @property
    def ids(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """A PIL image and its label."""


@dataclass(frozen=True)
class FeatureLoader:
    """Rows of N x D features, in memory or memory-mapped: no loader process, no copy but the batch."""

    X: Tensor | FeatureMatrix
    labels: Indices
    ids: Sequence[str]
    groups: Tensor | None = None  # N, that a method acts on, where those are not the classes
    targets: Tensor = field(init=False)
    eval_batch_size: int = 16_384
    draws_views: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", torch.as_tensor(np.array(self.labels)))

    def train_batches(self, epoch: int, parts: Sequence[Indices], views: Sequence[str]) -> Iterator[Batch]:
        return self.eval_batches(parts)

    def eval_batches(self, parts: Sequence[Indices]) -> Iterator[Batch]:
        for part in parts:
            index = torch.from_numpy(np.ascontiguousarray(part))
            rows = self.X.index_select(0, index) if isinstance(self.X, Tensor) else self.X[index]
            yield Batch(
                (rows.float(),), self.targets.index_select(0, index), index, groups=_taken(self.groups, index)
            )


@dataclass(frozen=True)
class Views:
    """A data set for torch's DataLoader: key (epoch or None, row) -> pixels of every view."""

    split: LabelledImages
    plain: Pixels
    random: Sequence[Pixels]  # one per view
    seed: int

    def __getitem__(self, key: tuple[int | None, int]) -> tuple[int, list[Tensor] | str]:
        epoch, row = key
        where = f"{self.split.name} image {self.split.ids[row]}"
        try:  # errors are returned as data: raised in a loader process, they would lose their message
            with decode_memory.until_seen():
                return row, self._views(epoch, row)
        except BadImage as error:
            return row, f"{where}: {error}; repair or remove it, or set data.skip_bad_images"
        except UserError as error:
            return row, f"{where}: {error}"
        except MemoryError as error:
            return row, str(passing(error, "resize", where))

    def _views(self, epoch: int | None, row: int) -> list[Tensor]:
        image, _ = self.split[row]
        if epoch is None:
            return [self.plain(image)]
        seeds = (derive_seed(self.seed, "view", epoch, row, v) for v in range(len(self.random)))
        return [self._draw(image, pixels, seed) for pixels, seed in zip(self.random, seeds, strict=True)]

    def _draw(self, image: Any, pixels: Pixels, seed: int) -> Tensor:
        # The libraries draw from three global generators; all are seeded, in this process or a worker.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - that is the generator timm draws from
        return pixels(image)


@dataclass(frozen=True)
class ImageLoader:
    """Images of a split, decoded and augmented in loader processes, normalised per batch on the device."""

    split: LabelledImages
    plain_pixels: Pixels
    random_pixels: Pixels  # the view "own"; the other kinds are variations of it
    normalise: Callable[[Tensor], Tensor]
    seed: int
    workers: int
    device: torch.device
    channels_last: bool = False
    eval_batch_size: int = 128
    draws_views: bool = True
    groups: Tensor | None = None  # N, that a method acts on, where those are not the classes

    @property
    def labels(self) -> Indices:
        return self.split.labels

    @property
    def ids(self) -> Sequence[str]:
        return self.split.ids

    def train_batches(self, epoch: int, parts: Sequence[Indices], views: Sequence[str]) -> Iterator[Batch]:
        drawn = tuple(augment.kind(self.random_pixels, name) for name in views)
        return self._load([[(epoch, int(i)) for i in part] for part in parts], drawn)

    def eval_batches(self, parts: Sequence[Indices]) -> Iterator[Batch]:
        return self._load([[(None, int(i)) for i in part] for part in parts], ())

    def _load(self, keys: Iterable[Any], views: Sequence[Pixels]) -> Iterator[Batch]:
        loader: DataLoader[Any] = DataLoader(
            Views(self.split, self.plain_pixels, views, self.seed),  # type: ignore[arg-type]
            batch_sampler=keys,
            num_workers=self.workers,
            collate_fn=_collate,
            worker_init_fn=partial(_begin, decode_memory.share(max(1, self.workers))),
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,
            pin_memory=self.device.type == "cuda",
        )
        for pixels, rows in loader:
            if isinstance(pixels, str):
                raise UserError(pixels)
            yield self._on_device(pixels, rows)

    def _on_device(self, pixels: list[Tensor], rows: Tensor) -> Batch:
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        views = (self.normalise(p.to(self.device, non_blocking=True)) for p in pixels)
        targets = torch.as_tensor(self.labels[rows.numpy()]).to(self.device)
        shown = tuple(v.contiguous(memory_format=order) for v in views)
        return Batch(shown, targets, rows, groups=_taken(self.groups, rows))


def _taken(groups: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if groups is None else groups[rows]


def _begin(budget: decode_memory.Budget, _: int) -> None:
    """A killed training must not leave loader processes behind (they would wait for it forever)."""
    leave_with_parent(signal.SIGKILL)
    decode_memory.use(budget)


def _collate(items: list[tuple[int, list[Tensor] | str]]) -> tuple[list[Tensor] | str, Tensor]:
    for _, views in items:
        if isinstance(views, str):
            return views, torch.empty(0)
    stacked = [torch.stack(same) for same in zip(*(views for _, views in items), strict=True)]
    return stacked, torch.tensor([row for row, _ in items])


def default_workers(device: torch.device, processes: int) -> int:
    """Loader processes of one training process; none where training itself needs the few cores there are."""
    cores = usable_cores()
    if device.type == "cpu":
        return 0 if cores < 4 else min(4, cores // (2 * processes))
    return min(16, max(1, cores // processes - 1))
