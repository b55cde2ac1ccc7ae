"""From YAML and KEY=VALUE words to a validated recipe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from backbones import reading
from probe.errors import UserError
from probe.recipe import errors, grammar
from probe.recipe.schema import Recipe


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases: nested ones can stand for more values than any machine can hold."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise UserError(
                f"recipe: line {self.peek_event().start_mark.line + 1}: YAML aliases are not allowed"
            )
        return super().compose_node(parent, index)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a piece of YAML; anything unreadable is one clear line that names `where`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise UserError(f"{where}:{line} not valid YAML: {problem}") from error


def read(path: Path) -> dict[str, Any]:
    """The raw content of a recipe file."""
    try:
        text = reading.content(path, limit=reading.RECIPE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read recipe {path}: {reason}; check the path and the file") from error
    content = parse_yaml(text, str(path)) or {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values, not a {type(content).__name__}")
    return content


def override(content: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Write `["seeds=5", "method.lam=0.05"]` over a recipe's content."""

    errors.check_all(partial(_override, content, setting) for setting in settings)
    return content


def _override(content: dict[str, Any], setting: str) -> None:
    key, sign, value = setting.partition("=")
    if not sign or not key:
        raise UserError(f'"{setting}" is not an override; write key=value, e.g. seeds=5 or method.lam=0.05')
    place(content, key, parse_yaml(value, setting))


def place(content: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `content["a"]["b"] = value` for "a.b"; a bare word on the way becomes {"name": word}."""
    if dotted == "method.name" and isinstance(value, str) and "(" in value:
        dotted = "method"  # a whole method, `drw(ldam)`, instead of whatever stood there
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = content.get(parent)
        if isinstance(inner, str) and parent in ("method", grammar.INNER):
            inner = grammar.parse(inner)
        content[parent] = inner if isinstance(inner, dict) else {} if inner is None else {"name": inner}
        content = content[parent]
    content[last] = value


def build(content: dict[str, Any]) -> Recipe:
    """The validated recipe; all mistakes are reported in one line."""
    mistakes = list(errors.unstorable(content))
    try:
        built = Recipe.model_validate(content)
    except ValidationError as error:
        known = {mistake.path for mistake in mistakes}
        refused = errors.explained(error, Recipe)
        mistakes += [m for m in refused if not any(m.path[: len(path)] == path for path in known)]
    else:  # a word like "inf" has become a number
        mistakes = mistakes or list(errors.unstorable(built.model_dump()))
    errors.tell(mistake.line for mistake in mistakes)
    return built
