"""What a run starts from: a backbone, a data set, and the features of its splits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import backbones
from backbones.sources import Scratch
from probe import data, features
from probe.data import Dataset, duplicates
from probe.evaluation import groups
from probe.features import FeatureSet, Matrix, backbone_identity
from probe.features.backbone_identity import BackboneIdentity
from probe.recipe import Recipe
from probe.system import world

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class RunInputs:
    """The frozen backbone, the data and the features of every split."""

    backbone: Any  # a backbones.Backbone
    data: Dataset
    features: dict[str, FeatureSet]
    groups: dict[str, list[int]] | None = None  # as a file or a run gives them; None: to be ranked here

    @property
    def untrained(self) -> bool:
        """Has the backbone only its random initialisation?"""
        return self.backbone.source == str(Scratch())

    @property
    def training(self) -> list[FeatureSet]:
        """What may be learnt from: train and, where there is one, the official validation split."""
        return [f for split, f in self.features.items() if split != "test"]

    @cached_property
    def duplicates(self) -> dict[str, Any]:
        """Images that stand more than once, as `probe.data.duplicates` describes."""
        left_out = (i for f in self.features.values() for i in f.skipped)
        return duplicates.find({split: self.data[split] for split in self.features}, left_out)

    @property
    def matrix(self) -> Matrix:
        """Features of the training parts, memory-mapped."""
        return Matrix.join([f.X for f in self.training])

    @property
    def y(self) -> NDArray[np.int64]:
        """Labels of the training parts."""
        return np.concatenate([f.y for f in self.training])

    def held(self, seed: int, fraction: float) -> NDArray[np.int64]:
        """Rows of the training parts that validate: the official split, else a stratified cut by `seed`."""
        n = len(self.features["train"].y)
        if "val" in self.features:
            return np.arange(n, n + len(self.features["val"].y))
        return data.stratified_holdout(self.features["train"].y, fraction, seed)[1]


def from_scratch(recipe: Recipe) -> bool:
    """Is a net trained that nobody has given any weights?"""
    b = recipe.backbone
    return (
        recipe.finetune and b.weights is None and isinstance(backbones.registry.find(b.name).source, Scratch)
    )


def device() -> str:
    """This process's GPU, or the CPU."""
    import torch

    return f"cuda:{world.local_rank()}" if torch.cuda.is_available() else "cpu"


def load_data(recipe: Recipe, cache: Path | None = None) -> Dataset:
    """The data set that a recipe names."""
    d = recipe.data
    return data.load(
        d.name, root=d.root, revision=d.revision, imbalance=d.imbalance, profile=d.profile, cache=cache
    )


def backbone(recipe: Recipe, cache: Path | None = None) -> BackboneIdentity | None:
    """The recipe's backbone by its identity alone, where an earlier run has left it."""
    if recipe.solver.name == "zeroshot":
        return None  # it reads the class names, with the real one
    return backbone_identity.recall(recipe.backbone.model_dump(), lambda: load_backbone(recipe, cache), cache)


def load_backbone(recipe: Recipe, cache: Path | None = None) -> Any:
    """The recipe's backbone itself."""
    settings = recipe.backbone.model_dump()
    b = backbone_identity.load_and_remember(
        settings, lambda: backbones.load(**settings, device=device()), cache
    )
    if recipe.solver.name == "zeroshot":
        b.encode_text(["a photo"])  # refused now, not after minutes of extraction
    return b


def _found(r: Recipe, b: BackboneIdentity, d: Dataset, cache: Path | None) -> dict[str, FeatureSet] | None:
    """The features of every split from the cache; None if one is missing."""
    f: dict[str, FeatureSet] = {}
    for split in d.splits:
        found = features.find(
            b, d[split], cache=cache, dtype=r.features.dtype, skip_bad_images=r.data.skip_bad_images
        )
        if found is None:
            return None
        f[split] = found
    return f


def _extracted(r: Recipe, b: Any, d: Dataset, cache: Path | None) -> dict[str, FeatureSet]:
    return {
        split: features.extract(
            b,
            d[split],
            cache=cache,
            dtype=r.features.dtype,
            batch_size=r.features.batch_size,
            workers=r.features.workers,
            skip_bad_images=r.data.skip_bad_images,
        )
        for split in d.splits
    }


def gather(recipe: Recipe, *, cache: Path | None = None, stage: Stage = lambda _: nullcontext()) -> RunInputs:
    """Load the data and the backbone, and extract (or find) the features of every split."""
    r = recipe
    with stage("data"):
        d = load_data(r, cache)
    given = groups.given(r.groups, d.class_names)  # refused now, not after minutes of extraction
    with stage("backbone"):
        b = backbone(r, cache)
    with stage("features"):
        f = None if b is None else _found(r, b, d, cache)
    if b is None or f is None:
        with stage("backbone"):
            b = load_backbone(r, cache)
        with stage("features"):
            f = _extracted(r, b, d, cache)
    return RunInputs(b, d, f, given)
