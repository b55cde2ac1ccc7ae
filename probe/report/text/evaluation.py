"""The terminal table of a head that was judged on other images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from probe.report.text import format, run
from probe.report.text.attribute import p_value
from probe.report.text.paragraph import Paragraph
from probe.system.safe_text import printable


def show(result: Mapping[str, Any], folder: str, console: Console | None = None) -> None:
    """Print the accuracies, and how far they are from those on the run's own test images."""
    run.write(sections(result), folder, console)


def sections(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts, from top to bottom."""
    data = result["data"]
    name = (result.get("backbone") or {}).get("name") or "?"
    size = f"{data['sizes']['test']:,} images, {format.plural(len(result['seeds']), 'seed')}"
    yield Text(f"{run.plain(name)} on {run.plain(data['name'])}, {size}", "bold")
    yield run.BLANK
    yield run.accuracies(result)
    yield run.BLANK
    yield from run.by_attribute(result)
    yield from run.extremes(result)
    for remark in result["remarks"]:
        yield Paragraph(f"note: {printable(remark)}", style="yellow")


def shift_lines(shift: Mapping[str, Any]) -> Iterator[str]:
    """`against its own test images: -3.1 points (...)`."""
    how = "the same images, paired" if shift["paired"] else "other images"
    yield f"against the run's own test ({how}): {_points(shift['overall'])}"
    if shift.get("same_classes") is not None:
        same = shift["same_classes"]
        yield f"over the {format.plural(same['classes'], 'class')} that both have: {_points(same)}"
    if shift.get("mean_per_class") is not None:
        yield f"mean per class: {_points(shift['mean_per_class'])}"


def _points(row: Mapping[str, Any]) -> str:
    return f"{format.gained(row)} points ({format.gain_interval(row['ci'])}, {p_value(row['p'])})"
