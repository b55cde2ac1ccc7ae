"""Can a recipe be run here? Its method, its backbone and its data set must exist. No torch here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from backbones import catalogue as backbones
from probe.data import catalogue as data
from probe.errors import UserError
from probe.methods import catalogue as methods
from probe.methods import ranges
from probe.recipe import MethodConfig, Recipe, build

HINT = re.compile("; (?:did you mean|known:) ")  # what an error proposes to whoever has typed the name


@dataclass
class Catalogues:
    """The catalogues, which are asked about each name once: a name that is not built in costs a search.

    What another package adds counts too.
    """

    _answers: dict[str, str | None] = field(default_factory=dict)

    def why_not(self, content: Mapping[str, Any]) -> str | None:
        """The first thing that a recipe names and nobody has, in one line; None if all is there."""
        try:
            recipe = build(dict(content))
        except UserError as error:
            return str(error)
        answers = (self._answer(name, check) for name, check in _checks(recipe))
        return next((answer for answer in answers if answer is not None), None)

    def _answer(self, name: str, check: Callable[[], None]) -> str | None:
        if name not in self._answers:
            try:
                check()
                self._answers[name] = None
            except UserError as error:
                self._answers[name] = HINT.split(str(error))[0]
        return self._answers[name]


def _checks(recipe: Recipe) -> Iterator[tuple[str, Callable[[], None]]]:
    """What must exist, each with a name of its own."""
    yield f"method {recipe.method.model_dump_json()}", partial(_method, recipe.method)
    for part in recipe.backbone.parts:
        yield f"backbone {part.name}", partial(_backbone, part.name)
    yield f"data {recipe.data.name}", partial(_data, recipe.data.name)


def _method(method: MethodConfig) -> None:
    for point in ranges.points(method):
        methods.given_to(point.name, point.params)


def _backbone(name: str) -> None:
    backbones.find(name)


def _data(name: str) -> None:
    if "/" not in name and not any(map(data.find, (name, name.removesuffix(data.LONG_TAIL)))):
        raise data.unknown(name)
