"""The page of a comparison: which backbone, the papers' table, then the gains of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, hint, intervals, lines, quantity, series, shade
from probe.report.html.markup import element, name, scrolling, table, text
from probe.report.html.page import assemble, figure, opening, section
from probe.report.html.sections import remarks
from probe.report.text import exports, format, published
from probe.report.text.comparison_conclusion import conclusion
from probe.report.text.format import gain_interval, gained, percent, plural, signed
from probe.system.safe_text import visible

Comparison = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A row of SECTIONS: anchor, heading and content, which is empty where there is none."""

    name: str
    heading: Callable[[Comparison], str]
    content: Callable[[Comparison], str]


def render(comparison: Comparison, *, keep: Path | None = None) -> str:
    """One self-contained file, like the page of a run."""
    comparison = visible(comparison)
    rows = comparison["rows"]
    names = {key: list(dict.fromkeys(row[key] for row in rows)) for key in ("backbone", "data", "method")}
    body = [opening(conclusion(comparison), remarks(comparison["remarks"]))]
    found = ((s, s.content(comparison)) for s in SECTIONS)
    body += [section(s.name, s.heading(comparison), html) for s, html in found if html]
    on = ", ".join(map(format.data, names["data"]))
    compared = names["backbone"] if len(names["backbone"]) > 1 else names["method"]
    title = f"{', '.join(compared)} on {on}" if rows else "Comparison"
    said = [plural(len(rows), "run"), *(plural(len(v), k) for k, v in names.items() if k != "data")]
    return assemble(title, text(", ".join(said)), body, list(of_comparison(comparison)), keep=keep)


def _which(comparison: Comparison) -> str:
    """Accuracies of the backbones, and every pair of them on the same test images."""
    blocks = comparison.get("backbones") or []
    if not blocks:
        return ""
    body = [
        [
            name(f"{pair['first']} over {pair['second']}"),
            text(format.data(block["data"])),
            element("span", gained(pair["gain"]), cls=format.TONE[format.verdict(pair["gain"])]),
            gain_interval(pair["gain"]["ci"]),
            format.verdict(pair["gain"]),
        ]
        for block in blocks
        for pair in block["pairs"]
    ]
    caption = (
        "Differences in overall accuracy on the same test images; intervals and verdicts corrected (Holm)"
    )
    heading = ["backbones", "data", "points", "95 % interval", "verdict"]
    pairs = scrolling(table(heading, body, caption=caption, numeric=2), "Pairs of backbones")
    methods = format.listed(list(dict.fromkeys(block["method"] for block in blocks)))
    said = [f"All with {methods}.", *(f"{d}: {s}." for d, s in shared_groups(comparison))]
    return figure(backbones(blocks)) + element("p", text(" ".join(said)), cls="note") + pairs


def shared_groups(comparison: Comparison) -> list[tuple[str, str]]:
    """What the groups of each data set are, where all of its runs have the same."""
    found = comparison.get("shared_groups") or {}
    return [(format.data(data), said) for data, said in found.items()]


def _gains(comparison: Comparison) -> str:
    drawn = "".join(figure(chart) for chart in gain_charts(comparison))
    return drawn + _rankings(comparison) if drawn else ""


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
            + scrolling(
                table(heading, body, caption=f"Accuracy % on {format.data(data)}", numeric=2),
                f"Accuracies on {format.data(data)}",
            )
        )
    for scheme, other in exports.by_count(comparison):
        parts += [element("h3", text(f"By training images, {scheme}")), _tables(other)]
    return "".join(parts)


def _published(comparison: Comparison) -> str:
    """The tables of papers: our numbers, their intervals, the published ones and the difference."""
    parts = []
    for printed in comparison.get("tables") or ():
        heading = ["row", "", *(text(column.capitalize()) for column in printed["columns"])]
        body = [
            [text(row["title"]), text(name or "ours"), *map(text, cells)]
            for row in printed["rows"]
            for name, cells in published.lines(row, printed["columns"])
        ]
        parts.append(element("h3", text(published.heading(printed))))
        drawn = table(heading, body, caption=f"Accuracy % of {printed['name']}", numeric=2)
        parts.append(scrolling(drawn, f"Published numbers of {printed['name']}"))
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
    """Methods by their mean gain; backbones are ranked by their accuracy, above."""
    body = [
        [
            text(row["name"]),
            signed(row["gain"], 2),
            str(row["runs"]),
            str(row["clearly_better"]),
            str(row["clearly_worse"]),
        ]
        for row in comparison["ranking"]["method"]
    ]
    heading = ["method", "mean gain, points", "runs", "clearly better", "clearly worse"]
    caption = "Methods by their mean gain on the hardest group"
    return scrolling(table(heading, body, caption=caption), "Methods by gain")


