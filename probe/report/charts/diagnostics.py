"""The diagnostics as charts: one function per panel, from the `diagnostics` and `margins` of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.report.charts.base import Chart, framed, hint, lines, quantity, series, shade
from probe.report.charts.curves import (
    CLASSIFIERS,
    class_curves,
    distances_of_chosen,
    margins_of_chosen,
    sensitivity,
)
from probe.report.charts.margins import (
    Panel,
    complexity,
    logit_margin_cdf,
    logit_margins,
    margin_history,
    margins,
)
from probe.report.charts.shapes import CLASS, View, against_accuracy, along_classes, boxes
from probe.report.charts.training_set import group_map, training_bias, weights_before_and_after

Result = Mapping[str, Any]


def of_result(result: Result) -> Iterator[Chart]:
    """Every panel that this result has the numbers for, in reading order."""
    view = View(result)
    for panel in PANELS:
        chart = panel(view)
        if chart is not None and chart.rows:
            yield chart


def _along(key: str, what: str, **about: str) -> Panel:
    """One number per class and method, along the classes."""
    return lambda view: along_classes(view, view.by_method(key), what, **about)


def _against(key: str, what: str, **about: str) -> Panel:
    """One number per class of the features, against accuracy."""
    return lambda view: against_accuracy(view, view.features.get(key), what, **about)


def _boxes(key: str, split: str, what: str, **about: str) -> Panel:
    """Quantiles of the features, one box per group."""

    def panel(view: View) -> Chart | None:
        table = view.features.get(key)
        return boxes({split: table}, what, view.groups, **about) if table else None

    return panel


prediction_bias = _along(
    "g_n",
    "G_n, summed probability",
    name="prediction-bias",
    title="Prediction bias G_n",
    note="Predicted probability of a class, summed over the test images of all other classes. If it rises "
    "to the right, hard classes attract images that do not belong to them.",
)
own_probability = _along(
    "g_p",
    "G_p, summed probability",
    name="own-probability",
    title="Own probability G_p",
    note="Predicted probability of a class, summed over its own test images: at most their number. "
    "G_n and G_p of all classes add up to the number of test images.",
)
weight_norms = _along(
    "weight_norm",
    "norm of the weights of the class",
    name="weight-norms",
    title="Classifier weight norms",
    note="On long-tailed data frequent classes get large weights; on balanced data norms rarely matter.",
)
class_mean_angle = _along(
    "class_mean_angle",
    "CMA, mean cosine to all classes",
    name="class-mean-angle",
    title="Class mean angle",
    note="The mean cosine between the weights of a class and those of every class. Smaller means better "
    "separated; 0 for all classes is an equiangular tight frame.",
)
spread = _against(
    "spread2",
    "feature spread",
    name="feature-spread",
    title="Feature spread against accuracy",
    note="Mean squared distance of training features to their class mean; MR² sets its margins by it.",
)
variance_norm = _against(
    "variance_norm",
    "norm of the feature variances",
    name="feature-variance",
    title="Feature variance norm against accuracy",
    note="Norm of the vector of per-dimension variances: diverse classes tend to be hard.",
)
separability = _against(
    "separability",
    "Fisher separability",
    name="separability",
    title="Fisher separability against accuracy",
    note="Distance between class means relative to the spread within classes, along the best direction for "
    "each pair of classes, averaged over the pairs.",
)
angles = _boxes(
    "angle_quantiles",
    "test",
    "degrees to the class centre",
    name="angles",
    title="Angle of test images to their class centre",
    note="Large angles mean that the images of a class point in many directions.",
)
angles_to_weights = _boxes(
    "angle_to_weight_quantiles",
    "test",
    "degrees to the classifier's weights",
    name="angles-to-weights",
    title="Angle of test images to the weights of their class",
    note="How far the features of an image point from the weights that should recognise it.",
)
distances = _boxes(
    "largest_distance_quantiles",
    "train",
    "largest distance within the class",
    name="largest-distances",
    title="Largest distances within a class",
    note="For each training image, the distance to the farthest image of its class, over the largest norm.",
)


def bias_on_groups(view: View) -> Chart | None:
    """G_n of the first method on the images of each group alone."""
    tables = next(iter(view.by_method("g_n_on").values()), None)
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
        "G_n from the images of one group at a time: which classes attract the images of which group?",
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


def representation_or_classifier(view: View) -> Chart | None:
    """Mean class accuracy of each group under the linear head, k-NN and a fixed equiangular classifier."""
    tables = view.features.get("accuracy_by")
    if not tables:
        return None
    titles = CLASSIFIERS
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
        "Mean class accuracy of the trained head, of a vote of 20 neighbours, and of a fixed equiangular "
        "classifier after a least-squares map. If all three drop alike on hard classes, the features are the "
        "cause.",
        columns,
        rows,
        framed(
            {"type": "bar", "cornerRadiusEnd": 2},
            columns,
            height=20 * len(rows),
            y=lines("group", view.groups),
            yOffset=series("classifier", list(titles.values())),
            x=quantity("accuracy", "accuracy %", zero=True),
            color=series("classifier", list(titles.values())),
        ),
    )


def feature_map(view: View) -> Chart | None:
    """t-SNE of some classes, each image marked as classified correctly or not."""
    points = view.features.get("map")
    if not points:
        return None
    names = view.block["classes"]
    columns = {"x": "x", "y": "y", "class": "class", "classified": "prediction"}
    rows = [(p["x"], p["y"], names[p["class"]], "correct" if p["right"] else "wrong") for p in points]
    return Chart(
        "t-sne",
        "Map of the hardest classes, what they are mistaken for, and the easiest",
        "t-SNE of test features: neighbourhoods are meaningful, distances and cluster sizes are not.",
        columns,
        rows,
        framed(
            {"type": "point", "filled": True, "size": 40},
            {"class": "class", "classified": "prediction"},
            height=380,
            x={**quantity("x", ""), "axis": None},
            y={**quantity("y", ""), "axis": None},
            color={
                "field": "class",
                "type": "nominal",
                "scale": {"scheme": "tableau10"},
                "legend": {"orient": "bottom", "columns": {"expr": "width < 500 ? 2 : 4"}},
            },
            shape={
                "field": "classified",
                "type": "nominal",
                "scale": {"domain": ["correct", "wrong"], "range": ["circle", "cross"]},
            },
        ),
    )


PANELS = (
    sensitivity,
    representation_or_classifier,
    class_curves,
    prediction_bias,
    bias_on_groups,
    own_probability,
    training_bias,
    logit_margins,
    logit_margin_cdf,
    margins_of_chosen,
    spread,
    variance_norm,
    separability,
    angles,
    angles_to_weights,
    distances,
    distances_of_chosen,
    margins,
    margin_history,
    complexity,
    weight_norms,
    weights_before_and_after,
    class_mean_angle,
    feature_map,
    group_map,
)
