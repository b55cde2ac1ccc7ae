"""How a method is written, everywhere: a name, or `name(inner, key=value, ...)`.

    mr2(lam=0.01)                          a loss and a parameter
    drw(ldam)                              a method around a loss
    drw(ldam(max_margin=0.3), after=0.7)   both with parameters

The same as the mapping `{name: drw, loss: {name: ldam, max_margin: 0.3}, after: 0.7}`, which is what a recipe
stores. This module knows the syntax only: `probe.methods.catalogue` checks names and values, and
`probe.methods.spelling` writes a stored method out again. No torch here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.errors import UserError

INNER = "loss"  # the key of the loss inside a method
DEEPEST = 8  # nested brackets; a loss inside a method needs two
WORD = re.compile(r"[A-Za-z0-9_.-]+")
PATH = re.compile(r"[A-Za-z0-9_.~+/-]*/[A-Za-z0-9_.~+/-]*")  # of a run folder, as a value
CLOSES = {")": "(", "]": "["}
WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}


def parse(written: str) -> dict[str, Any]:
    """A written method as a mapping; `drw(ldam, after=0.7)` has the keys name, loss and after.

    >>> parse("mr2(lam=0.01)")
    {'name': 'mr2', 'lam': 0.01}
    """
    name, opened, rest = written.strip().partition("(")
    if not opened:
        if set(")=,") & set(name):
            raise _mistake(written, "write a name, or name(inner, key=value)")
        return {"name": name}
    parts = list(_parts(rest.rstrip().removesuffix(")"), written))
    if not rest.rstrip().endswith(")"):
        raise _mistake(written, "a parenthesis is not closed, or something follows it")
    content: dict[str, Any] = {"name": _word(name, written)}
    for place, part in enumerate(parts):
        key, value = _argument(part, place, written)
        if key in content:
            raise _mistake(written, f'"{key}" is given twice')
        content[key] = value
    return content


def _argument(part: str, place: int, written: str) -> tuple[str, Any]:
    """The key and value of one argument; the first may be the loss inside, without a key."""
    key, sign, value = part.partition("=")
    if not sign or "(" in key:
        if place > 0:
            raise _mistake(written, f'"{part}" has no key; write key=value after the loss inside')
        return INNER, _inner(part, written)
    key = _word(key, written)
    if not value.strip():
        raise _mistake(written, f'"{key}" has no value')
    return key, _inner(value, written) if key == INNER else _value(value.strip(), written)


def _inner(part: str, written: str) -> str | dict[str, Any]:
    content = parse(part)
    name = _word(content["name"], written)
    return name if len(content) == 1 else content


def _word(text: str, written: str) -> str:
    word = text.strip()
    if not WORD.fullmatch(word):
        raise _mistake(written, f'"{word}" is not a name' if word else "a name is missing")
    return word


def _value(text: str, written: str) -> Any:
    """A number, true, false, null, a word, a path, or a list of these in brackets."""
    if text.startswith("[") and text.endswith("]"):
        return [_value(part, written) for part in _parts(text[1:-1], written)]
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text if PATH.fullmatch(text) else _word(text, written)


def _parts(text: str, written: str) -> Iterator[str]:
    """The pieces between the commas that are outside all brackets."""
    opened: list[str] = []
    part = ""
    for letter in text:
        if letter in CLOSES.values():
            opened.append(letter)
        elif letter in CLOSES and (not opened or opened.pop() != CLOSES[letter]):
            raise _mistake(written, f'"{letter}" closes nothing')
        if len(opened) > DEEPEST:
            raise _mistake(written, "it is nested too deeply")
        if letter == "," and not opened:
            yield part.strip()
            part = ""
        else:
            part += letter
    if opened:
        raise _mistake(written, f'"{opened[-1]}" is not closed')
    if part.strip() or text.strip():
        yield part.strip()


def _mistake(written: str, problem: str) -> UserError:
    return UserError(f'method "{written.strip():.80}": {problem}; for example drw(ldam, after=0.7)')


def understood(value: Any) -> Any:
    """A method as a recipe stores it; `value` is the written form, or a mapping that may hold written parts.

    >>> understood({"name": "sam", "loss": "mr2(lam=0.5)"})
    {'name': 'sam', 'loss': {'name': 'mr2', 'lam': 0.5}}
    """
    content = parse(value) if isinstance(value, str) else value
    if not isinstance(content, Mapping):
        return content
    if isinstance(content.get("name"), str) and "(" in content["name"]:
        content = {**parse(content["name"]), **{k: v for k, v in content.items() if k != "name"}}
    if isinstance(content.get(INNER), str) and "(" in content[INNER]:
        content = {**content, INNER: _inner(content[INNER], content[INNER])}
    return dict(content)


def listed(values: Sequence[str]) -> list[str]:
    """`("erm drw(ldam)", "sam(mr2, rho=0.1)")` as three methods: parentheses keep their spaces."""
    found: list[str] = []
    for value in values:
        open_ = 0
        for word in shlex.split(value):
            if open_ > 0:
                found[-1] += f" {word}"
            else:
                found.append(word)
            open_ += word.count("(") - word.count(")")
    return found
