"""What a run starts from: a backbone, a data set, the features of its splits, and the problem they pose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import backbones
from backbones.backbone import Backbone
from backbones.sources import Scratch
from probe import data, features
from probe.core import scaling
from probe.data import Dataset, duplicates
from probe.errors import UserError
from probe.features import FeatureSet, Matrix, backbone_identity, views
from probe.features.backbone_identity import BackboneIdentity
from probe.features.views import CENTER, View
from probe.probing.problem import ProbeProblem
from probe.probing.zero_shot import text_classifier
from probe.recipe import Recipe
from probe.runs import groups
from probe.system import world

Stage = Callable[[str], AbstractContextManager[None]]
# Where all features are in the cache, a backbone's identity is enough.
AnyBackbone: TypeAlias = Backbone | BackboneIdentity
IN_MEMORY = 4 << 30  # bytes of features up to which they are held in memory; beyond, they are read in blocks


@dataclass(frozen=True)
class RunInputs:
    """The frozen backbone, the data and the features of every split."""

    backbone: AnyBackbone
    data: Dataset
    features: dict[str, FeatureSet]  # by split: the evaluation crop of every image
    groups: dict[str, list[int]] | None = None  # as a file or a run gives them; None: yet to be ranked
    further: Mapping[View, Mapping[str, FeatureSet]] = field(default_factory=dict)  # by view and split
    learnt_views: tuple[View, ...] = (CENTER,)
    averaged_views: tuple[View, ...] = (CENTER,)  # of which predictions are made

    @property
    def untrained(self) -> bool:
        """Has the backbone only its random initialisation?"""
        return self.backbone.source == str(Scratch())

    @property
    def training(self) -> list[FeatureSet]:
        """The splits to learn from: train and, where there is one, the official validation split."""
        return self.training_of(CENTER)

    def training_of(self, view: View) -> list[FeatureSet]:
        """One view of the splits to learn from."""
        return [f for split, f in self.sets(view).items() if split != "test"]

    @cached_property
    def duplicates(self) -> dict[str, Any]:
        """Images that occur more than once, as `probe.data.duplicates` describes them."""
        left_out = (i for f in self.features.values() for i in f.skipped)
        return duplicates.find({split: self.data[split] for split in self.features}, left_out)

    @property
    def by_view(self) -> dict[View, Mapping[str, FeatureSet]]:
        """All features, by view and split, the evaluation crops first."""
        return {CENTER: self.features, **self.further}

    def sets(self, view: View) -> Mapping[str, FeatureSet]:
        """The features of one view, by split."""
        return self.by_view[view]

    def stack(self, views: Sequence[View]) -> Matrix:
        """The features of the training splits, memory-mapped and stacked view by view."""
        return Matrix.join([f.X for view in views for f in self.training_of(view)])

    @property
    def test_views(self) -> list[Matrix]:
        """The features of the test split, one matrix for each view that predictions are averaged over."""
        return [self.sets(view)["test"].X for view in self.averaged_views]

    @property
    def y(self) -> NDArray[np.int64]:
        """n labels of the training splits' images."""
        return np.concatenate([f.y for f in self.training])

    @property
    def training_ids(self) -> list[str]:
        """The ids of the images of the training splits."""
        return [name for f in self.training for name in f.ids]

    def holdout(self, seed: int, fraction: float) -> NDArray[np.int64]:
        """Training images that validate: the official split, else a stratified draw by `seed`."""
        n = len(self.features["train"].y)
        if "val" in self.features:
            return np.arange(n, n + len(self.features["val"].y))
        return data.stratified_holdout(self.features["train"].y, fraction, seed)[1]


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


def backbone_from_cache(recipe: Recipe, cache: Path | None = None) -> BackboneIdentity | None:
    """The identity of the recipe's backbone, where an earlier run has left it."""
    if recipe.solver.name == "zeroshot":
        return None  # its text encoder is needed
    return backbone_identity.recall(recipe.backbone.model_dump(), lambda: load_backbone(recipe, cache), cache)


def load_backbone(recipe: Recipe, cache: Path | None = None) -> Backbone:
    """The recipe's backbone, with its weights."""
    settings = recipe.backbone.model_dump()
    b = backbone_identity.load_and_remember(
        settings, lambda: backbones.load(**settings, device=device()), cache
    )
    if recipe.solver.name == "zeroshot":
        b.encode_text(["a photo"])  # refused now, not after minutes of extraction
    return b


