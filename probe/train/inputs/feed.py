"""The batches of a training: drawn by a sampler, loaded, shared out to processes, mixed.

All of it is a function of (seed, epoch, step), so that a training resumes anywhere with the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from probe.methods.base import Method
from probe.recipe.train_settings import TrainConfig
from probe.train.inputs import augment
from probe.train.inputs.batch import Batch
from probe.train.inputs.loaders import SampleLoader
from probe.train.inputs.sampler import Sampler
from probe.train.seeding import derive_seed, set_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH = 256  # samples per step, where the settings do not say


@dataclass(frozen=True)
class JoinedBatch:
    """The batch of one step, over all processes, as this process sees it."""

    parts: list[Batch]  # this process's micro-batches
    weights: list[float]  # what part of the joined batch each (joined) micro-batch is
    position: tuple[int | str, ...]  # (seed, epoch, step, process), which decides all that is drawn
    size: int  # samples, over all processes


@dataclass
class Feed:
    """What feeds a training, as its settings say."""

    settings: TrainConfig
    mixer: Callable[[Batch], Batch] | None
    batch_size: int  # over all processes
    micro_batch: int | None  # samples that a process holds at once; a dry run may find it
    seed: int
    rank: int
    processes: int
    device: torch.device

    @classmethod
    def of(cls, settings: TrainConfig, num_classes: int, seed: int, accelerator: Accelerator) -> Feed:
        """Of a training on this process; `micro_batch: auto` is left to the dry run."""
        return cls(
            settings,
            augment.mixer(settings.augment, num_classes),
            settings.batch_size or BATCH,
            settings.micro_batch if isinstance(settings.micro_batch, int) else None,
            seed,
            accelerator.process_index,
            accelerator.num_processes,
            accelerator.device,
        )

    def sampler(self, labels: NDArray[np.int64], method: Method) -> Sampler:
        """What draws the batches of samples with these N labels for this method."""
        sampler = Sampler(
            kind=method.sampler or self.settings.sampler,
            labels=np.asarray(labels),
            batch_size=self.batch_size,
            seed=self.seed,
            processes=self.processes,
            micro_batch=self.micro_batch,
            repeats=method.repeats(),
        )
        return sampler.keeping(self.settings.partners, method.together)

    def batches(
        self, data: SampleLoader, sampler: Sampler, epoch: int, first: int, views: Sequence[str]
    ) -> Iterator[JoinedBatch]:
        """The batches of an epoch from number `first` on, loaded and mixed, with these random views."""
        batches = sampler.epoch(epoch)[first:]
        shares = [sampler.parts(batch, self.rank) for batch in batches]
        loaded = data.train_batches(epoch, [rows for share in shares for rows in share], views)
        for number, (batch, share) in enumerate(zip(batches, shares, strict=True), first):
            parts = [
                # the same share and box on every process: a joint loss mixes by one number
                self.mixed(next(loaded).to(self.device), (self.seed, epoch, number, 0, "mix", i))
                for i in range(len(share))
            ]
            position = (self.seed, epoch, number, self.rank)
            yield JoinedBatch(parts, sampler.weights(len(batch)), position, len(batch))

    def mixed(self, batch: Batch, position: tuple[int | str, ...]) -> Batch:
        """The micro-batch after Mixup or CutMix, where the settings ask for one."""
        if self.mixer is None:
            return batch
        set_seed(derive_seed(*position), self.device)
        return self.mixer(batch)
