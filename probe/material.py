"""What a run starts from: a backbone, a data set, and the features of its splits."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import backbones
from backbones.weights import Scratch
from probe import data, features
from probe.data import Dataset
from probe.evaluate import groups
from probe.features import FeatureSet, Matrix
from probe.recipe import Recipe

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Material:
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
        return data.stratified_cut(self.features["train"].y, fraction, seed)[1]


def device() -> str:
    """This process's GPU, or the CPU."""
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def load_data(recipe: Recipe, cache: Path | None = None) -> Dataset:
    """The data set that a recipe names."""
    d = recipe.data
    return data.load(
        d.name, root=d.root, revision=d.revision, imbalance=d.imbalance, profile=d.profile, cache=cache
    )


def gather(recipe: Recipe, *, cache: Path | None = None, stage: Stage = lambda _: nullcontext()) -> Material:
    """Load the data and the backbone, and extract (or find) the features of every split."""
    r = recipe
    with stage("data"):
        d = load_data(r, cache)
    given = groups.given(r.groups, d.class_names)  # refused now, not after minutes of extraction
    with stage("backbone"):
        b = backbones.load(**r.backbone.model_dump(), device=device())
        if r.solver.name == "zeroshot":
            b.encode_text(["a photo"])  # the same
    with stage("features"):
        f = {
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
    return Material(b, d, f, given)
