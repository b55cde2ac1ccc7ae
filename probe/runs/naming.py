"""What a run is called: its folder, and its predictions in every table."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

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


def command(recipe: Recipe) -> str:
    """The words that run this recipe again: `probe run --backbone clip-rn50 --data pets --method mr2`."""
    words = ["--backbone", recipe.backbone.name, "--data", recipe.data.name, "--method", method(recipe)]
    words += ["--finetune"] if recipe.finetune else []
    plain = _flat(Recipe().model_dump())
    told = ("backbone.name", "data.name", "finetune")
    for key, value in _flat(recipe.model_dump()).items():
        if key not in told and not key.startswith("method.") and value != plain.get(key):
            words.append(f"{key}={_as_yaml(value)}")
    return shlex.join(["probe", "run", *words])


def _as_yaml(value: Any) -> str:
    """A bare word where YAML reads it as the same text; else JSON, which is YAML too."""
    bare = isinstance(value, str) and value.replace("-", "").isalpha() and yaml.safe_load(value) == value
    return str(value) if bare else json.dumps(value)


def _flat(block: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested sections with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in block.items():
        section = isinstance(value, dict)
        flat |= _flat(value, f"{above}{key}.") if section else {f"{above}{key}": value}
    return flat


def _how(recipe: Recipe) -> str:
    return "finetune" if recipe.finetune else recipe.solver.name
