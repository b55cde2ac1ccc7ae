"""The charts of a run's results: which classes are hard, what is confused, and what the method changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from probe.report.charts import curves, outcomes
from probe.report.charts.base import (
    FEW,
    HEIGHT,
    Chart,
    Spec,
    hint,
    intervals,
    lines,
    quantity,
    series,
    shade,
    shape,
)
from probe.report.text import format

Result = Mapping[str, Any]
LINE = 19  # pixels of a class in a chart with names
LABELLED = 5  # of the worst classes that have their name beside the dot where there is no axis of names


def of_result(result: Result) -> Iterator[Chart]:
    """The charts that this result has the numbers for, in reading order: six at most."""
    for draw in CHARTS:
        chart = draw(result)
        if chart is not None and chart.rows:
            yield chart


def classes_by_ease(result: Result) -> list[str]:
    """Class names from the easiest to the hardest, by the ranking that made the groups."""
    return [name for group in result["test"]["groups"].values() for name in group["classes"]]


def accuracy_by_class(result: Result) -> Chart:
    """Every class's accuracy with its interval, all methods in one order (MR² poster, figure 1).

    One method is sorted by its own accuracy. Several are in the order of the ranking that made the groups:
    sorted by the accuracy of one of them, the others would look good at its end.
    """
    columns = {
        "rank": "rank",
        "class": "class",
        "group": "group",
        "accuracy": "accuracy %",
        "low": "95 % from",
        "high": "to",
        "method": "method",
    }
    blocks = {format.method(result): result["test"]}
    if result.get("reference"):
        blocks[result["versus"]["method"]] = result["reference"]
    known = {m: {r["name"]: r for r in b["by_class"] if r["n"]} for m, b in blocks.items()}
    own = next(iter(known.values()))
    order = [name for name in classes_by_ease(result) if all(name in by for by in known.values())]
    if len(known) == 1:
        order.sort(key=lambda name: -own[name]["accuracy"])
    rows = [
        (
            i + 1,
            name,
            own[name]["group"],
            *(round(100 * v, 2) for v in (by[name]["accuracy"], *by[name]["ci"])),
            method,
        )
        for method, by in known.items()
        for i, name in enumerate(order)
    ]
    sorted_by = "best first" if len(known) == 1 else "from the easiest to the hardest of the ranking"
    beside = f" Small diamonds: {list(known)[1]}." if len(known) > 1 else ""
    return Chart(
        "class-accuracy",
        "Accuracy of every class",
        f"Classes {sorted_by}; bars are 95 % intervals.{beside}",
        columns,
        rows,
        _class_chart(columns, list(known), order, list(result["test"]["groups"]), "accuracy", "accuracy %"),
    )


def _class_chart(
    columns: Mapping[str, str],
    methods: Sequence[str],
    order: Sequence[str],
    groups: Sequence[str],
    field: str,
    title: str,
    zero: bool = False,
) -> Spec:
    """A dot and an interval for each class: along an axis of names where they are few, else by rank."""
    few = len(order) <= FEW
    along, across = ("y", "x") if few else ("x", "y")
    axis = {"labelLimit": 190, "grid": True, "labelFontSize": 11}
    place = {**lines("class", order), "axis": axis} if few else quantity("rank", "rank", nice=False)
    if not few:
        place["title"] = "classes, easiest to hardest"
    tooltip = hint({key: name for key, name in columns.items() if not few or key != "rank"})
    colour = {"color": shade(groups)}
    number = {across: quantity(field, title)}
    own, other = "datum.place === 1", "datum.place === 2"
    transform = [{"calculate": "datum.method === first ? 1 : 2", "as": "place"}]
    layer: list[Spec] = [
        {
            "transform": [{"filter": own}],
            "mark": {"type": "rule", "strokeWidth": 2 if few else 1, "opacity": 0.45},
            "encoding": {across: quantity("low", title), f"{across}2": {"field": "high"}, **colour},
        },
        {
            "transform": [{"filter": other}],
            "mark": {"type": "point", "shape": "diamond", "size": 22, "filled": False},
            "encoding": {**number, "color": {"value": "#8a919d"}, "tooltip": tooltip},
        },
        {
            "transform": [{"filter": own}],
            "mark": {"type": "point", "size": 60 if few else 34, "opacity": 1},
            "encoding": {**number, **colour, "shape": shape(groups), "tooltip": tooltip},
        },
    ]
    if not few:
        layer.append({**_names_of_worst(own, field), "encoding": {**number, "text": {"field": "class"}}})
    if zero:
        line = {across: {"datum": 0, "type": "quantitative"}, along: {"value": 0}}
        line[f"{along}2"] = {"value": "height" if few else "width"}
        layer.insert(0, {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": line})
    spec: Spec = {
        "width": "container",
        "height": LINE * len(order) if few else HEIGHT + 60,
        "encoding": {along: place},
        "layer": layer,
    }
    if "method" in columns:
        spec |= {"params": [{"name": "first", "value": methods[0]}], "transform": transform}
    else:
        spec |= {"transform": [{"calculate": "1", "as": "place"}]}
    return spec


def _names_of_worst(own: str, field: str) -> Spec:
    """Names beside the lowest dots, so that they can be read without hovering."""
    lowest: Spec = {"window": [{"op": "row_number", "as": "low_rank"}], "sort": [{"field": field}]}
    return {
        "transform": [{"filter": own}, lowest, {"filter": f"datum.low_rank <= {LABELLED}"}],
        "mark": {"type": "text", "align": "right", "dx": -8, "fontSize": 11, "limit": 200},
    }


def group_gains(result: Result) -> Chart | None:
    """The gain over the reference, overall and by group, with its interval."""
    versus = result.get("versus")
    if not versus:
        return None
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


def class_gains(result: Result) -> Chart | None:
    """The gain of every class with its interval, in the order of the ranking that made the groups."""
    if not (result.get("versus") or {}).get("by_class"):
        return None
    gain = {row["name"]: row for row in result["versus"]["by_class"]}
    group_of = {row["name"]: row["group"] for row in result["test"]["by_class"]}
    columns = {
        "rank": "rank",
        "class": "class",
        "group": "group",
        "gain": "gain, points",
        "low": "95 % from",
        "high": "to",
        "p": "p (Holm)",
    }
    rows = [
        (
            i + 1,
            name,
            group_of[name],
            *(round(100 * v, 2) for v in (gain[name]["mean"], *gain[name]["ci_alone"])),
            float(f"{gain[name]['p_holm']:.3g}"),
        )
        for i, name in enumerate(classes_by_ease(result))
        if gain[name]["mean"] is not None
    ]
    clear = sum(row["clear"] for row in gain.values())
    groups = list(result["test"]["groups"])
    return Chart(
        "class-gains",
        f"Gain of every class over {result['versus']['method']}, easiest to hardest",
        "Bars are 95 % intervals of one class each. Clear after correction for the number of classes: "
        f"{format.plural(clear, 'class') if clear else 'none'}. In the order of their test accuracy, every "
        "method would look good at the end, so the order is that of the ranking.",
        columns,
        rows,
        _class_chart(
            columns, [], [row[1] for row in rows], groups, "gain", "gain, percentage points", zero=True
        ),
    )


CHARTS: tuple[Callable[[Result], Chart | None], ...] = (
    accuracy_by_class,
    class_gains,
    group_gains,
    outcomes.reliability,
    outcomes.confusion_heatmap,
    curves.training,
)