def _failures(comparison: Comparison) -> str:
    if not comparison["failed"]:
        return ""
    body = [[text(f[k]) for k in ("data", "backbone", "method", "error")] for f in comparison["failed"]]
    drawn = table(["data", "backbone", "method", "error"], body, caption="Runs without a result", numeric=9)
    return scrolling(drawn, "Failed runs")


# From top to bottom, below the headline; a further section is a further row.
SECTIONS = (
    Section("which", lambda c: "Which backbone?", _which),
    Section("published", lambda c: "Beside the published numbers", lambda c: _published(c)),
    Section("table", lambda c: "Accuracy", lambda c: _tables(c)),
    Section("gains", lambda c: f"Gains over {reference(c)}", _gains),
    Section("failed", lambda c: "Failed runs", _failures),
)


def of_comparison(comparison: Comparison) -> Iterator[Chart]:
    """The charts of the page, in reading order."""
    if comparison.get("backbones"):
        yield backbones(comparison["backbones"])
    yield from gain_charts(comparison)


def gain_charts(comparison: Comparison) -> Iterator[Chart]:
    """Charts of the gains; none if only the reference was run."""
    compared = [row for row in comparison["rows"] if any(s["gain"] for s in row["statistics"].values())]
    if compared:
        yield hard_gains(comparison, compared)
        if len({row["data"] for row in compared}) > 1:  # with one, the chart above says it, with intervals
            yield relative_improvements(compared)


def backbones(blocks: Sequence[Mapping[str, Any]]) -> Chart:
    """The accuracy of each backbone on each data set, overall and on the hardest group, with intervals."""
    columns = {
        "backbone": "backbone",
        "data": "data",
        "run": "label",
        "statistic": "of",
        "accuracy": "accuracy %",
        "low": "95 % from",
        "high": "to",
    }
    several = len(blocks) > 1
    values = []
    for block in blocks:
        on = format.data(block["data"])
        for row in block["backbones"]:
            label = f"{row['name']}, {on}" if several else row["name"]
            for key, statistic in row.items():
                if key not in ("name", "run") and statistic["accuracy"] is not None:
                    numbers = (round(100 * v, 3) for v in (statistic["accuracy"], *statistic["ci"]))
                    values.append((row["name"], on, label, key, *numbers))
    order = list(dict.fromkeys(v[2] for v in values))
    kinds = list(dict.fromkeys(v[3] for v in values))
    title, encoding = (
        "accuracy %",
        {"color": series("statistic", kinds), "yOffset": series("statistic", kinds)},
    )
    return Chart(
        "backbones",
        "Accuracy of every backbone",
        "Best first, overall and on the hardest group; bars are 95 % intervals. Whether two backbones differ "
        "is tested image by image, in the table below, not by whether bars overlap.",
        columns,
        values,
        {
            "width": "container",
            "height": 22 * len(kinds) * len(order),
            "encoding": {"y": {**lines("run", order), "axis": {"labelLimit": 240, "labelFontSize": 12}}},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
                    "encoding": {"x": quantity("low", title), "x2": {"field": "high"}, **encoding},
                },
                {
                    "mark": {"type": "point", "size": 90, "opacity": 1},
                    "encoding": {
                        "x": quantity("accuracy", title),
                        **encoding,
                        "tooltip": hint({k: v for k, v in columns.items() if k != "run"}),
                    },
                },
            ],
        },
    )


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
    for row in sorted(rows, key=format.place_in_ranking(comparison)):
        gain = list(row["statistics"].values())[-1]["gain"]
        if gain is not None:
            label = f"{row['backbone']}, {format.data(row['data'])}, {row['method']}"
            numbers = (round(100 * v, 3) for v in (gain["mean"], *gain["ci"]))
            values.append(
                (label, row["method"], *numbers, float(f"{gain['p_holm']:.3g}"), format.verdict(gain))
            )
    colour = series("method", list(dict.fromkeys(row["method"] for row in rows)))
    return Chart(
        "hard-gains",
        f"Gain over {reference(comparison)} on the hardest group",
        "Best backbone first. Bars (95 % intervals) and verdicts are corrected for the table's size (Holm).",
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
