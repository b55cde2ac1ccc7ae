"""A chart: a Vega-Lite spec whose data is a plain table, so that every chart can also be read as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
HEIGHT = 260
FEW = 40  # classes, up to which a chart has their names on an axis
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Groups go from blue over amber to red, each at least 3:1 on its paper and apart from the others for readers
# who confuse red and green or blue and yellow (`tests/report/test_colours.py` computes it).
LIGHT = {
    "ink": "#1b1e24",
    "faint": "#6b7280",
    "line": "#e3e6eb",
    "paper": "#ffffff",
    "series": ["#2456d6", "#7d8592", "#0f8f78", "#c2571a"],
    "heat": ["#f3f5f9", "#9db8ee", "#2456d6", "#0c1f5c"],
    "shades": ["#2f7fd0", "#b8860b", "#8c1d3f"],
}
DARK = {
    "ink": "#e8eaee",
    "faint": "#9aa3b2",
    "line": "#2c313a",
    "paper": "#14161a",
    "series": ["#86a8ff", "#7b8494", "#4fd0b5", "#f0995c"],
    "heat": ["#20242c", "#34508f", "#86a8ff", "#eef3ff"],
    "shades": ["#4f93e6", "#e8c468", "#ff6f91"],
}


@dataclass(frozen=True)
class Chart:
    """A chart and its table: `columns` maps the fields of the spec to headings, `rows` are the values."""

    name: str  # of its file and its element
    title: str
    note: str  # how to read it, and what it cannot say
    columns: Mapping[str, str]
    rows: Sequence[Sequence[Any]]
    spec: Spec  # without data and theme

    def embedded(self) -> dict[str, Any]:
        """What the page needs; the data is stored once, for the chart and for the table."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": dict(self.columns),
            "rows": [list(row) for row in self.rows],
            "spec": self.spec,
        }

    def whole(self) -> Spec:
        """A complete spec in the light theme, for static files."""
        values = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "title": self.title,
            "width": 640,
            **_resized(self.spec, 640),
            "data": {"values": values},
            "config": theme(LIGHT),
        }


def _resized(spec: Spec, width: int) -> Spec:
    """ "container" means the page's column; a file has none."""
    return {k: width if (k, v) == ("width", "container") else v for k, v in spec.items()}


def theme(colours: Mapping[str, Any]) -> Spec:
    """Vega-Lite configuration: light axes, so that the data stands out."""
    label = {
        "labelColor": colours["faint"],
        "titleColor": colours["faint"],
        "labelFont": FONT,
        "titleFont": FONT,
    }
    return {
        "background": "transparent" if colours is DARK else colours["paper"],
        "font": FONT,
        "padding": {"left": 5, "right": 14, "top": 5, "bottom": 5},  # half a label beyond the last tick
        "view": {"stroke": None},
        "title": {
            "color": colours["ink"],
            "font": FONT,
            "anchor": "start",
            "fontSize": 14,
            "fontWeight": 600,
        },
        "axis": {
            **label,
            "domain": False,
            "ticks": False,
            "gridColor": colours["line"],
            "labelPadding": 6,
            "titlePadding": 10,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 12,
        },
        "axisX": {"grid": False, "labelSeparation": 6, "labelFlush": False},  # labels where the ticks are
        "legend": {
            **label,
            "title": None,
            "orient": "top",
            "labelFontSize": 12,
            "symbolStrokeWidth": 3,
            "symbolOpacity": 1,
            "labelLimit": 260,
            "symbolBaseFillColor": colours["faint"],
        },
        "header": {**label, "titleFontWeight": "normal", "labelFontSize": 12, "labelFontWeight": 600},
        "range": {
            "category": colours["series"],
            "ordinal": colours["shades"],
            "ramp": {"scheme": colours["shades"]},  # interpolated to as many shades as there are groups
            "heatmap": {"scheme": colours["heat"]},
        },
        "line": {"strokeWidth": 2, "color": colours["series"][0]},
        "point": {"filled": True, "size": 42, "opacity": 0.8, "color": colours["series"][0]},
        "circle": {"size": 34, "opacity": 0.7},
        "rule": {"color": colours["faint"]},
        "boxplot": {"size": 14},
        "text": {"color": colours["ink"], "font": FONT},
    }


def quantity(field: str, title: str, **options: Any) -> Spec:
    """An axis for numbers; the scale fits the data unless `zero` is asked for."""
    scale = {"zero": options.pop("zero", False), "nice": options.pop("nice", True)}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **options}


def framed(mark: str | Spec, columns: Mapping[str, str], *, height: int = HEIGHT, **encoding: Spec) -> Spec:
    """One mark, as wide as its column of the page; hovering shows `columns`."""
    return {
        "width": "container",
        "height": height,
        "mark": mark,
        "encoding": {**encoding, "tooltip": hint(columns)},
    }


# Orders are given by a scale's domain, never by "sort": Vega-Lite compiles sorted values into expressions,
# and a hostile class name would end up in one.


def lines(field: str, order: Sequence[str]) -> Spec:
    """A row of the chart for each name, from top to bottom."""
    return {"field": field, "type": "nominal", "title": None, "scale": {"domain": list(order)}}


def series(field: str, order: Sequence[str]) -> Spec:
    """Methods or classifiers by colour, the run's own first."""
    return {"field": field, "type": "nominal", "scale": {"domain": list(order)}}


def shade(order: Sequence[str]) -> Spec:
    """Groups by colour, from easy to hard."""
    return {
        "field": "group",
        "type": "ordinal",
        "scale": {"domain": list(order), "range": "ordinal" if len(order) <= 3 else "ramp"},
    }


def shape(order: Sequence[str]) -> Spec:
    """Groups by shape too, for readers and printers without colour."""
    shapes = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
    scale = {"domain": list(order), "range": [shapes[i % len(shapes)] for i in range(len(order))]}
    return {"field": "group", "type": "nominal", "scale": scale}


def named(rank: str, order: Sequence[str]) -> Spec:
    """An axis of classes, easiest to hardest: with their names where they are few, else by rank."""
    if len(order) > FEW:
        return quantity(rank, "classes, easiest to hardest", nice=False)
    axis = {"labelAngle": -90, "labelLimit": 130, "labelOverlap": True, "labelFontSize": 10}
    return {**lines("class", order), "axis": axis}


def intervals(title: str, columns: Mapping[str, str], **encoding: Any) -> list[Spec]:
    """Layers of a chart of gains: a dashed line at 0, a bar from `low` to `high`, a dot at `gain`.

    A gain of exactly 0 is a dot on the line. Ticks are so few that no label is left out, that of 0 least.
    """
    ticks = {"axis": {"tickCount": {"expr": "ceil(width / 70)"}}}
    across = {"y": {"value": 0}, "y2": {"value": "height"}}
    return [
        {
            "mark": {"type": "rule", "strokeDash": [3, 3]},
            "encoding": {"x": {"datum": 0, "type": "quantitative"}, **across},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {"x": quantity("low", title, **ticks), "x2": {"field": "high"}, **encoding},
        },
        {
            "mark": {"type": "point", "size": 90, "opacity": 1},
            "encoding": {"x": quantity("gain", title, **ticks), **encoding, "tooltip": hint(columns)},
        },
    ]


def hint(columns: Mapping[str, str]) -> list[Spec]:
    """What hovering shows: every column, numbers rounded."""
    text = {"class", "group", "method", "classifier", "statistic", "verdict", "data", "backbone"}
    text |= {"true", "predicted", "series", "what", "run"}
    return [
        {"field": field, "title": heading, **({} if field in text else {"format": ".4~g"})}
        for field, heading in columns.items()
    ]
