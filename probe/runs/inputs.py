"""What a run starts from: a backbone, a data set and the features of its splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import backbones
from backbones.backbone import Backbone
from backbones.reading import expanded
from backbones.sources import Scratch
from probe import data, features
from probe.data import Dataset, duplicates
from probe.data.attribute import Attribute
from probe.data.attribute import read as read_attribute
from probe.errors import UserError
from probe.evaluation.several_labels import SeveralLabels
from probe.evaluation.several_labels import read as read_labels
from probe.features import FeatureSet, Matrix, SideBySide, backbone_identity, side_by_side, views
from probe.features.backbone_identity import BackboneIdentity
from probe.features.views import CENTER, View
from probe.recipe import PartConfig, Recipe
from probe.runs import draws, first_stage, groups, unavailable
from probe.runs.first_stage import FirstStage
from probe.system import devices

Stage = Callable[[str], AbstractContextManager[None]]
# Where all features are in the cache, a backbone's identity is enough.
AnyBackbone: TypeAlias = Backbone | BackboneIdentity


@dataclass(frozen=True)
class RunInputs:
    """The frozen backbones, the data and the features of every split."""

    backbones: tuple[AnyBackbone, ...]  # whose features stand side by side; most runs have one
    data: Dataset
    features: dict[str, FeatureSet]  # by split: the evaluation crop of every image
    groups: dict[str, list[int]] | None = None  # as a file or a run gives them; None: yet to be ranked
    further: Mapping[View, Mapping[str, FeatureSet]] = field(default_factory=dict)  # by view and split
    learnt_views: tuple[View, ...] = (CENTER,)
    averaged_views: tuple[View, ...] = (CENTER,)  # of which predictions are made
    first: FirstStage | None = None  # the run whose encoder gives the features
    several_labels: SeveralLabels | None = None  # further right answers of test images
    attribute: Attribute | None = None  # a column that splits the images into groups

    @property
    def backbone(self) -> AnyBackbone:
        """The first backbone: the only one, of most runs."""
        return self.backbones[0]

    @property
    def fingerprint(self) -> str:
        """Of the weights of all backbones."""
        return joint_fingerprint([b.fingerprint for b in self.backbones])

    @property
    def widths(self) -> list[int]:
        """The features that each backbone gives; they add up to D."""
        return [b.dim for b in self.backbones]

    @property
    def untrained(self) -> list[str]:
        """The backbones that have only their random initialisation."""
        return [b.name for b in self.backbones if b.source == str(Scratch())]

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

    def stack(self, views: Sequence[View]) -> Matrix | SideBySide:
        """The features of the training splits, memory-mapped and stacked view by view."""
        matrices: list[Any] = [f.X for view in views for f in self.training_of(view)]
        return type(matrices[0]).join(matrices)

    @property
    def test_views(self) -> list[Matrix | SideBySide]:
        """The features of the test split, one matrix for each view that predictions are averaged over."""
        return [self.sets(view)["test"].X for view in self.averaged_views]

    @property
    def y(self) -> NDArray[np.int64]:
        """n labels of the training splits' images."""
        return np.concatenate([f.y for f in self.training])

    @property
    def training_values(self) -> NDArray[np.int64]:
        """n: which value of the attribute each image of the training splits has."""
        assert self.attribute is not None, "only asked for where there is one"
        return np.concatenate([self.attribute.of(f.name, f.ids) for f in self.training])

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


def device(recipe: Recipe) -> str:
    """Where the recipe's images are encoded."""
    return str(devices.chosen(recipe.device, devices.FOR_ENCODING))


def load_data(recipe: Recipe, cache: Path | None = None) -> Dataset:
    """The data set that a recipe names."""
    d = recipe.data
    with unavailable.told_together(recipe):
        return data.load(
            d.name,
            root=d.root,
            list_files=d.list_files,
            revision=d.revision,
            config=d.config,
            image=d.image,
            label=d.label,
            splits=d.splits,
            subset=d.subset,
            test_fraction=d.test_fraction,
            val=d.val,
            shots=d.shots,
            draw=draws.number(recipe),
            imbalance=d.imbalance,
            profile=d.profile,
            cache=cache,
        )


