"""Few-shot runs of several seeds: each seed learns from a draw of its own, `data.draw` and those after it.

So intervals say what other images would give, not only what other holdouts would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probe.recipe import Recipe
from probe.runs import first_stage

if TYPE_CHECKING:
    from probe.runs.inputs import RunInputs
    from probe.runs.strategy import FittedMethod


def number(recipe: Recipe) -> int:
    """Which draw the first seed learns from: a later seed has a later one, wherever a run begins."""
    return recipe.data.draw + (recipe.first_seed if recipe.data.shots is not None else 0)


def further(recipe: Recipe) -> list[Recipe]:
    """The recipe with the draw of each seed after the first; none where all learn from the same images."""
    if recipe.data.shots is None or recipe.solver.name == "zeroshot" or first_stage.named(recipe.method):
        return []
    draws = range(recipe.data.draw + 1, recipe.data.draw + recipe.seeds)
    return [
        recipe.model_copy(update={"data": recipe.data.model_copy(update={"draw": draw})}) for draw in draws
    ]


def joined(parts: Sequence[FittedMethod]) -> FittedMethod:
    """A method's fits on all draws as those of one run, seed by seed."""
    lists = ("fits", "scores", "tuned", "holdout_scores", "start_scores", "first_scores")
    values: dict[str, Any] = {name: [v for part in parts for v in getattr(part, name)] for name in lists}
    return replace(parts[0], **values)


def record(recipe: Recipe, inputs: Sequence[RunInputs]) -> list[dict[str, Any]]:
    """Which draw each seed learnt from, and the fingerprint of its training images."""
    first = number(recipe)
    return [
        {"seed": seed, "draw": first + seed, "train": drawn.data["train"].fingerprint}
        for seed, drawn in enumerate(inputs)
    ]


def remark(recipe: Recipe, seeds: int) -> str:
    """One line for the reader of the intervals."""
    first = number(recipe)
    return (
        f"each seed learns from {recipe.data.shots} other images of a class (draws {first} to "
        f"{first + seeds - 1}); groups and diagnostics are those of the first"
    )
