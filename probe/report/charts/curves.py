"""Curves: of a training, of classes under three classifiers, of chosen classes, along a parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.charts.base import Chart, framed, hint, quantity, series
from probe.report.charts.shapes import View, along_classes, distribution

CLASSIFIERS = {"linear": "linear head", "knn": "k-NN", "etf": "fixed ETF"}
STATISTICS = {
    "overall": "overall",
    "mean_per_class": "mean per class",
    "hard": "hard",
    "worst_tenth": "worst tenth",
}

# The panels of a training: title, part of `curves`, key, factor.
TRAINED = (
    ("loss", "steps", "loss", 1),
    ("validation accuracy %", "epochs", "validation", 100),
    ("learning rate", "steps", "lr", 1),
)


def class_curves(view: View) -> Chart | None:
    """The accuracy of every class under the trained head, k-NN and a fixed equiangular classifier."""
    tables = view.features.get("accuracy_by")
    if not tables:
        return None
    percent = {
        CLASSIFIERS[name]: [None if v is None else round(100 * v, 2) for v in values]
        for name, values in tables.items()
    }
    return along_classes(
        view,
        percent,
        "accuracy %",
        name="class-curves",
        title="Class accuracies under three classifiers",
        note="Test accuracy of each class under the trained head, a vote of 20 neighbours, and a fixed "
        "equiangular classifier: the same classes are hard for all three where the features are the cause.",
    )


def _of_chosen(
    view: View, tables: Mapping[str, Sequence[Sequence[float]]], what: str, **about: str
) -> Chart | None:
    """Distributions of the chosen classes, each called by its name and its number n of training images."""
    chosen = view.block.get("chosen") or []
    if not chosen or not tables:
        return None
    names = [_called(view, k) for k in chosen]
    by_class = {
        method: {name: q for name, q in zip(names, quantiles, strict=True) if q}
        for method, quantiles in tables.items()
    }
    return distribution(by_class, what, names, **about)


def _called(view: View, k: int) -> str:
    name = view.block["classes"][k]
    count = view.rows[name].get("train_n")
    return name if count is None else f"{name} (n = {count})"


def margins_of_chosen(view: View) -> Chart | None:
    """Cumulative logit margins of single classes."""
    return _of_chosen(
        view,
        view.by_method("logit_margin_quantiles_of_chosen"),
        "logit margin",
        name="logit-margin-cdf-classes",
        title="Logit margins of single classes, cumulative",
        note="A frequent, a middle and a rare class; on balanced data the middle one of each group. The "
        "height at 0 is the error rate of the class.",
    )


def distances_of_chosen(view: View) -> Chart | None:
    """Cumulative largest distances of single classes."""
    found = view.features.get("largest_distance_quantiles_of_chosen")
    return _of_chosen(
        view,
        {"train": found} if found else {},
        "largest distance within the class",
        name="largest-distances-classes",
        title="Largest distances within single classes",
        note="For each training image, the distance to the farthest image of its class, over the largest "
        "norm.",
    )


def sensitivity(view: View) -> Chart | None:
    """What validation made of each value that was tried of a parameter, the others at their best."""
    seeds = [(seed.get("select") or {}).get("tried") or [] for seed in view.result.get("seeds") or []]
    found = list(_along_parameters([tried for tried in seeds if tried]))
    if not found:
        return None
    parameters = list(dict.fromkeys(row[0] for row in found))
    columns = {"parameter": "parameter", "value": "value", "score": "accuracy %", "statistic": "statistic"}
    told = {row[3] for row in found}
    panel = framed(
        {"type": "line", "point": True},
        columns,
        x=quantity("value", "value"),
        y=quantity("score", "accuracy % on validation images"),
        color=series("statistic", [name for name in STATISTICS.values() if name in told]),
    )
    return Chart(
        "sensitivity",
        f"Sensitivity to {', '.join(parameters)}",
        "Accuracy on the images that chose, for each value that was tried, with the best of all other "
        "parameters (and l2) beside it, averaged over seeds. Test images play no part.",
        columns,
        found,
        {
            "columns": min(2, len(parameters)),
            "facet": {"field": "parameter", "type": "nominal", "title": None},
            "spec": {**panel, "width": 290 if len(parameters) > 1 else 580},
            "resolve": {"scale": {"x": "independent"}},
        },
    )


def _along_parameters(
    seeds: Sequence[Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, float, float, str]]:
    """(parameter, value, accuracy %, statistic) of every parameter that took several numbers."""
    values: dict[str, set[float]] = {}
    for row in (row for tried in seeds for row in tried):
        for name, value in row["parameters"].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values.setdefault(name, set()).add(float(value))
    for name, several in values.items():
        for statistic, title in STATISTICS.items() if len(several) > 1 else ():
            for value in sorted(several):
                best = [_best(tried, name, value, statistic) for tried in seeds]
                known = [score for score in best if score is not None]
                if known:
                    yield name, value, round(100 * sum(known) / len(known), 3), title


def _best(tried: Sequence[Mapping[str, Any]], name: str, value: float, statistic: str) -> float | None:
    rows = (row for row in tried if row["parameters"].get(name) == value)
    return max((row[statistic] for row in rows if row.get(statistic) is not None), default=None)


def training(result: Mapping[str, Any]) -> Chart | None:
    """How the training went: loss and rate by step, validation by epoch, margins where it has them."""
    rows = list(_of_training(result))
    if not rows:
        return None
    panels, names = list(dict.fromkeys(row[1] for row in rows)), list(dict.fromkeys(row[2] for row in rows))
    columns = {"place": "panel", "what": "what", "series": "series", "step": "step", "value": "value"}
    return Chart(
        "training-curves",
        "How the training went",
        "Loss and learning rate by step (means of neighbouring steps), accuracy on held-out images after "
        "each epoch, and margins where the method sets them.",
        columns,
        rows,
        {
            "columns": min(2, len(panels)),
            "facet": {
                "field": "what",
                "type": "nominal",
                "sort": {"field": "place", "op": "min"},
                "title": None,
            },
            "spec": {
                "width": 400,
                "height": 170,
                "mark": {"type": "line", "point": {"size": 12}},
                "encoding": {
                    "x": quantity("step", "step", nice=False),
                    "y": quantity("value", ""),
                    "color": series("series", names),
                    "tooltip": hint({k: v for k, v in columns.items() if k != "place"}),
                },
            },
            "resolve": {"scale": {"y": "independent"}},
        },
    )


def _of_training(result: Mapping[str, Any]) -> Iterator[tuple[int, str, str, int, float]]:
    """(panel's place, panel, series, step, value)."""
    found = result.get("curves") or {}
    for place, (what, part, key, factor) in enumerate(TRAINED):
        for row in found.get(part) or ():
            if row.get(key) is not None:
                value = float(f"{factor * row[key]:.5g}")
                yield place + 1, what, f"seed {row['seed']}", row["step"], value
    for point in (result.get("margins") or {}).get("history") or ():
        ordered = sorted(point["gamma"])
        middle = ordered[len(ordered) // 2]
        for name, value in (("largest", ordered[-1]), ("median", middle), ("smallest", ordered[0])):
            yield len(TRAINED) + 1, "margins of classes", name, point["step"], value
