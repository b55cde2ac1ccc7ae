"""What a recipe chooses for, and among what: its `select`, and the ranges of its method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation.judging import AUTO, BUDGET, Objective
from probe.methods import ranges
from probe.probing.problem import ProbeProblem
from probe.probing.selection import Selector
from probe.recipe import MethodConfig, Recipe


def points(recipe: Recipe) -> list[MethodConfig]:
    """The methods that the recipe's ranges stand for; its own where it has none."""
    return ranges.points(recipe.method)


def recipes(recipe: Recipe) -> list[Recipe]:
    """The same recipe for each of these methods."""
    return [with_method(recipe, point) for point in points(recipe)]


def with_method(recipe: Recipe, method: MethodConfig) -> Recipe:
    """The recipe with another method."""
    return recipe.model_copy(update={"method": method})


def has_ranges(recipe: Recipe) -> bool:
    """Is a parameter of the method given as a range?"""
    return points(recipe) != [recipe.method]


def acts(recipe: Recipe) -> bool:
    """Is something else chosen than l2, or for something else than the data set's metric?"""
    return recipe.select.name != AUTO or has_ranges(recipe)


def check(recipe: Recipe) -> None:
    """Refuse hard classes where nothing can rank them before a training."""
    if recipe.from_scratch and recipe.select.name in ("hard", BUDGET):
        raise UserError(
            f"select: {recipe.select.name} needs classes that are ranked beforehand, and "
            f"{recipe.backbone.name} is trained from scratch; use overall, mean-per-class or worst-tenth"
        )


def selectors(
    recipe: Recipe, problem: ProbeProblem, holdouts: Sequence[NDArray[np.int64]], first_seed: int = 0
) -> list[Selector]:
    """What chooses with each seed; none where l2 is chosen on the holdout by the data set's metric."""
    if not acts(recipe):
        return []
    objective = Objective.of(recipe.select.name, problem.metric, recipe.select.budget)
    return [Selector(problem, holdout, objective, seed) for seed, holdout in enumerate(holdouts, first_seed)]


def remark(recipe: Recipe, records: Sequence[Mapping[str, Any]]) -> str | None:
    """What was chosen, in a line: `select: hard chose tau 1, l2 12 by cross-fitting`."""
    if not records or "select" not in records[0]:
        return None
    said = [_said(recipe, record) for record in records]
    selected = records[0]["select"]
    budget = f" of {selected['budget']:g} points" if "budget" in selected else ""
    seeds = "" if len(said) == 1 else " (one for each seed)"
    return f"select: {selected['objective']}{budget} chose {'; '.join(said)} by {selected['by']}{seeds}"


def _said(recipe: Recipe, record: Mapping[str, Any]) -> str:
    values = ranges.chosen(recipe.method, record["select"]["parameters"])
    if recipe.solver.l2 is None and "l2" in record:
        values["l2"] = record["l2"]
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
