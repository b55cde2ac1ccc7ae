"""The problem that a run's features and labels pose to a method, scaled as the recipe says."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from backbones.backbone import Backbone
from probe.core import collectives, scaling
from probe.core.scaling import FeatureMatrix, Scaling
from probe.data.attribute import SampleGroups
from probe.data.attribute import groups as sample_groups
from probe.features import Matrix, SideBySide
from probe.features.views import CENTER
from probe.probing.problem import ProbeProblem
from probe.probing.zero_shot import text_classifier
from probe.recipe import Recipe
from probe.runs.inputs import AnyBackbone, RunInputs
from probe.system import devices

IN_MEMORY = 4 << 30  # bytes of features up to which they are held in memory; beyond, they are read in blocks


def pose(recipe: Recipe, inputs: RunInputs) -> ProbeProblem:
    """The problem of a recipe: features and labels of the training splits, scaled as the recipe says."""
    learnt, averaged, widths = inputs.learnt_views, inputs.averaged_views, inputs.widths
    # by the evaluation crops: the views of an image are no further images
    balance = scaling.equal_parts(inputs.stack([CENTER]), widths) if inputs.first is None else scaling.NEUTRAL
    raw = _held(inputs.stack(learnt), balance)
    kinds = [_kind(recipe, b) for b in inputs.backbones]
    text = None
    if recipe.solver.name == "zeroshot":
        assert isinstance(inputs.backbone, Backbone)
        text = text_classifier(inputs.backbone, inputs.data.names_in_prompts, inputs.data.templates)
    return ProbeProblem(
        raw=raw,
        y=np.tile(inputs.y, len(learnt)),
        class_names=inputs.data.class_names,
        metric=inputs.data.metric,
        # the first stage's head goes on with the scaling that it was trained with
        scaling=scaling.by_part(kinds, raw, widths) if inputs.first is None else inputs.first.head.scaling,
        text=text,
        ids=inputs.training_ids,
        key=" ".join(f.key for view in dict.fromkeys(learnt + averaged) for f in inputs.training_of(view)),
        views=len(learnt),
        tested=None if averaged == learnt else _held(inputs.stack(averaged), balance),
        balance=balance,
        groups=_groups(recipe, inputs),
        device=devices.chosen(recipe.device),
        tf32=recipe.solver.tf32,
    )


def _groups(recipe: Recipe, inputs: RunInputs) -> SampleGroups | None:
    """What the method acts on, where that is not the classes; of training images only."""
    if recipe.method.groups == "class" or inputs.attribute is None:
        return None
    values = inputs.training_values
    return sample_groups(recipe.method.groups, inputs.attribute, values, inputs.y, inputs.data.class_names)


def _kind(recipe: Recipe, backbone: AnyBackbone) -> str:
    """How the features of one backbone are scaled."""
    kind = recipe.features.scaling
    return ("standard" if backbone.standardise else "none") if kind == "auto" else kind


def _held(matrix: Matrix | SideBySide, balance: Scaling) -> Tensor | FeatureMatrix:
    """The features with their parts balanced, in memory where they are few enough and no process shares
    them: of several, each reads its own rows only."""
    small = 4 * matrix.shape[0] * matrix.shape[1] <= IN_MEMORY and collectives.sharing() == 1
    return balance(matrix.tensor()) if small else balance.lazily(matrix)
