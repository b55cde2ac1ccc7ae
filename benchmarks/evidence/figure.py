"""The figure of the evidence: gain on hard classes against change overall, a panel for each situation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.evidence.situations import SITUATIONS, situation
from probe.report.charts.base import LIGHT, Chart

LINEAR = 3.0  # points around zero up to which the axes are nearly linear; logarithmic beyond
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 30, 50)
NAMED = 1.0  # points of gain on Hard from which on a dot has its method's name; more where gains are large
LEAST = 1.2  # points that an axis shows on both sides of zero
ENOUGH = 3  # seeds from which on an interval says something about other seeds
SIZE = 360  # pixels of a panel
TEXT, LETTER = 10, 5.4  # height of a name, and about the width of its letters
BESIDE: dict[str, dict[str, Any]] = {
    "above right": {"align": "left", "dx": 6, "dy": -6},
    "below right": {"align": "left", "dx": 6, "dy": 7},
    "above left": {"align": "right", "dx": -6, "dy": -6},
    "below left": {"align": "right", "dx": -6, "dy": 7},
}
KINDS = {  # what a method acts by, in the order of the colours
    "class counts": ("la", "cb", "bs", "bcl", "drw(ldam)", "ldam-linear", "dbm", "elm", "crt", "tau-norm"),
    "margins": ("mr2", "mr2-paper", "mr2-released", "mr2-early", "mr2, margin only", "moment", "spread"),
    "errors on training images": ("ef", "dro"),
    "pull, and others": (),
}
SAID = "datum.method + ' (' + datum.data + '): hard ' + datum.hard + ', overall ' + datum.overall"  # aloud
COLOURS = [LIGHT["series"][at] for at in (0, 2, 3, 1)]
COLUMNS = {
    "panel": "situation", "data": "data", "method": "method", "kind": "acts by", "selection": "chosen for",
    "seeds": "seeds", "overall": "change overall, points", "left": "from", "right": "to",
    "hard": "gain on Hard, points", "low": "from", "high": "to",
}  # fmt: skip


def of(published: Iterable[Mapping[str, str]]) -> Chart:
    """From the lines of all tables: a dot for each method, selection and data set, with an interval by itself
    (the tables have the corrected ones) from three seeds on."""
    dots: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for line in published:
        if line["gain"] and line.get("low_alone"):  # tables from before have none
            about = (line[key] for key in ("data", "method", "selection", "seeds"))
            dot = dots.setdefault((situation(line), *about), {})
            dot[line["classes"]] = [float(line[key]) for key in ("gain", "low_alone", "high_alone")]
    rows = [
        [panel, data, method, _kind(method), selection, int(seeds), *dot["overall"], *hard]
        for (panel, data, method, selection, seeds), dot in dots.items()
        if "overall" in dot and (hard := dot.get("hard") or dot.get("few"))
    ]
    shown = [panel for panel in SITUATIONS if any(row[0] == panel for row in rows)]
    spec = {"concat": [_drawn(panel, rows) for panel in shown], "columns": 2, "spacing": 30}
    title = (
        "Gain on Hard (Few, where networks are trained on a long tail) against change overall, in points. "
        "Hollow: chosen for Hard within a budget"
    )
    return Chart("evidence", title, "", COLUMNS, rows, spec)


def _kind(method: str) -> str:
    """What a method acts by; the arms of a margin begin with its statistic."""
    names = (method, method.partition(",")[0] if method.startswith(("moment", "spread")) else method)
    return next((kind for kind, own in KINDS.items() if set(names) & set(own)), list(KINDS)[-1])


def _drawn(panel: str, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """One panel, whose axes fit its dots: an interval may be endless."""
    own = [dict(zip(COLUMNS, row, strict=True)) for row in rows if row[0] == panel]
    ends = [_around(row[name] for row in own) for name in ("overall", "hard")]
    x, y = (
        {
            **{"field": field, "type": "quantitative", "title": title},
            "scale": {"type": "symlog", "constant": LINEAR, "domain": end, "nice": False},
            "axis": {"values": [tick for tick in TICKS if end[0] <= tick <= end[1]], "grid": False},
        }
        for field, title, end in (
            ("overall", "change overall", ends[0]),
            ("hard", "gain on Hard", ends[1]),
        )
    )
    many = f"datum.seeds >= {ENOUGH}"
    kind = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": list(KINDS), "range": COLOURS},
        "legend": {"orient": "bottom", "direction": "horizontal", "symbolType": "circle"},
    }
    dotted = {
        **{"x": x, "y": y, "stroke": {**kind, "legend": None}, "fill": {**kind, "legend": None}},
        "fillOpacity": {"condition": {"test": "datum.selection === 'budget'", "value": 0}, "value": 1},
        "description": {"field": "said"},
        "size": {"condition": {"test": many, "value": 60}, "value": 26},
    }
    zero = {"type": "rule", "strokeDash": [3, 3], "color": "#8a919d"}
    lines = {"mark": {"type": "rule", "opacity": 0.25, "clip": True}, "transform": [{"filter": many}]}
    plain = {"color": kind}
    names = [
        {
            "data": {"values": [row for row, at in zip(own, _places(own, ends), strict=True) if at == place]},
            "mark": {"type": "text", "fontSize": TEXT, **mark},
            "encoding": {"x": x, "y": y, "text": {"field": "method"}, **plain},
        }
        for place, mark in BESIDE.items()
    ]
    return {
        **{"title": {"text": panel, "fontSize": 12}, "width": SIZE, "height": SIZE},
        "transform": [{"filter": {"field": "panel", "equal": panel}}, {"calculate": SAID, "as": "said"}],
        "layer": [
            {"mark": zero, "encoding": {"y": {"datum": 0}}},
            {"mark": zero, "encoding": {"x": {"datum": 0}}},
            {**lines, "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **plain}},
            {**lines, "encoding": {"y": y, "x": {**x, "field": "left"}, "x2": {"field": "right"}, **plain}},
            {"mark": {"type": "point", "strokeWidth": 1.3, "opacity": 0.9}, "encoding": dotted},
            *names,
        ],
    }


def _places(rows: Sequence[Mapping[str, Any]], ends: Sequence[Sequence[float]]) -> list[str | None]:
    """Where each dot's name stands, so that none covers another or a dot: far dots choose first; the others,
    and those that find no room, have none."""
    dots = [(_pixel(row["overall"], ends[0]), SIZE - _pixel(row["hard"], ends[1])) for row in rows]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in dots]
    far = max(NAMED, ends[1][1] / 15)
    found: list[str | None] = [None] * len(rows)
    for at in sorted(range(len(rows)), key=lambda at: -abs(rows[at]["hard"])):
        if abs(rows[at]["hard"]) < far:
            break
        for place, mark in BESIDE.items():
            wide = LETTER * len(rows[at]["method"])
            x = dots[at][0] + mark["dx"] - (wide if mark["align"] == "right" else 0)
            y = dots[at][1] + mark["dy"]
            box = (x, y - TEXT / 2, x + wide, y + TEXT / 2)
            others = [other for i, other in enumerate(taken) if i != at]
            if box[0] >= 0 and box[2] <= SIZE + 20 and not any(_overlap(box, other) for other in others):
                taken.append(box)
                found[at] = place
                break
    return found


def _pixel(value: float, end: Sequence[float]) -> float:
    """Where a value is on its axis."""

    def scaled(v: float) -> float:
        return math.copysign(math.log1p(abs(v) / LINEAR), v)

    return SIZE * (scaled(value) - scaled(end[0])) / (scaled(end[1]) - scaled(end[0]))


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _around(values: Iterable[Any]) -> list[float]:
    """A range that shows all of them and what is near zero, with a twelfth of it to spare."""
    known = [-LEAST, LEAST, *(float(value) for value in values)]
    spare = (max(known) - min(known)) / 12
    return [round(min(known) - spare, 2), round(max(known) + spare, 2)]
