"""How to run it again: the command first; the recipe, the backbone, the data and the machine folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.html.markup import definitions, element, scrolling, table, text


def reproduce(result: Mapping[str, Any]) -> str:
    """The one command, and below it everything that the run was made of."""
    import yaml

    if not result.get("recipe"):
        return element("p", "These predictions were made elsewhere, so there is no recipe.", cls="note")
    command = result.get("command") or "probe run recipe.yaml"
    recipe = yaml.safe_dump(without_nulls(result["recipe"]), sort_keys=False, allow_unicode=True)
    said = "or save it as <code>recipe.yaml</code> and run <code>probe run recipe.yaml</code>"
    parts = [
        element("pre", element("code", text(command)), tabindex="0", cls="command"),
        _folded("The whole recipe", element("p", said, cls="note") + _code(recipe)),
    ]
    told = result.get("backbone") or {}
    for part in told.get("parts") or ([told] if told else []):  # several, side by side
        parts.append(_folded(f"Backbone {part.get('name', '')}", definitions(_flat(part))))
    for key, title in (("data", "Data"), ("environment", "Environment")):
        if result.get(key):
            parts.append(_folded(title, definitions(_flat(result[key]))))
    if result.get("timing"):
        rows = [[text(k), f"{v:.1f}"] for k, v in result["timing"].items()]
        timed = table(["stage", "seconds"], rows, caption="Time by stage")
        parts.append(_folded("Time", scrolling(timed, "Time by stage")))
    return "".join(parts)


def _folded(title: str, content: str) -> str:
    return element("details", element("summary", text(title)) + content, cls="fold")


def _code(content: str) -> str:
    return element("pre", element("code", text(content)), tabindex="0")


def without_nulls(block: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what is not set, which reads back as the same recipe."""
    found = {k: without_nulls(v) if isinstance(v, Mapping) else v for k, v in block.items()}
    return {k: v for k, v in found.items() if v not in (None, [], {})}


def _flat(block: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested values with dotted names; empty ones are left out."""
    flat: dict[str, Any] = {}
    for key, value in block.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        elif value not in (None, [], ()):
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat
