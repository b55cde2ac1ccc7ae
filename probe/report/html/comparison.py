"""The page of a comparison: the papers' table, gains with intervals, relative improvements, rankings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, hint, intervals, lines, quantity, series, shade
from probe.report.html.markup import element, table, text
from probe.report.html.page import assemble, figure, section
from probe.report.html.sections import remarks
from probe.report.text import exports, format, published
from probe.report.text.format import gain_interval, gained, percent, plural, signed
from probe.system.safe_text import visible

Comparison = Mapping[str, Any]


def render(comparison: Comparison, *, keep: Path | None = None) -> str:
    """One self-contained file, like the page of a run."""
    comparison = visible(comparison)
    charts = list(of_comparison(comparison))
    rows = comparison["rows"]
    names = {key: list(dict.fromkeys(row[key] for row in rows)) for key in ("backbone", "data", "method")}
    body = [section("table", "Accuracy", _tables(comparison))]
    if comparison.get("tables"):
        body.insert(0, section("published", "Beside the published numbers", _published(comparison)))
    if charts:
        body.append(section("gains", f"Gains over {reference(comparison)}", "".join(map(figure, charts))))
        body.append(section("ranking", "Ranking by hard-class gain", _rankings(comparison)))
    if comparison["failed"]:
        body.append(section("failed", "Failed runs", _failures(comparison)))
    on = ", ".join(map(format.data, names["data"]))
    title = f"{', '.join(names['method'])} on {on}" if rows else "Comparison"
    said = [plural(len(rows), "run"), *(plural(len(v), k) for k, v in names.items() if k != "data")]
    if comparison["remarks"]:
        body.insert(0, element("section", remarks(comparison["remarks"]), aria_label="Remarks"))
    return assemble(title, text(", ".join(said)), body, charts, keep=keep)


def reference(comparison: Comparison) -> str:
    """What the gains are measured against."""
    return format.against(comparison["reference"], comparison.get("how"))


def _tables(comparison: Comparison) -> str:
    names = exports.columns(comparison)
    parts = [element("p", text(exports.legend(comparison)), cls="note")]
    for data, rows in exports.by_data(comparison):
        heading = ["backbone", "method", *(text(n.capitalize()) for n in names), "seeds"]
        body = [
            [
                text(row["backbone"]),
                text(row["method"]),
                *(_cell(row["statistics"].get(n)) for n in names),
                str(row["seeds"]),
            ]
            for row in rows
        ]
        parts.append(
            element("h3", text(format.data(data)), title=data)
            + element(
                "div",
                table(heading, body, caption=f"Accuracy % on {format.data(data)}", numeric=2),
                cls="scroll",
                tabindex="0",
            )
        )
    for scheme, other in exports.by_count(comparison):
        parts += [element("h3", text(f"By training images, {scheme}")), _tables(other)]
    return "".join(parts)


def _published(comparison: Comparison) -> str:
    """The tables of papers: our numbers, their intervals, the published ones and the difference."""
    parts = []
    for printed in comparison["tables"]:
        heading = ["row", "", *(text(column.capitalize()) for column in printed["columns"])]
        body = [
            [text(row["title"]), text(name or "ours"), *map(text, cells)]
            for row in printed["rows"]
            for name, cells in published.lines(row, printed["columns"])
        ]
        parts.append(element("h3", text(published.heading(printed))))
        drawn = table(heading, body, caption=f"Accuracy % of {printed['name']}", numeric=2)
        parts.append(element("div", drawn, cls="scroll", tabindex="0"))
        parts += [element("p", text(line), cls="note") for line in published.notes(printed)]
    return "".join(parts)


def _cell(statistic: Mapping[str, Any] | None) -> str:
    if statistic is None or statistic["accuracy"] is None:
        return format.UNKNOWN
    gain = statistic["gain"]
    shown = percent(statistic["accuracy"])
    if gain is None:
        return shown
    said = format.verdict(gain)
    hover = f"Holm-corrected p = {gain['p_holm']:.3g}: {said}"
    star = "*" if gain["clear"] else ""
    bracket = element("span", f"({gained(gain)}{star})", cls=format.TONE[said], title=hover)
    return f"{shown} {bracket}{element('small', gain_interval(gain['ci']), cls='interval')}"


def _rankings(comparison: Comparison) -> str:
    parts = []
    for key, ranked in comparison["ranking"].items():
        body = [
            [
                text(row["name"]),
                signed(row["gain"], 2),
                str(row["runs"]),
                str(row["clearly_better"]),
                str(row["clearly_worse"]),
            ]
            for row in ranked
        ]
        heading = [f"{key}", "mean gain, points", "runs", "clearly better", "clearly worse"]
        caption = f"{key.capitalize()}s by their mean gain on the hardest group"
        parts.append(element("div", table(heading, body, caption=caption), cls="scroll", tabindex="0"))
    return "".join(parts)


def _failures(comparison: Comparison) -> str:
    body = [[text(f[k]) for k in ("data", "backbone", "method", "error")] for f in comparison["failed"]]
    return table(["data", "backbone", "method", "error"], body, caption="Runs without a result", numeric=9)


def of_comparison(comparison: Comparison) -> Iterator[Chart]:
    """Charts of the gains; none if only the reference was run."""
    compared = [row for row in comparison["rows"] if any(s["gain"] for s in row["statistics"].values())]
    if compared:
        yield hard_gains(comparison, compared)
        yield relative_improvements(compared)


def hard_gains(comparison: Comparison, rows: list[Mapping[str, Any]]) -> Chart:
    """The gain of every run on its hardest group, with the interval."""
    columns = {
        "run": "run",
        "method": "method",
        "gain": "gain, points",
        "low": "95 % from",
        "high": "to",
        "p": "p (Holm)",
        "verdict": "verdict",
    }
    values = []
    for row in rows:
        gain = list(row["statistics"].values())[-1]["gain"]
        if gain is not None:
            label = f"{row['backbone']}, {format.data(row['data'])}, {row['method']}"
            numbers = (round(100 * v, 3) for v in (gain["mean"], *gain["ci"]))
            values.append(
                (label, row["method"], *numbers, float(f"{gain['p_holm']:.3g}"), format.verdict(gain))
            )
    values.sort(key=lambda v: -v[2])
    colour = series("method", list(dict.fromkeys(row["method"] for row in rows)))
    return Chart(
        "hard-gains",
        f"Gain over {reference(comparison)} on the hardest group",
        "Best first. Bars (95 % intervals) and verdicts are corrected for the size of the table (Holm).",
        columns,
        values,
        {
            "width": "container",
            "height": 30 * len(values),
            "encoding": {"y": {**lines("run", [v[0] for v in values]), "axis": {"labelLimit": 320}}},
            "layer": intervals("gain on the hardest group, points", columns, color=colour),
        },
    )


def relative_improvements(rows: list[Mapping[str, Any]]) -> Chart:
    """The gain over the reference's own accuracy, data set by data set (MR² poster, figure 2)."""
    columns = {
        "data": "data",
        "backbone": "backbone",
        "method": "method",
        "group": "group",
        "relative": "relative improvement %",
    }
    values = [
        (format.data(row["data"]), row["backbone"], row["method"], name, round(100 * s["relative"], 3))
        for row in rows
        for name, s in row["statistics"].items()
        if name != "overall" and s["relative"] is not None
    ]
    names = list(dict.fromkeys(v[3] for v in values))
    width = min(900, 130 * len({v[0] for v in values}))
    return Chart(
        "relative-improvement",
        "Relative improvement by data set",
        "Gain divided by the accuracy of the reference, averaged over backbones; one panel per method.",
        columns,
        values,
        {
            "columns": max(1, 900 // (width + 80)),
            "facet": {"field": "method", "type": "nominal", "title": None},
            "spec": {
                "width": width,
                "height": HEIGHT - 80,
                "mark": {"type": "bar", "cornerRadiusEnd": 2},
                "encoding": {
                    "x": {"field": "data", "type": "nominal", "title": None, "axis": {"labelAngle": 0}},
                    "xOffset": {"field": "group", "type": "nominal", "scale": {"domain": names}},
                    "y": {**quantity("relative", "relative improvement %", zero=True), "aggregate": "mean"},
                    "color": shade(names),
                    "tooltip": hint({"data": "data", "group": "group", "method": "method"}),
                },
            },
        },
    )
