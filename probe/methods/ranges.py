"""Parameters that are given as a range, `la(tau=[0, 0.5, 1])`, and the methods that such a range stands for.

Each value of a range is one that the parameter could be given alone; several ranges are every combination,
the first range outermost. Which one is used is chosen on validation images. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from probe.errors import UserError
from probe.losses.spec import Parameter
from probe.methods.catalogue import INNER, info
from probe.recipe.schema import MethodConfig

MOST = 200  # combinations of values

Key = tuple[str, ...]  # ("tau",), or ("loss", "tau") of the loss inside a method


def points(method: MethodConfig) -> list[MethodConfig]:
    """The methods without a range that this one stands for, in order; itself where it has none.

    >>> [point.params for point in points(MethodConfig(name="la", tau=[0.5, 1]))]
    [{'tau': 0.5}, {'tau': 1}]
    """
    ranges = dict(_ranges(method.name, method.params, ()))
    if not ranges:
        return [method]
    if (number := prod(map(len, ranges.values()))) > MOST:
        raise UserError(f"{method.name}: its ranges have {number} combinations; give at most {MOST}")
    return [
        MethodConfig(
            name=method.name,
            groups=method.groups,
            **_placed(method.params, dict(zip(ranges, values, strict=True))),
        )
        for values in product(*ranges.values())
    ]


def chosen(method: MethodConfig, point: Mapping[str, Any]) -> dict[str, Any]:
    """What the ranges of `method` became in one of its points (its parameters), by dotted key."""
    found = {}
    for key in dict(_ranges(method.name, method.params, ())):
        value: Any = point
        for part in key:
            value = value[part]
        found[".".join(key)] = value
    return found


def _ranges(name: str, params: Mapping[str, Any], inside: Key) -> Iterator[tuple[Key, list[Any]]]:
    """Every key with a range, checked value by value."""
    known = {p.name: p for p in info(name).parameters}
    for key, value in params.items():
        if key == INNER and isinstance(value, Mapping) and isinstance(value.get("name"), str):
            inner = {k: v for k, v in value.items() if k != "name"}
            yield from _ranges(value["name"], inner, (*inside, INNER))
        elif isinstance(value, (list, tuple)) and key in known and not _is_list(known[key]):
            yield (*inside, key), _checked(known[key], list(value), name)


def _is_list(parameter: Parameter) -> bool:
    """Is a list this parameter's own kind of value, such as the K frequencies of `ef`?"""
    return parameter.role != "" and parameter.default is None


def _checked(parameter: Parameter, values: list[Any], method: str) -> list[Any]:
    single = isinstance(parameter.default, (bool, int, float, str)) or parameter.low is not None
    if parameter.name == INNER or not single:
        raise UserError(f"{method}: {parameter.name} takes no range; give one value")
    if not values:
        raise UserError(f"{method}: the range of {parameter.name} is empty; give at least one value")
    for value in values:
        parameter.check(value, method)
    if len({repr(value) for value in values}) < len(values):
        raise UserError(f"{method}: the range of {parameter.name} has a value twice: {values}")
    return values


def _placed(params: Mapping[str, Any], values: Mapping[Key, Any]) -> dict[str, Any]:
    """The parameters with these values instead of their ranges."""
    made = dict(params)
    for (first, *rest), value in values.items():
        made[first] = _placed(made[first], {tuple(rest): value}) if rest else value
    return made
