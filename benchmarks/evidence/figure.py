"""The figure of the evidence: gain on hard classes against change overall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probe.report.charts.base import LIGHT, Chart

LINEAR = 3.0  # points around zero up to which the figure's axes are nearly linear; logarithmic beyond
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 30, 50)
COLOURS = [LIGHT["series"][at] for at in (0, 3, 2)]  # three, with eight shapes, tell 24 data sets apart
NAMED = 2.0  # points of gain on Hard from which on a dot has its method's name in the figure


def of(published: Iterable[Mapping[str, str]]) -> Chart:
    """Gain on Hard (Few, in a long tail) against change overall, from the lines of all tables: a dot for each
    method, selection and data set, each interval by itself, because the tables have the corrected ones. Dots
    around zero, where nothing happens, have no names."""
    columns = {
        "data": "data", "method": "method", "selection": "chosen for",
        "overall": "change overall, points", "left": "from", "right": "to",
        "hard": "gain on Hard, points", "low": "from", "high": "to",
    }  # fmt: skip
    dots: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for line in published:
        if line["gain"] and line.get("low_alone"):  # tables from before have none
            dot = dots.setdefault(tuple(line[key] for key in ("data", "method", "selection")), {})
            dot[line["classes"]] = [float(line[key]) for key in ("gain", "low_alone", "high_alone")]
    rows = [
        [*about, *dot["overall"], *dot.get("hard", dot.get("few", []))]
        for about, dot in dots.items()
        if dot.keys() & {"hard", "few"}
    ]
    ends = [_around(row[at] for row in rows) for at in (3, 6)]  # of the dots: an interval may be endless
    x, y = (
        {
            **{"field": field, "type": "quantitative", "title": title},
            "scale": {"type": "symlog", "constant": LINEAR, "domain": end, "nice": False},
            "axis": {"values": [tick for tick in TICKS if end[0] <= tick <= end[1]]},
        }
        for field, title, end in (
            ("overall", "change overall, points", ends[0]),
            ("hard", "gain on Hard (Few, in a long tail), points", ends[1]),
        )
    )
    below = {"orient": "bottom", "columns": 1, "labelLimit": 600}
    named = {"condition": {"test": f"abs(datum.hard) >= {NAMED}", "field": "method"}, "value": ""}
    filled = {"condition": {"test": "datum.selection === 'budget'", "value": 0}, "value": 1}
    zero = {"type": "rule", "strokeDash": [3, 3]}
    grey = {"color": {"value": "#8a919d"}}
    rule = {"type": "rule", "opacity": 0.25, "clip": True}
    plain: dict[str, Any] = {"field": "data", "type": "nominal", "legend": None}
    coloured = {**plain, "scale": {"range": COLOURS}}
    shape = {**plain, "title": "", "legend": below}
    shown = {"x": x, "y": y, "stroke": coloured, "fill": coloured, "fillOpacity": filled, "shape": shape}
    beside = {"type": "text", "align": "left", "dx": 7, "dy": -7, "fontSize": 11}
    spec = {
        "height": 380,
        "encoding": {"color": coloured},
        "layer": [
            {"mark": zero, "encoding": {"y": {"datum": 0}, **grey}},
            {"mark": zero, "encoding": {"x": {"datum": 0}, **grey}},
            {"mark": rule, "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"mark": rule, "encoding": {"y": y, "x": {**x, "field": "left"}, "x2": {"field": "right"}}},
            {"mark": {"type": "point", "size": 60, "strokeWidth": 1.5}, "encoding": shown},
            {"mark": beside, "encoding": {"x": x, "y": y, "text": named}},
        ],
    }
    title = "Gain on Hard against change overall (hollow: chosen for Hard within a budget)"
    return Chart("evidence", title, "", columns, rows, spec)


def _around(values: Iterable[Any]) -> list[float]:
    """A range that shows all of them and zero, with a twentieth of it to spare."""
    known = [0.0, *(float(value) for value in values)]
    spare = max(max(known) - min(known), 1.0) / 20
    return [round(min(known) - spare, 2), round(max(known) + spare, 2)]
