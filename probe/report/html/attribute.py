"""The section of a page about the values of an attribute: each value, the gaps, and every class and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.html.markup import element, table, text
from probe.report.text import attribute, format
from probe.report.text.format import gain_interval, gained, interval, percent

FIRST = 10  # rows of the table of classes and values that are shown before it is opened
CELLS = 1000  # rows of it in all; the rest is in result.json


def content(block: Mapping[str, Any]) -> str:
    """All of the section, of the `attribute` block of a result."""
    test, name = block["test"], block["name"]
    said = attribute.worst(test)
    parts = [element("p", text(said[0].upper() + said[1:] + "."))] if said else []
    parts += [_values(block), *_gaps(test["gaps"], name), _cells(block)]
    return "".join(parts)


def _scrolling(heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str, numeric: int) -> str:
    made = table(heading, rows, caption=caption, numeric=numeric)
    return element("div", made, cls="scroll", tabindex="0")


def _values(block: Mapping[str, Any]) -> str:
    versus = block.get("versus") or {}
    gains = versus.get("gain") or {}
    rows = [
        [*_numbers([row["value"]], row), *([_gain(gains.get(row["value"]))] if versus else [])]
        for row in block["test"]["values"]
    ]
    heading = [text(block["name"]), *NUMBERS, *([f"gain over {text(versus['method'])}"] if versus else [])]
    caption = "A value's accuracy is the share of its test images that are right."
    return _scrolling(heading, rows, caption, 1)


NUMBERS = ("test images", "training images", "accuracy %", "95 % interval")


def _numbers(names: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    trained = f"{row['train_n']:,}" if "train_n" in row else "–"
    return [*map(text, names), f"{row['n']:,}", trained, percent(row["accuracy"]), interval(row["ci"])]


def _gain(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return ""
    said = format.verdict(gain)
    return element("span", f"{gained(gain)} ({gain_interval(gain['ci'])}): {said}", cls=format.TONE[said])


def _gaps(gaps: Sequence[Mapping[str, Any]], name: str) -> Iterator[str]:
    if not gaps:
        return

    def points(row: Mapping[str, Any] | None) -> list[str]:
        if row is None:
            return ["no class in common", "–"]
        return [
            f"{gained(row)} ({gain_interval(row['ci'])})",
            text(attribute.p_value(row["p_holm"]).removeprefix("p ")),
        ]

    rows = [
        [f"{text(row['value'])} minus {text(row['than'])}", *points(row), *points(row["same_classes"])]
        for row in gaps
    ]
    heading = [f"gap of {text(name)}", "points (95 %, Holm)", "p", "points, same classes (95 %, Holm)", "p"]
    caption = (
        "The images of two values are others, so a gap is not paired by images. Over the same classes, each "
        "class that both values have counts the same."
    )
    yield element("h3", "Gaps") + _scrolling(heading, rows, caption, 1)


def _cells(block: Mapping[str, Any]) -> str:
    """Every class and value that has test images, the worst first."""
    cells = sorted(block["test"]["cells"], key=lambda row: (row["accuracy"], -row["n"]))
    rows = [_numbers([row["class"], row["value"]], row) for row in cells[:CELLS]]
    left = f" The {len(cells) - CELLS:,} best are left out here." if len(cells) > CELLS else ""
    caption = (
        f"The worst first. An interval is for its own row, not for having been picked as the worst.{left}"
    )
    heading = ["class", text(block["name"]), *NUMBERS]
    made = element("h3", "Every class and value") + _scrolling(heading, rows[:FIRST], caption, 2)
    if len(rows) > FIRST:
        others = _scrolling(heading, rows[FIRST:], "From the next worst to the best.", 2)
        made += element("details", element("summary", f"Show the other {len(rows) - FIRST:,}") + others)
    return made
