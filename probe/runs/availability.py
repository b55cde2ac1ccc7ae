"""Can a recipe be run here? Its backbone, its data set and its method must exist. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backbones import catalogue as backbones
from probe.data import catalogue as data
from probe.errors import UserError
from probe.methods import catalogue as methods
from probe.methods import ranges
from probe.recipe import Recipe, build

HINT = re.compile("; (?:did you mean|known:) ")  # what an error proposes to whoever has typed the name


def why_not(content: Mapping[str, Any]) -> str | None:
    """The first thing that a recipe names and nobody has, in one line; None if all is there.

    The catalogues are asked, so what another package adds counts too.
    """
    try:
        check(build(dict(content)))
    except UserError as error:
        return HINT.split(str(error))[0]
    return None


def check(recipe: Recipe) -> None:
    """Refuse a recipe that names a backbone, a data set, a method or a parameter that does not exist."""
    for method in ranges.points(recipe.method):
        methods.given_to(method.name, method.params)
    for part in recipe.backbone.parts:
        backbones.find(part.name)
    name = recipe.data.name
    if "/" not in name and not any(map(data.find, (name, name.removesuffix(data.LONG_TAIL)))):
        raise data.unknown(name)
