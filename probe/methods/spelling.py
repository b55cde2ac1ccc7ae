"""How a stored method is written out: `drw(ldam, after=0.7)`.

The inverse of `probe.recipe.grammar`, with one thing that the grammar cannot know: a method that wraps any
loss is always written with it, so `sam` alone becomes `sam(erm)`; one that brings a loss of its own, such as
`bcl`, is not. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.methods.catalogue import INNER, info, wraps
from probe.methods.second_stage_rows import FIRST
from probe.methods.spec import LOSS

GROUPS = "groups"  # the key of a method that is no parameter of its own


def spelled(content: Mapping[str, Any]) -> str:
    """The one way to write a method: the loss inside it first, then the given parameters by name.

    >>> spelled({"name": "drw", "after": 0.7, "loss": "ldam"})
    'drw(ldam, after=0.7)'
    """
    given = {key: value for key, value in content.items() if key not in ("name", INNER)}
    if given.get(GROUPS) == "class":  # what every method acts on, unless it is said
        del given[GROUPS]
    if given.get(FIRST.name) is not None:  # a run is known by the name of its folder
        given[FIRST.name] = str(given[FIRST.name]).rstrip("/").rpartition("/")[2]
    arguments = [f"{key}={_shown(given[key])}" for key in sorted(given)]
    loss = _loss_inside(content)
    if loss is not None:
        arguments.insert(0, spelled(loss))
    return str(content["name"]) + (f"({', '.join(arguments)})" if arguments else "")


def names(content: Mapping[str, Any]) -> str:
    """The same without parameters, for the name of a folder: `drw(ldam)`."""
    loss = _loss_inside(content)
    return str(content["name"]) + (f"({names(loss)})" if loss is not None else "")


def _loss_inside(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The loss inside a method that wraps one, given or not; None for a plain loss."""
    name = str(content["name"])
    inner = content.get(INNER, LOSS.default if wraps(name) and LOSS in info(name).parameters else None)
    if isinstance(inner, Mapping):
        return inner if "name" in inner else {"name": "?", **inner}
    return None if inner is None else {"name": str(inner)}


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)
