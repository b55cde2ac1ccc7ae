"""What a result says about the values of an attribute, in words; for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.text.format import gain_interval, gained, interval, percent, plural


def p_value(p: float) -> str:
    """`p 0.003`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def gap(row: Mapping[str, Any]) -> str:
    """`bright is 2.1 points above dark (+0.4 to +3.8, p 0.012)`; where it is not clear, it says so."""
    said = f"{row['value']} minus {row['than']}: {_points(row)}"
    same = row.get("same_classes")
    if same is None:
        return f"{said}; they share no class"
    return f"{said}; over the {plural(same['classes'], 'class')} that both have: {_points(same)}"


def _points(row: Mapping[str, Any]) -> str:
    clear = "" if row["clear"] else ", not clear"
    return f"{gained(row)} points ({gain_interval(row['ci'])}, {p_value(row['p_holm'])}{clear})"


def worst(test: Mapping[str, Any]) -> str | None:
    """The class and value with the lowest accuracy, in a line."""
    cell = test["worst_cell"]
    if cell is None:
        return None
    trained = f", {plural(cell['train_n'], 'training image')}" if "train_n" in cell else ""
    return (
        f"worst group: {cell['class']}, {cell['value']}: {percent(cell['accuracy'])} % "
        f"({interval(cell['ci'])}; {plural(cell['n'], 'test image')}{trained})"
    )
