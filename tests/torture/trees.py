"""Plain data made wrong: a JSON tree in which something is missing, of another type, or too much."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from tests.torture.recipes import value


def mutated(luck: Random, tree: Any, changes: int = 3) -> Any:
    """A copy with one to `changes` places changed; some places are near the top, where they hurt most."""
    tree = copy.deepcopy(tree)
    for _ in range(luck.randrange(1, changes + 1)):
        inner = tree
        for _ in range(luck.randrange(8)):
            keys = _keys(inner)
            deeper = [k for k in keys if isinstance(inner[k], (dict, list)) and inner[k]]
            if not deeper:
                break
            inner = inner[luck.choice(deeper)]
        if keys := _keys(inner):
            _change(luck, inner, luck.choice(keys))
    return tree


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else list(range(len(tree)))


def _change(luck: Random, inner: Any, key: Any) -> None:
    what = luck.randrange(6)
    if what == 0:
        del inner[key]
    elif what == 1 and isinstance(inner, dict):
        inner[str(value(luck, 3))] = inner.pop(key)
    elif what == 2 and isinstance(inner, list):
        inner.extend(inner[: luck.randrange(4)])
    elif what == 3 and isinstance(inner[key], (int, float)):
        others = (-1, 2**70, 1e308, float("nan"), float("inf"), str(inner[key]), None, -inner[key])
        inner[key] = luck.choice(others)
    else:
        inner[key] = value(luck)
