"""The table of methods that are losses: what each is called, needs and can do. No torch here.

`probe methods` prints it, `probe.losses.make` checks names and parameters against it, and recipes take their
defaults from it. A method is one row here and one small class in the module that `implementation` names.
"""

from __future__ import annotations

from typing import Any

from probe.errors import UserError, nearest
from probe.losses.feature_methods import FEATURE_METHODS
from probe.losses.logit_methods import LOGIT_METHODS
from probe.losses.spec import LossSpec

METHODS: tuple[LossSpec, ...] = LOGIT_METHODS + FEATURE_METHODS

_BY_NAME = {method.name: method for method in METHODS}


def names() -> list[str]:
    """The names `make` knows, in the table's order."""
    return list(_BY_NAME)


def info(name: str) -> LossSpec:
    """The row of one method.

    >>> info("la").frozen
    'exact'
    """
    if name not in _BY_NAME:
        raise UserError(f'there is no loss "{name}"{nearest(name, names())}')
    return _BY_NAME[name]


def resolve(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All parameters of a method: its defaults, replaced by what was given and is allowed."""
    method = info(name)
    known = {p.name: p for p in method.parameters}
    for key in given:
        if key not in known:
            hint = nearest(key, known) if known else "; it has none"
            raise UserError(f'{name} has no parameter "{key}"{hint}')
    return {**method.defaults, **{key: known[key].check(value, name) for key, value in given.items()}}
