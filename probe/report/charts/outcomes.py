"""What was predicted, as charts: which classes are confused, and whether confidence can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, hint, quantity

CELL = 17  # pixels of a class in the matrix
WRITTEN = 14  # classes, up to which the cells have their numbers written in them


def confusion_heatmap(result: Mapping[str, Any]) -> Chart | None:
    """True against predicted class, in shares of the true class; the diagonal is only hinted at."""
    block = result.get("diagnostics") or {}
    matrix, every = block.get("confusion_matrix"), block.get("classes") or []
    if not matrix or len(matrix["classes"]) < 2:
        return None
    names = [every[k] for k in matrix["classes"]]
    columns = {
        "true": "true class",
        "predicted": "predicted class",
        "share": "% of the true class",
        "count": "images",
        "kind": "kind",
    }
    rows = [
        (names[i], names[j], round(100 * count / matrix["n"][i], 1), count, "right" if i == j else "mistaken")
        for i, counts in enumerate(matrix["counts"])
        for j, count in enumerate(counts)
        if count and matrix["n"][i]
    ]
    if all(row[-1] == "right" for row in rows):
        return None
    part = (
        f"The {len(names)} of {len(every)} classes with the most mistakes. "
        if len(names) < len(every)
        else ""
    )
    return Chart(
        "confusion-matrix",
        "What is mistaken for what",
        f"{part}Rows are true classes, columns what they were mistaken for; classes that are confused are "
        "neighbours. Grey: right. First seed.",
        columns,
        rows,
        _matrix(names, columns),
    )


def _matrix(names: list[str], columns: Mapping[str, str]) -> dict[str, Any]:
    axis = {"labelLimit": 150, "labelFontSize": 10, "labelPadding": 4}
    domain = {"scale": {"domain": names, "padding": 0.04}, "type": "nominal"}
    place = {
        "x": {
            "field": "predicted",
            **domain,
            "title": "predicted",
            "axis": {**axis, "labelAngle": -90, "labelOverlap": True},
        },
        "y": {"field": "true", **domain, "title": "true", "axis": axis},
    }
    colour = {
        "field": "share",
        "type": "quantitative",
        "scale": {"range": "heatmap", "domainMin": 0},
        "legend": {"title": "% of the true class", "gradientLength": 140},
    }
    tooltip = hint({key: name for key, name in columns.items() if key != "kind"})
    layer: list[dict[str, Any]] = [
        {
            "transform": [{"filter": "datum.kind === 'right'"}],
            "mark": {"type": "rect", "color": "#8a919d", "opacity": 0.28},
            "encoding": {"tooltip": tooltip},
        },
        {
            "transform": [{"filter": "datum.kind === 'mistaken'"}],
            "mark": "rect",
            "encoding": {"color": colour, "tooltip": tooltip},
        },
    ]
    if len(names) <= WRITTEN:
        shown = {"field": "share", "type": "quantitative", "format": ".0f"}
        right = {
            "transform": [{"filter": "datum.kind === 'right'"}],
            "mark": {"type": "text", "fontSize": 10},
        }
        layer.append({**right, "encoding": {"text": shown}})
    height = max(180, (CELL if len(names) > WRITTEN else 2 * CELL) * len(names))
    return {"width": "container", "height": height, "encoding": place, "layer": layer}


def reliability(result: Mapping[str, Any]) -> Chart | None:
    """Accuracy against confidence: on the diagonal, a confidence of 80 % is right 80 % of the time."""
    bins = result["test"].get("reliability")
    if not bins:
        return None
    columns = {
        "confidence": "confidence %",
        "accuracy": "accuracy %",
        "low": "95 % from",
        "high": "to",
        "images": "images",
    }
    rows = [
        (*(round(100 * v, 2) for v in (b["confidence"], b["accuracy"], *b["ci"])), round(b["images"], 1))
        for b in bins
    ]
    whole = {"domain": [0, 100], "nice": False}
    x = {**quantity("confidence", "confidence %"), "scale": whole}
    y = {**quantity("accuracy", "accuracy %"), "scale": whole}
    size = {"field": "images", "type": "quantitative", "legend": None, "scale": {"range": [20, 340]}}
    ends = [{"x": 0, "y": 0}, {"x": 100, "y": 100}]
    diagonal = {
        "data": {"values": ends},
        "mark": {"type": "line", "strokeDash": [3, 3], "strokeWidth": 1, "color": "#8a919d"},
        "encoding": {"x": {**x, "field": "x"}, "y": {**y, "field": "y"}},
    }
    return Chart(
        "reliability",
        "Can its confidence be trusted?",
        f"{_trust(bins)} Dots below the dashed line are overconfident, above it underconfident; their size "
        "is the number of images, bars are 95 % intervals.",
        columns,
        rows,
        {
            "width": "container",
            "height": HEIGHT + 60,
            "layer": [
                diagonal,
                {
                    "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5},
                    "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
                },
                {
                    "mark": {"type": "point", "opacity": 1},
                    "encoding": {"x": x, "y": y, "size": size, "tooltip": hint(columns)},
                },
            ],
        },
    )


def _trust(bins: list[dict[str, Any]]) -> str:
    """Over all bins, is confidence above accuracy, below it, or about right?"""
    images = sum(b["images"] for b in bins)
    excess = sum(b["images"] * (b["confidence"] - b["accuracy"]) for b in bins) / images
    error = sum(b["images"] * abs(b["confidence"] - b["accuracy"]) for b in bins) / images
    kind = "Overconfident" if excess > 0.01 else "Underconfident" if excess < -0.01 else "About right"
    return f"{kind}: confidence and accuracy are {100 * error:.1f} points apart on average."
