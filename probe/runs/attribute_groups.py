"""Groups that are not classes: what a method may act on, and the `attribute` block of a result."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.errors import UserError
from probe.evaluation import attribute_values, predictions
from probe.evaluation.attribute_values import AttributeSet
from probe.losses.catalogue import check_groups
from probe.recipe import Recipe
from probe.runs import selecting
from probe.runs.experiment import Experiment
from probe.runs.reference import ERM

NAMED = 3  # groups that a remark names


def check(recipe: Recipe) -> None:
    """Refuse groups that no column gives, or that the method cannot act on."""
    if recipe.method.groups == "class":
        return
    how = f"method.groups={recipe.method.groups}"
    if recipe.data.attribute is None:
        raise UserError(f"{how} needs data.attribute=COLUMN, which says what groups there are")
    check_groups(recipe.method.name)
    if selecting.acts(recipe):
        raise UserError(f"{how} goes with select=auto and parameters without ranges; give one value of each")


def block(e: Experiment) -> dict[str, Any] | None:
    """Accuracy by value and by class and value, gaps, and gains over erm; None without an attribute."""
    attribute = e.inputs.attribute
    if attribute is None:
        return None
    values = AttributeSet(
        name=attribute.name,
        values=attribute.values,
        codes=attribute.of("test", e.test.ids),
        labels=e.test.y,
        class_names=tuple(e.test.class_names),
        train_counts=_cells(e),
    )
    own = predictions.outcome(e.predictions, e.test.y, e.fitted.name)
    erm = None if e.versus is None else predictions.outcome(e.predictions, e.test.y, ERM)
    return attribute_values.evaluate(values, own, erm)


def _cells(e: Experiment) -> np.ndarray:
    """K x A: training images of each class and value."""
    attribute = e.inputs.attribute
    assert attribute is not None
    k, a = len(e.test.class_names), len(attribute.values)
    return np.bincount(e.inputs.y * a + e.inputs.training_values, minlength=k * a).reshape(k, a)


def remark(e: Experiment) -> str | None:
    """One line about groups without training images, which a method can do nothing for."""
    groups = e.problem.groups
    if groups is None or not groups.empty:
        return None
    some = "; ".join(groups.empty[:NAMED]) + ("; ..." if len(groups.empty) > NAMED else "")
    whole = len(groups.empty) + len(groups.names)
    return f"{len(groups.empty)} of {whole} groups have no training images and get no weight: {some}"
