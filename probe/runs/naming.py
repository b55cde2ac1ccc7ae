"""What a run is called: its folder, and its predictions in every table."""

from __future__ import annotations

import re
from pathlib import Path

from probe.methods import spelling
from probe.recipe import Recipe

WORD = 50  # characters of a name that a folder's name keeps; a file system takes 255 in all


def slug(recipe: Recipe) -> str:
    """The name of the run folder, `clip-rn50-pets-mr2-1a2b3c4d`: readable, and unique to the recipe."""
    words = [recipe.backbone.title, Path(recipe.data.name).name, spelling.names(recipe.method.model_dump())]
    if (how := _how(recipe)) != "lbfgs":
        words.append(how)
    safe = [re.sub(r"[^A-Za-z0-9.]+", "-", w)[:WORD].strip("-.") for w in words]
    return "-".join([*safe, recipe.digest[:8]])


def method(recipe: Recipe) -> str:
    """The method as a recipe writes it: `drw(ldam, after=0.7)`."""
    return spelling.spelled(recipe.method.model_dump())


def label(recipe: Recipe) -> str:
    """What the run's own predictions are called: `mr2`, or `erm-knn` where the solver is what differs."""
    how = _how(recipe)
    return method(recipe) if how == "lbfgs" else f"{method(recipe)}-{how}"


def _how(recipe: Recipe) -> str:
    return "finetune" if recipe.finetune else recipe.solver.name