Sets = dict[View, dict[str, FeatureSet]]  # by view and split


def views_needed(recipe: Recipe, split: str) -> list[View]:
    """The views of a split that a recipe needs, the evaluation crop first."""
    learnt = () if split == "test" else views.chosen(recipe.features.views)
    return list(dict.fromkeys([CENTER, *learnt, *views.chosen(recipe.features.views_tested)]))


def _cached(r: Recipe, b: BackboneIdentity, d: Dataset, cache: Path | None) -> Sets | None:
    """The features of every split and view from the cache; None if some are missing."""
    f: Sets = {}
    for split in d.splits:
        for view in views_needed(r, split):
            found = features.find(
                b,
                d[split],
                cache=cache,
                dtype=r.features.dtype,
                skip_bad_images=r.data.skip_bad_images,
                view=view,
            )
            if found is None:
                return None
            f.setdefault(view, {})[split] = found
    return f


def _extracted(r: Recipe, b: Backbone, d: Dataset, cache: Path | None) -> Sets:
    """The features of every split and view, computed where the cache has none."""
    f: Sets = {}
    for split in d.splits:
        for view in views_needed(r, split):
            f.setdefault(view, {})[split] = features.extract(
                b,
                d[split],
                cache=cache,
                dtype=r.features.dtype,
                batch_size=r.features.batch_size,
                workers=r.features.workers,
                skip_bad_images=r.data.skip_bad_images,
                view=view,
            )
    return f


def gather(
    recipe: Recipe,
    *,
    cache: Path | None = None,
    data: Dataset | None = None,
    stage: Stage = lambda _: nullcontext(),
) -> RunInputs:
    """Load the data and the backbone, and extract (or find) the features of every split.

    `data` is the recipe's data set where it has been loaded before, or some splits of it.
    `stage(name)` surrounds the work on data, backbone and features, for a clock.
    """
    with stage("data"):
        dataset = load_data(recipe, cache) if data is None else data
    given = groups.given(recipe.groups, dataset.class_names)  # refused now, not after minutes of extraction
    with stage("backbone"):
        backbone: AnyBackbone | None = backbone_from_cache(recipe, cache)
    with stage("features"):
        found = _cached(recipe, backbone, dataset, cache) if isinstance(backbone, BackboneIdentity) else None
    if backbone is None or found is None:
        with stage("backbone"):
            backbone = load_backbone(recipe, cache)
        with stage("features"):
            found = _extracted(recipe, backbone, dataset, cache)
    crops = found.pop(CENTER)
    if any(f.ids != crops[split].ids for sets in found.values() for split, f in sets.items()):
        raise UserError("the views in the cache are not all of the same images; `probe cache rm` them")
    return RunInputs(
        backbone,
        dataset,
        crops,
        given,
        found,
        views.chosen(recipe.features.views),
        views.chosen(recipe.features.views_tested),
    )


def pose(recipe: Recipe, inputs: RunInputs) -> ProbeProblem:
    """The problem of a recipe: features and labels of the training splits, scaled as the recipe says."""
    backbone, dataset = inputs.backbone, inputs.data
    learnt, averaged = inputs.learnt_views, inputs.averaged_views
    raw = _held(inputs.stack(learnt))
    kind = recipe.features.scaling
    if kind == "auto":
        kind = "standard" if backbone.standardise else "none"
    text = None
    if recipe.solver.name == "zeroshot":
        assert isinstance(backbone, Backbone)
        text = text_classifier(backbone, dataset.class_names, dataset.templates)
    return ProbeProblem(
        raw=raw,
        y=np.tile(inputs.y, len(learnt)),
        class_names=dataset.class_names,
        metric=dataset.metric,
        scaling=scaling.make(kind, raw),
        text=text,
        ids=inputs.training_ids,
        key=" ".join(f.key for view in dict.fromkeys(learnt + averaged) for f in inputs.training_of(view)),
        views=len(learnt),
        tested=None if averaged == learnt else _held(inputs.stack(averaged)),
    )


def _held(matrix: Matrix) -> Matrix | Tensor:
    """The matrix in memory, where it is small enough."""
    return matrix.tensor() if 4 * matrix.shape[0] * matrix.shape[1] <= IN_MEMORY else matrix
