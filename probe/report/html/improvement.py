"""The page of `probe improve`: the sentence, what was tried, the frontier, the test images, and what to
look at first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, hint, quantity, series
from probe.report.charts.results import class_gains, group_gains
from probe.report.html.markup import element, scrolling, table, text, together
from probe.report.html.page import assemble, figure, look_first_content, opening, section
from probe.report.html.sections import groups_table, remarks
from probe.report.text import format
from probe.report.text.format import gain_interval, gained, percent
from probe.report.text.improvement import as_result, judged_levers, searched, without_time
from probe.system.safe_text import visible

Report = Mapping[str, Any]


def render(report: Report, *, thumbnails: Mapping[str, str] | None = None, keep: Path | None = None) -> str:
    """One self-contained file, like the page of a run, with `thumbnails` of the plain probe's."""
    report, thumbnails = visible(report), visible(thumbnails or {})
    shown = list(charts(report))
    tested = list(test_charts(report))
    look = look_first_content(as_result(report), thumbnails)
    body = [
        opening([report["sentence"]], remarks(report["remarks"])),
        section("levers", "What was tried", _levers(report) + _shares(report) + "".join(map(figure, shown))),
        section("test", "On the test images", "".join(map(figure, tested)) + groups_table(as_result(report))),
        *([section("look", "Look at these first", look)] if look else []),
        section("recipe", "The chosen recipe", element("pre", text(report["chosen"]["yaml"]), tabindex="0")),
    ]
    title = f"What helps the hard classes of {format.data(report['data'])}"
    return assemble(title, text(searched(report)), body, [*shown, *tested], keep=keep)


def _levers(report: Report) -> str:
    heading = ["lever", "hard, points", "95 %", "all, points", "seconds", "kept", "chosen"]
    rows = []
    for row in judged_levers(report):
        gain = row["gain"]
        cells = ["", "", "", ""]
        if gain is not None:
            hard = gain["hard"]
            tone = format.TONE[format.verdict(hard)]
            cells = [
                element("span", gained(hard), cls=tone),
                gain_interval(hard["ci"]),
                gained(gain["overall"]),
                f"{row['seconds']:.0f}",
            ]
        rows.append(
            [text(row["name"]), *cells, "kept" if row["kept"] else text(row["why"]), text(row["chosen"])]
        )
    note = (
        "Each lever on top of those kept in earlier rounds, judged by cross-fitted predictions of training "
        "images: no test image had a part. The best of a round is kept, if its 80 % interval is above 0 and "
        "the gain over the plain probe is clear at 95 %. Intervals are for one lever each, not corrected for "
        "the number of levers."
    )
    levers = table(heading, rows, caption="Levers, in the order they were tried")
    late = without_time(report)
    below = element("p", together(f"{late[:1].upper()}{late[1:]}."), cls="note") if late else ""
    return element("p", text(note), cls="note") + scrolling(levers, "Levers") + below


def _shares(report: Report) -> str:
    """The part of each kind; nothing where nothing was kept, because the table above has it all."""
    if not any(share["kept"] for share in report["shares"].values()):
        return ""
    heading = ["kind", "hard, points", "all, points", "kept", "tried", "best, hard points"]
    rows = [
        [
            text(share["name"]),
            format.signed(share["hard"]) if share["kept"] else "",
            format.signed(share["overall"]) if share["kept"] else "",
            text(", ".join(share["kept"]) or "nothing"),
            str(share["tried"]),
            text(f"{format.signed(share['best']['hard'])} ({share['best']['name']})"),
        ]
        for share in report["shares"].values()
    ]
    caption = "What each kind of lever gave when it was added, on held-out training images"
    return scrolling(table(heading, rows, caption=caption), "Kinds of levers")


def charts(report: Report) -> Iterator[Chart]:
    """The charts of the search."""
    yield frontier(report)


def test_charts(report: Report) -> Iterator[Chart]:
    """The charts of the test images; none where nothing was kept."""
    if report["gain"] is not None:
        result = as_result(report)
        yield from filter(None, (group_gains(result), class_gains(result)))


def frontier(report: Report) -> Chart:
    """Overall accuracy against accuracy on hard classes, a dot for every lever, a line along the frontier."""
    columns = {"lever": "lever", "overall": "all images %", "hard": "hard classes %", "what": "what"}
    points = [("plain probe", report["judged"]["plain"], "kept")]
    points += [
        (r["name"], r["accuracy"], "kept" if r["kept"] else "not kept")
        for r in report["levers"]
        if r["accuracy"]
    ]
    rows = [(name, _rounded(a["overall"]), _rounded(a["hard"]), what) for name, a, what in points]
    best = -1.0
    for name, overall, hard, _ in sorted(rows, key=lambda row: (-row[1], -row[2])):
        if hard > best:
            best = hard
            rows.append((name, overall, hard, "frontier"))
    axes = {
        "x": quantity("overall", "all images, accuracy %"),
        "y": quantity("hard", "hard classes, accuracy %"),
    }
    line = "datum.what === 'frontier'"
    return Chart(
        "frontier",
        "Hard classes against all images",
        "Every lever on top of what was kept before it, on held-out training images. Up is better for hard "
        "classes, right for all; the line joins what no other lever beats in both.",
        columns,
        rows,
        {
            "width": "container",
            "height": HEIGHT + 60,
            "encoding": axes,
            "layer": [
                {
                    "transform": [{"filter": line}],
                    "mark": {"type": "line", "strokeDash": [4, 3]},
                    "encoding": {"order": {"field": "overall", "type": "quantitative"}},
                },
                {
                    "transform": [{"filter": f"!({line})"}],
                    "mark": {"type": "point", "size": 90, "opacity": 1},
                    "encoding": {"color": series("what", ["kept", "not kept"]), "tooltip": hint(columns)},
                },
                {
                    "transform": [{"filter": f"!({line})"}],
                    "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 11, "limit": 180},
                    "encoding": {"text": {"field": "lever", "type": "nominal"}},
                },
            ],
        },
    )


def _rounded(fraction: float) -> float:
    return float(percent(fraction, 3))
