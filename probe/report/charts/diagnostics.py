"""The diagnostics as charts: one function a panel, fed by the `diagnostics` and `margins` of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from probe.report.charts.base import HEIGHT, Chart, hint, lines, quantity, series, shade
from probe.report.charts.shapes import CLASS, View, against_accuracy, along_classes, boxes, distribution

Result = Mapping[str, Any]
Panel = Callable[[View], Chart | None]
HISTORY = 8  # classes whose margins are followed over training


def of_result(result: Result) -> Iterator[Chart]:
    """Every panel that this result has the numbers for, in reading order."""
    view = View(result)
    for panel in PANELS:
        chart = panel(view)
        if chart is not None and chart.rows:
            yield chart


def _of_methods(view: View, key: str) -> dict[str, Any]:
    return {name: block[key] for name, block in view.methods.items() if block.get(key)}


def _along(key: str, what: str, **about: str) -> Panel:
    """A number a class of every method, along the classes."""
    return lambda view: along_classes(view, _of_methods(view, key), what, **about)


def _against(key: str, what: str, **about: str) -> Panel:
    """A number a class of the features, against accuracy."""
    return lambda view: against_accuracy(view, view.features.get(key), what, **about)


def _boxes(key: str, split: str, what: str, **about: str) -> Panel:
    """Quantiles of the features, a box a group."""

    def panel(view: View) -> Chart | None:
        table = view.features.get(key)
        return boxes({split: table}, what, view.groups, **about) if table else None

    return panel


attraction = _along(
    "g_n",
    "G_n, images' worth of probability",
    name="prediction-bias",
    title="Prediction bias G_n",
    note="Probability that images of other classes give to a class, summed over the test split. Where it "
    "rises to the right, hard classes attract what does not belong to them.",
)
own_share = _along(
    "g_p",
    "G_p, images' worth of probability",
    name="own-probability",
    title="Own probability G_p",
    note="Probability that a class's own images give to it, summed: at most its number of test images. "
    "G_n and G_p of all classes together are the number of test images.",
)
weight_norms = _along(
    "weight_norm",
    "norm of the class's weights",
    name="weight-norms",
    title="Classifier weight norms",
    note="On long-tailed data frequent classes get long weights; on balanced data they rarely matter.",
)
class_mean_angle = _along(
    "class_mean_angle",
    "CMA, mean cosine to all classes",
    name="class-mean-angle",
    title="Class mean angle",
    note="The mean cosine of a class's weights with every class's. Smaller means further from the "
    "others; 0 for all classes is an equiangular frame.",
)
spread = _against(
    "spread2",
    "feature spread",
    name="feature-spread",
    title="Feature spread against accuracy",
    note="Mean squared distance of training features to their class mean; MR² sets margins by it.",
)
variance_norm = _against(
    "variance_norm",
    "norm of the feature variances",
    name="feature-variance",
    title="Feature variance norm against accuracy",
    note="Length of the vector of per-dimension variances: diverse classes tend to be the hard ones.",
)
separability = _against(
    "separability",
    "Fisher separability",
    name="separability",
    title="Fisher separability against accuracy",
    note="Distance between class means over the spread within, on the best line for each pair, averaged.",
)
angles = _boxes(
    "angle_quantiles",
    "test",
    "degrees to the class centre",
    name="angles",
    title="Angle of test images to their class centre",
    note="Wide angles mean that a class's images point in many directions.",
)
distances = _boxes(
    "largest_distance_quantiles",
    "train",
    "largest distance within the class",
    name="largest-distances",
    title="Largest distances within a class",
    note="For each training image, how far the farthest image of its class is, over the largest norm.",
)


def bias_on_groups(view: View) -> Chart | None:
    """G_n of the first method on the images of each group alone."""
    tables = next(iter(_of_methods(view, "g_n_on").values()), None)
    if not tables:
        return None
    columns = {**CLASS, "value": "G_n", "subset": "images of", "place": "group number"}
    rows = [
        (*row, subset, place + 1)
        for place, (subset, values) in enumerate(tables.items())
        for row in view.by_class(values)
    ]
    return Chart(
        "prediction-bias-groups",
        "Prediction bias on the images of each group",
        "The same, on the images of one group at a time: whose images are drawn to which classes?",
        columns,
        rows,
        {
            "columns": len(tables),
            "facet": {
                "field": "subset",
                "type": "nominal",
                "sort": {"field": "place", "op": "min"},
                "title": None,
            },
            "spec": {
                "width": 290,
                "height": 190,
                "mark": "circle",
                "encoding": {
                    "x": quantity("rank", "easiest to hardest", nice=False),
                    "y": quantity("value", "G_n", zero=True),
                    "color": shade(view.groups),
                    "tooltip": hint(columns),
                },
            },
        },
    )


def blame(view: View) -> Chart | None:
    """Mean class accuracy of each group under the linear head, k-NN and a fixed equiangular classifier."""
    tables = view.features.get("accuracy_by")
    if not tables:
        return None
    titles = {"linear": "linear head", "knn": "k-NN", "etf": "fixed ETF"}
    columns = {"group": "group", "classifier": "classifier", "accuracy": "accuracy %"}
    rows = []
    for name, values in tables.items():
        by_group: dict[str, list[float]] = {group: [] for group in view.groups}
        for _, k, row in view.order:
            if values[k] is not None:
                by_group[row["group"]].append(values[k])
        rows += [(g, titles[name], round(100 * sum(v) / len(v), 2)) for g, v in by_group.items() if v]
    return Chart(
        "representation-or-classifier",
        "Representation or classifier?",
        "Mean class accuracy under the trained head, a vote of 20 neighbours and a fixed equiangular "
        "classifier behind a least-squares map. If all fall alike on hard classes, blame the features.",
        columns,
        rows,
        {
            "width": "container",
            "height": 20 * len(rows),
            "mark": {"type": "bar", "cornerRadiusEnd": 2},
            "encoding": {
                "y": lines("group", view.groups),
                "yOffset": series("classifier", list(titles.values())),
                "x": quantity("accuracy", "accuracy %", zero=True),
                "color": series("classifier", list(titles.values())),
                "tooltip": hint(columns),
            },
        },
    )


def logit_margins(view: View) -> Chart | None:
    tables = _of_methods(view, "logit_margin_quantiles")
    if not tables:
        return None
    return boxes(
        tables,
        "logit margin",
        view.groups,
        name="logit-margins",
        title="Logit margins",
        note="The true class's logit minus the best other one. Box: the middle half; rule: the middle 90 %.",
    )


def logit_margin_cdf(view: View) -> Chart | None:
    tables = _of_methods(view, "logit_margin_quantiles")
    if not tables:
        return None
    return distribution(
        tables,
        "logit margin",
        view.groups,
        name="logit-margin-cdf",
        title="Logit margins, cumulative",
        note="The height at 0 is the error rate of the group. A curve further right is safer.",
    )


def margins(view: View) -> Chart | None:
    rows = (view.result.get("margins") or {}).get("by_class")
    if not rows:
        return None
    gamma = {row["name"]: row["gamma"] for row in rows}
    names = list(view.block.get("classes") or view.rows)
    return against_accuracy(
        view,
        [float(f"{gamma[name]:.5g}") for name in names],
        "margin γ",
        name="margins",
        title="MR² margins against accuracy",
        note="Larger margins go to classes with larger feature norms and spread; the mean margin is fixed.",
    )


def margin_history(view: View) -> Chart | None:
    """Margins over training, of the classes whose final margins are the smallest and the largest."""
    history = (view.result.get("margins") or {}).get("history")
    if not history:
        return None
    final = {row["name"]: row["gamma"] for row in view.result["margins"]["by_class"]}
    ordered = sorted(final, key=lambda name: final[name])
    followed = list(dict.fromkeys(ordered[: HISTORY // 2] + ordered[-HISTORY // 2 :]))
    where = {name: k for k, name in enumerate(final)}
    columns = {"step": "step", "class": "class", "value": "margin γ"}
    rows = [(point["step"], name, point["gamma"][where[name]]) for point in history for name in followed]
    return Chart(
        "margin-history",
        "MR² margins over training",
        "The classes with the smallest and the largest final margins; a class has margin 1 until it is seen.",
        columns,
        rows,
        {
            "width": "container",
            "height": HEIGHT,
            "mark": "line",
            "encoding": {
                "x": quantity("step", "training step", nice=False),
                "y": quantity("value", "margin γ"),
                "color": series("class", followed),
                "tooltip": hint(columns),
            },
        },
    )


def complexity(view: View) -> Chart | None:
    tables = view.block.get("complexity")
    if not tables:
        return None
    return along_classes(
        view,
        {"with its margin": tables["with_margins"], "one margin for all": tables["equal_margins"]},
        "term of the bound",
        name="complexity",
        title="Theorem 1: what each class adds to the bound",
        note="Second moment of the class's features over its squared margin. MR² makes the sum smallest.",
    )


def feature_map(view: View) -> Chart | None:
    points = view.features.get("map")
    if not points:
        return None
    names = view.block["classes"]
    columns = {"x": "x", "y": "y", "class": "class", "right": "classified"}
    rows = [(p["x"], p["y"], names[p["class"]], "right" if p["right"] else "wrong") for p in points]
    return Chart(
        "t-sne",
        "Map of the hardest classes, their rivals and the easiest",
        "t-SNE of test features: neighbourhoods mean something, distances and sizes of clusters do not.",
        columns,
        rows,
        {
            "width": "container",
            "height": 380,
            "mark": {"type": "point", "filled": True, "size": 40},
            "encoding": {
                "x": {**quantity("x", ""), "axis": None},
                "y": {**quantity("y", ""), "axis": None},
                "color": {
                    "field": "class",
                    "type": "nominal",
                    "scale": {"scheme": "tableau10"},
                    "legend": {"orient": "bottom", "columns": {"expr": "width < 500 ? 2 : 4"}},
                },
                "shape": {
                    "field": "right",
                    "type": "nominal",
                    "scale": {"domain": ["right", "wrong"], "range": ["circle", "cross"]},
                },
                "tooltip": hint({"class": "class", "right": "classified"}),
            },
        },
    )


PANELS = (
    blame,
    attraction,
    bias_on_groups,
    own_share,
    logit_margins,
    logit_margin_cdf,
    spread,
    variance_norm,
    separability,
    angles,
    distances,
    margins,
    margin_history,
    complexity,
    weight_norms,
    class_mean_angle,
    feature_map,
)
