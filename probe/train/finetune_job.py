"""What a fine-tuning is about, before it starts: the backbone, the samples, the resolved settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

import backbones
from probe import methods
from probe.data import Dataset, attribute
from probe.heads import Head
from probe.recipe import Recipe
from probe.recipe.train_settings import TrainConfig
from probe.train import family_defaults
from probe.train.inputs import augment
from probe.train.inputs.concat import Samples
from probe.train.inputs.loaders import ImageLoader, default_workers
from probe.train.model.head_init import automatic
from probe.train.parallel import accelerator as runtime
from probe.train.seeding import derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from backbones.backbone import Backbone
    from probe.methods.base import Method


@dataclass(frozen=True)
class FinetuneJob:
    """A recipe's fine-tuning with one seed, before it starts."""

    recipe: Recipe
    data: Dataset
    held: NDArray[np.int64]  # rows of train (+ val) that validate
    seed: int
    backbone: Backbone
    samples: Samples  # every row that may be trained on
    trained: NDArray[np.int64]  # rows of `samples` that are trained on
    test: Samples
    accelerator: Accelerator
    family: family_defaults.Family
    settings: TrainConfig  # the recipe's, with the family's defaults where it leaves some open

    @property
    def num_classes(self) -> int:
        return len(self.data.class_names)

    @property
    def from_scratch(self) -> bool:
        """Does the network begin at random weights, so that its features say nothing yet?"""
        return self.family in family_defaults.SCRATCHES

    def starting(self, head: Head) -> FinetuneJob:
        """The same, with what `start: auto` means for this head."""
        if self.settings.start != "auto":
            return self
        kind = automatic(head, pretrained=not self.from_scratch)
        return replace(self, settings=self.settings.model_copy(update={"start": kind}))

    def searching(self, method: Method) -> FinetuneJob:
        """The same, with the family's rate where short trials of this method would show nothing."""
        if self.settings.lr is not None or method.searchable:
            return self
        _, row = family_defaults.row(self.family, self.settings.optimizer)
        return replace(self, settings=self.settings.model_copy(update={"lr": row.lr}))

    def loader(self, samples: Samples) -> ImageLoader:
        """What loads these samples, augmented as the settings say."""
        s, b = self.settings, self.backbone
        device = self.accelerator.device
        processes = self.accelerator.num_processes
        return ImageLoader(
            samples,
            plain_pixels=b.preprocessing.pixels,
            random_pixels=augment.random_view(s.augment, b.preprocessing, b.train_transform.augmentation),
            normalise=b.preprocessing.normalise,
            seed=self.seed,
            workers=default_workers(device, processes) if s.workers is None else s.workers,
            device=device,
            channels_last=bool(s.channels_last),
            groups=None if samples.groups is None else torch.from_numpy(samples.groups),
        )

    @property
    def digest(self) -> str:
        """Of all that decides the result: a checkpoint under another one is refused."""
        method = self.recipe.method
        parts = [self.recipe.digest, self.backbone.fingerprint, str(self.seed)]
        parts += [self.data[name].fingerprint for name in self.data.splits if name != "test"]
        parts += [f"{name} {v}" for name, v in methods.catalogue.versions(method.name, method.params).items()]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def prepare(
    recipe: Recipe,
    data: Dataset,
    held: NDArray[np.int64],
    *,
    seed: int,
    folder: Path | None = None,
    ids: Mapping[str, Sequence[str]] | None = None,
) -> FinetuneJob:
    """The recipe's fine-tuning with this seed: backbone, samples and settings. For `folder` and `ids` see
    `probe.train.finetuning.finetune`."""
    # the seed is that of nets from scratch, which draw their weights
    backbone = backbones.load(**recipe.backbone.parts[0].model_dump(), seed=derive_seed(seed, "backbone"))
    for name in data.splits:
        data[name].fingerprint  # noqa: B018 - from here on every image that is read must be what was hashed
    samples = Samples.of(data, [name for name in data.splits if name != "test"], ids)
    samples.groups = _groups(recipe, data, samples)
    everything = np.arange(len(samples))
    trained = np.setdiff1d(everything, held) if recipe.train.selects else everything
    family = family_defaults.family(backbone)
    return FinetuneJob(
        recipe,
        data,
        held,
        seed,
        backbone,
        samples=samples,
        trained=trained,
        test=Samples.of(data, ["test"], ids),
        accelerator=runtime.accelerator(recipe.train, folder, recipe.device),
        family=family,
        settings=family_defaults.resolve(recipe.train, family, len(trained), split=runtime.splits_weights()),
    )


def _groups(recipe: Recipe, data: Dataset, samples: Samples) -> NDArray[np.int64] | None:
    """What the method acts on, where that is not the classes: the group of each sample."""
    how, name = recipe.method.groups, recipe.data.attribute
    if how == "class" or name is None:
        return None
    found = attribute.read(data, name)
    values = samples.chosen(np.concatenate([found.of(split.name, split.ids) for split in samples.splits]))
    return attribute.groups(how, found, values, samples.labels, data.class_names).of