def backbone_from_cache(
    recipe: Recipe, part: PartConfig, cache: Path | None = None
) -> BackboneIdentity | None:
    """The identity of one of the recipe's backbones, where an earlier run has left it."""
    if recipe.solver.name == "zeroshot" or first_stage.named(recipe.method) is not None:
        return None  # its text encoder is needed, or the weights that a run left
    settings = part.model_dump()
    return backbone_identity.recall(settings, lambda: load_backbone(recipe, part, cache), cache)


def load_backbone(recipe: Recipe, part: PartConfig, cache: Path | None = None) -> Backbone:
    """One of the recipe's backbones, with its weights."""
    first = first_stage.of(recipe)
    if first is not None and first.tuned:
        return first.backbone(device(recipe))
    settings = part.model_dump()
    b = backbone_identity.load_and_remember(
        settings, lambda: backbones.load(**settings, device=device(recipe)), cache
    )
    if recipe.solver.name == "zeroshot":
        b.encode_text(["a photo"])  # refused now, not after minutes of extraction
    return b


def joint_fingerprint(fingerprints: Sequence[str]) -> str:
    """One name for the weights of all parts; that of a single part is its own."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()


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
                precision=r.features.precision,
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
                precision=r.features.precision,
                batch_size=r.features.batch_size,
                workers=r.features.workers,
                skip_bad_images=r.data.skip_bad_images,
                view=view,
            )
    return f


def _of_part(
    recipe: Recipe,
    part: PartConfig,
    identity: BackboneIdentity | None,
    dataset: Dataset,
    cache: Path | None,
    stage: Stage,
) -> tuple[AnyBackbone, Sets]:
    """One of the recipe's backbones and its features; it is loaded only where the cache lacks some."""
    with stage("features"):
        found = None if identity is None else _cached(recipe, identity, dataset, cache)
    if identity is not None and found is not None:
        return identity, found
    with stage("backbone"), unavailable.told_together(recipe):
        backbone = load_backbone(recipe, part, cache)
    with stage("features"):
        return backbone, _extracted(recipe, backbone, dataset, cache)


def gather(
    recipe: Recipe,
    *,
    cache: Path | None = None,
    data: Dataset | None = None,
    stage: Stage = lambda _: nullcontext(),
) -> RunInputs:
    """Load the data and the backbones, and extract (or find) the features of every split.

    `data` is the recipe's data set where it has been loaded before, or some splits of it.
    `stage(name)` surrounds the work on data, backbone and features, for a clock.
    """
    with stage("data"):
        dataset = load_data(recipe, cache) if data is None else data
    first = first_stage.of(recipe)
    if first is not None:
        first.check_data(dataset)
    first_stage.check_teacher(recipe, dataset)
    several = several_labels(recipe, dataset)
    attribute = None
    if recipe.data.attribute is not None:
        attribute = read_attribute(dataset, recipe.data.attribute)
    given = groups.given(recipe.groups, dataset.class_names)  # refused now, not after minutes of extraction
    # of all parts: a name that is unknown is refused before anything is extracted
    with stage("backbone"), unavailable.told_together(recipe):
        known = [(part, backbone_from_cache(recipe, part, cache)) for part in recipe.backbone.parts]
    parts = [_of_part(recipe, part, identity, dataset, cache, stage) for part, identity in known]
    found = {
        view: {split: side_by_side([sets[view][split] for _, sets in parts]) for split in splits}
        for view, splits in parts[0][1].items()
    }
    crops = found.pop(CENTER)
    if any(f.ids != crops[split].ids for sets in found.values() for split, f in sets.items()):
        raise UserError("the views in the cache are not all of the same images; `probe cache rm` them")
    return RunInputs(
        tuple(backbone for backbone, _ in parts),
        dataset,
        crops,
        given,
        found,
        views.chosen(recipe.features.views),
        views.chosen(recipe.features.views_tested),
        first,
        several,
        attribute,
    )


def several_labels(recipe: Recipe, dataset: Dataset) -> SeveralLabels | None:
    """The file of several right answers that a recipe names, tried on the ids of the test images."""
    if recipe.data.real_labels is None or "test" not in dataset:
        return None
    found = read_labels(expanded(recipe.data.real_labels))
    found.accepted(dataset["test"].ids, len(dataset.class_names))  # refused now, not after the extraction
    return found
