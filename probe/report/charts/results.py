"""The charts of a run's results: which classes are hard, and what the method changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, framed, intervals, lines, quantity, series, shade
from probe.report.text import format

Result = Mapping[str, Any]
MOST_BARS = 120  # classes; more are shown as dots


def of_result(result: Result) -> Iterator[Chart]:
    """The charts that this result has the numbers for, in reading order."""
    yield accuracy_curve(result)
    if result.get("versus"):
        yield group_gains(result)
        if result["versus"].get("by_class"):
            yield class_gains(result)


def classes_by_ease(result: Result) -> list[str]:
    """Class names from the easiest to the hardest, by the ranking that made the groups."""
    return [name for group in result["test"]["groups"].values() for name in group["classes"]]


def accuracy_curve(result: Result) -> Chart:
    """Every class's accuracy, all methods in one order of the classes (MR² poster, figure 1).

    One method is sorted by its own accuracy. Several are in the order of the ranking that made the groups:
    sorted by the accuracy of one of them, the others would look good at its end.
    """
    columns = {"rank": "rank", "class": "class", "accuracy": "accuracy %", "method": "method"}
    blocks = {format.method(result): result["test"]}
    if result.get("reference"):
        blocks[result["versus"]["method"]] = result["reference"]
    known = {m: {r["name"]: r["accuracy"] for r in b["by_class"] if r["n"]} for m, b in blocks.items()}
    order = [name for name in classes_by_ease(result) if all(name in by for by in known.values())]
    if len(known) == 1:
        (own,) = known.values()
        order.sort(key=lambda name: -own[name])
    rows = [
        (i + 1, name, round(100 * by[name], 2), method)
        for method, by in known.items()
        for i, name in enumerate(order)
    ]
    sorted_by = "best class first" if len(known) == 1 else "from the easiest to the hardest of the ranking"
    point = {"size": 22, "filled": True} if len(rows) <= 300 else False
    return Chart(
        "class-accuracy",
        "Accuracy of every class, sorted",
        f"Classes {sorted_by}. The flatter the line, the more even the classes.",
        columns,
        rows,
        framed(
            {"type": "line", "point": point},
            columns,
            height=HEIGHT + 40,
            x=quantity("rank", f"classes, {sorted_by}", nice=False, axis={"tickMinStep": 1, "format": "d"}),
            y=quantity("accuracy", "accuracy %"),
            color=series("method", list(blocks)),
        ),
    )


def group_gains(result: Result) -> Chart:
    """The gain over the reference, overall and by group, with its interval."""
    versus = result["versus"]
    columns = {
        "statistic": "",
        "gain": "gain, points",
        "low": "95 % from",
        "high": "to",
        "verdict": "verdict",
    }
    rows = [
        (name.replace("_", " "), *(round(100 * v, 3) for v in (g["mean"], *g["ci"])), format.verdict(g))
        for name, g in versus["gain"].items()
        if g is not None
    ]
    order = [row[0] for row in rows]
    call = f"datum.verdict === '{format.NO_CHANGE}' ? datum.verdict : 'clear'"
    colour = {**series("call", ["clear", format.NO_CHANGE]), "legend": None}
    return Chart(
        "group-gains",
        f"Gain over {format.against(versus['method'], versus.get('how'))}, in percentage points",
        "Dots are gains, bars 95 % intervals over images and seeds, corrected for their number (Holm). "
        "A bar that contains 0 is no clear change.",
        columns,
        rows,
        {
            "width": "container",
            "height": 34 * len(rows),
            "transform": [{"calculate": call, "as": "call"}],
            "encoding": {"y": {**lines("statistic", order), "axis": {"labelFontSize": 13}}},
            "layer": intervals("gain, percentage points", columns, color=colour),
        },
    )


def class_gains(result: Result) -> Chart:
    """The gain of every class, in the order of the ranking that made the groups."""
    gain = {row["name"]: row for row in result["versus"]["by_class"]}
    group_of = {row["name"]: row["group"] for row in result["test"]["by_class"]}
    columns = {
        "rank": "rank",
        "class": "class",
        "group": "group",
        "gain": "gain, points",
        "p": "p (Holm)",
    }
    rows = [
        (
            i + 1,
            name,
            group_of[name],
            round(100 * gain[name]["mean"], 2),
            float(f"{gain[name]['p_holm']:.3g}"),
        )
        for i, name in enumerate(classes_by_ease(result))
        if gain[name]["mean"] is not None
    ]
    bars = len(rows) <= MOST_BARS
    return Chart(
        "class-gains",
        "Gain of every class, easiest to hardest",
        "Classes are in the order of the ranking that made the groups. In the order of their test accuracy, "
        "every method would look good on the right.",
        columns,
        rows,
        framed(
            {"type": "bar", "width": {"band": 0.8}} if bars else {"type": "circle"},
            columns,
            x={"field": "rank", "type": "ordinal", "axis": None}
            if bars
            else quantity("rank", "classes, easiest to hardest", nice=False),
            y=quantity("gain", "gain, percentage points", zero=True),
            color=shade(list(result["test"]["groups"])),
        ),
    )
