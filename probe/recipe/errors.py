"""All mistakes of a recipe, told at once and in one line.

One mistake is a line of its own; several are numbered: `recipe: 2 mistakes: (1) ...; (2) ...`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from probe.errors import UserError, nearest

DEEPEST = 16  # levels of a recipe
TOLD = 10  # mistakes that one line holds; a file that is not a recipe can have thousands
PREFIX = "recipe: "

Path = tuple[str, ...]


class OwnWords(ValueError):
    """Raised inside a validator: its message is a whole line already."""


@dataclass(frozen=True)
class Mistake:
    """One line, and the key that it is about."""

    path: Path
    line: str


def tell(lines: Iterable[str]) -> None:
    """Raise one line that holds all of these; nothing happens when there are none."""
    different = list(dict.fromkeys(lines))
    if len(different) == 1:
        raise UserError(different[0])
    if different:
        shown = [f"({i}) {line.removeprefix(PREFIX)}" for i, line in enumerate(different[:TOLD], 1)]
        more = [f"and {len(different) - TOLD} more"] if len(different) > TOLD else []
        raise UserError(f"{PREFIX}{len(different)} mistakes: {'; '.join([*shown, *more])}")


def check_all(checks: Iterable[Callable[[], None]]) -> None:
    """Run every check and tell what all of them refuse."""
    refused = []
    for check in checks:
        try:
            check()
        except UserError as error:
            refused.append(str(error))
    tell(refused)


# What is wrong with a value, by its type; everything else that YAML can write is refused.
PROBLEMS: dict[type, Callable[[Any], str]] = {
    str: lambda v: "holds a character that no file can" if _unwritable(v) else "",
    int: lambda v: "is too large" if abs(v) >= 1 << 63 else "",
    float: lambda v: "" if math.isfinite(v) else "is not a finite number",
    bool: lambda v: "",
    type(None): lambda v: "",
}


def unstorable(value: Any, path: Path = ()) -> Iterator[Mistake]:
    """What no result can carry or no file can hold: dates, sets, NaN, half characters, endless nesting."""
    where = ".".join(path)
    if len(path) > DEEPEST:
        yield Mistake(
            path, f"{PREFIX}{where[:80]} is nested too deeply; a recipe has sections, keys and values"
        )
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from unstorable(key, path)
                yield from unstorable(inner, (*path, key))
            else:
                yield Mistake(path, f"{PREFIX}the key {_shown(key)} is not text; put it in quotes")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from unstorable(inner, (*path, "-"))
    else:
        other = f"is a {type(value).__name__}, which a recipe cannot hold; put text in quotes"
        problem = PROBLEMS.get(type(value), lambda _: other)(value)
        if problem:
            yield Mistake(path, f"{PREFIX}{where}: {_shown(value)} {problem}")


def explained(error: ValidationError, schema: type[BaseModel]) -> Iterator[Mistake]:
    """One mistake for each key that the schema refuses."""
    seen = set()
    for found in error.errors(include_url=False):
        loc = tuple(str(part) for part in found["loc"])
        path, section = _key(loc, schema)
        if path in seen:  # of a value that may be one of several things, the first complaint is enough
            continue
        seen.add(path)
        if isinstance(cause := found.get("ctx", {}).get("error"), OwnWords):
            line = str(cause)
        elif found["type"] == "extra_forbidden":
            line = f'{PREFIX}unknown key "{".".join(loc)}"' + nearest(loc[-1], section.model_fields)
        else:
            line = f"{PREFIX}{'.'.join(loc)}: {found['msg']} (given {_shown(found['input'])})"
        yield Mistake(path, line)


def _key(loc: Path, schema: type[BaseModel]) -> tuple[Path, type[BaseModel]]:
    """The key of the recipe that an error's location is about, and the section that holds it."""
    section = schema
    for depth, part in enumerate(loc):
        field = section.model_fields.get(part)
        inner = None if field is None else field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return loc[: depth + 1], section
        section = inner
    return loc, section


def _unwritable(text: str) -> bool:
    return "\0" in text or any("\ud800" <= c <= "\udfff" for c in text)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:  # longer ones cannot even be printed
        return f"a number of {value.bit_length()} bits"
    try:
        return f"{value!r:.80}"
    except ValueError:  # such a number inside a list or a mapping
        return f"a {type(value).__name__} with a number that is too long to print"
