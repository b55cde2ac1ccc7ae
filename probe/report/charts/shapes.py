"""The shapes of the diagnostics (dots, distributions, boxes), and the view of a result that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.charts.base import (
    HEIGHT,
    Chart,
    Spec,
    framed,
    hint,
    lines,
    named,
    quantity,
    series,
    shade,
    shape,
)

TAIL = 0.05  # at each end of a distribution, which is left out of sight so that the middle is readable
LEVELS = 41  # quantiles of every stored distribution, from 0 to 1
CLASS = {"rank": "rank", "class": "class", "group": "group", "accuracy": "accuracy %"}


class View:
    """A result as the panels read it: classes from easiest to hardest, with their group and accuracy."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.result = result
        self.block: Mapping[str, Any] = result.get("diagnostics") or {}
        self.features: Mapping[str, Any] = self.block.get("features") or {}
        self.methods: Mapping[str, Any] = self.block.get("methods") or {}
        self.groups = list(result["test"]["groups"])
        self.rows = {row["name"]: row for row in result["test"]["by_class"]}
        names = list(self.block.get("classes") or self.rows)
        order = [name for group in result["test"]["groups"].values() for name in group["classes"]]
        index = {name: k for k, name in enumerate(names)}
        self.order = [(rank + 1, index[name], self.rows[name]) for rank, name in enumerate(order)]

    def by_method(self, key: str) -> dict[str, Any]:
        """The values of every method that has them."""
        return {name: block[key] for name, block in self.methods.items() if block.get(key)}

    def by_class(self, values: Sequence[float | None]) -> Iterator[tuple[Any, ...]]:
        """(rank, class, group, accuracy %, value) of every class that has them."""
        for rank, k, row in self.order:
            if values[k] is not None and row["accuracy"] is not None:
                yield rank, row["name"], row["group"], round(100 * row["accuracy"], 2), values[k]


def against_accuracy(
    view: View,
    values: Sequence[float | None] | None,
    what: str,
    held_out: Sequence[float] | None = None,
    /,
    **about: str,
) -> Chart | None:
    """One dot per class: accuracy against some measure (`values`, K).

    It is the accuracy on test images, or the `held_out` one (K fractions) of training images.
    """
    if not values:
        return None
    measured = "accuracy %" if held_out is None else "held-out accuracy %"
    columns = {**CLASS, "accuracy": measured, "value": what}
    rows = list(view.by_class(values))
    if held_out is not None:
        index = {row["name"]: k for _, k, row in view.order}
        rows = [(*row[:3], round(100 * held_out[index[row[1]]], 2), row[4]) for row in rows]
    return Chart(
        columns=columns,
        rows=rows,
        spec=framed(
            "point",
            columns,
            x=quantity("value", what),
            y=quantity("accuracy", measured),
            color=shade(view.groups),
            shape=shape(view.groups),
        ),
        **about,
    )


def along_classes(
    view: View, tables: Mapping[str, Sequence[float | None]], what: str, **about: str
) -> Chart | None:
    """Dots along the classes, easiest to hardest, one colour per method."""
    if not tables:
        return None
    columns = {**CLASS, "value": what, "method": "method"}
    rows = [(*row, name) for name, values in tables.items() for row in view.by_class(values)]
    return Chart(
        columns=columns,
        rows=rows,
        spec=framed(
            "circle",
            columns,
            x=named("rank", list(dict.fromkeys(row[1] for row in rows))),
            y=quantity("value", what),
            color=series("method", list(tables)),
        ),
        **about,
    )


def distribution(
    tables: Mapping[str, Mapping[str, Sequence[float]]], what: str, groups: Sequence[str], **about: str
) -> Chart:
    """Cumulative distributions: `tables[method][group]` are quantiles at equally spaced levels."""
    columns = {"method": "method", "group": "group", "share": "share of images", "value": what}
    rows = [
        (method, group, i / (len(values) - 1), float(f"{v:.4g}"))
        for method, table in tables.items()
        for group, values in table.items()
        for i, v in enumerate(values)
    ]
    shown = [values for table in tables.values() for values in table.values() if values]
    cut = round(TAIL * (LEVELS - 1))
    ends = [min(v[cut] for v in shown), max(v[-1 - cut] for v in shown)] if shown else [0, 1]
    x = quantity("value", what, nice=False)
    x["scale"] = {**x["scale"], "domain": [float(f"{end:.3g}") for end in ends]}
    dash: Spec = {"strokeDash": {**series("method", list(tables))}} if len(tables) > 1 else {}
    curves = {
        "mark": {"type": "line", "clip": True, "interpolate": "step-after"},
        "encoding": {
            "x": x,
            "y": quantity("share", "share of images below", axis={"format": ".0%", "tickCount": 5}),
            "color": shade(groups),
            "order": {"field": "share", "type": "quantitative"},
            **dash,
            "tooltip": hint(columns),
        },
    }
    zero = {
        "mark": {"type": "rule", "strokeDash": [3, 3], "clip": True},
        "encoding": {"x": {"datum": 0, "type": "quantitative"}},
    }
    crosses = ends[0] < 0 < ends[1]
    return Chart(
        columns=columns,
        rows=rows,
        spec={"width": "container", "height": HEIGHT + 40, "layer": [*([zero] if crosses else []), curves]},
        **about,
    )


def boxes(
    tables: Mapping[str, Mapping[str, Sequence[float]]], what: str, groups: Sequence[str], **about: str
) -> Chart:
    """The middle 50 %, the median and the middle 90 % of each group, from stored quantiles."""
    columns = {
        "method": "method",
        "group": "group",
        "p5": "5 %",
        "q1": "25 %",
        "median": "median",
        "q3": "75 %",
        "p95": "95 %",
    }
    at = [round(level * (LEVELS - 1)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
    rows = [
        (method, group, *(float(f"{values[i]:.4g}") for i in at))
        for method, table in tables.items()
        for group, values in table.items()
        if values
    ]
    y = lines("group", groups)
    offset: Spec = {"yOffset": series("method", list(tables))} if len(tables) > 1 else {}
    colour = series("method", list(tables)) if len(tables) > 1 else shade(groups)
    return Chart(
        columns=columns,
        rows=rows,
        spec={
            "width": "container",
            "height": len(rows) * (28 if len(tables) > 1 else 44),
            "encoding": {"y": y, **offset, "color": colour},
            "layer": [
                {"mark": "rule", "encoding": {"x": quantity("p5", what), "x2": {"field": "p95"}}},
                {
                    "mark": {"type": "bar", "size": 12, "cornerRadius": 2},
                    "encoding": {"x": quantity("q1", what), "x2": {"field": "q3"}, "tooltip": hint(columns)},
                },
                {
                    "mark": {"type": "tick", "thickness": 2, "size": 18, "color": "#f5f6f8"},
                    "encoding": {"x": quantity("median", what), "color": {"value": "#11141a"}},
                },
            ],
        },
        **about,
    )
