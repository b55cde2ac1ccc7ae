"""What the training set shows: prediction bias against class counts, weights before and after, a map."""

from __future__ import annotations

from probe.report.charts.base import Chart, framed, named, quantity, series, shade
from probe.report.charts.shapes import CLASS, View

UNEQUAL = 1.5  # largest over smallest class, from which sizes are worth an axis


def training_bias(view: View) -> Chart | None:
    """G_n on training images against the number of them, or along the classes where those are equal."""
    tables = view.by_method("on_train")
    if not tables:
        return None
    counts = next(iter(tables.values()))["counts"]
    columns = {
        **CLASS,
        "value": "G_n on train",
        "n": "training images",
        "sum": "(G_n + G_p) / n",
        "method": "method",
    }
    place = {row["name"]: k for _, k, row in view.order}
    rows = []
    for method, table in tables.items():
        for row in view.by_class(table["g_n"]):
            k = place[row[1]]
            total = (table["g_n"][k] + table["g_p"][k]) / counts[k] if counts[k] else None
            rows.append((*row, counts[k], None if total is None else float(f"{total:.5g}"), method))
    departs = ", ".join(f"{method} {100 * table['largest_excess']:.2g} %" for method, table in tables.items())
    equal = max(counts) <= UNEQUAL * min(counts)
    along = (
        named("rank", list(dict.fromkeys(row[1] for row in rows)))
        if equal
        else quantity("n", "training images")
    )
    return Chart(
        "training-bias",
        "Prediction bias on training images",
        "Predicted probability of a class, summed over the training images of all other classes. At the "
        "optimum of plain cross-entropy with a free bias, all training images together give each class as "
        "much probability as it has images, G_n + G_p = n; adjusted losses, cosine heads and early stops "
        "need not. "
        f"Largest departure: {departs}.",
        columns,
        rows,
        framed(
            "circle",
            columns,
            x=along,
            y=quantity("value", "G_n on train", zero=True),
            color=series("method", list(tables)),
        ),
    )


def weights_before_and_after(view: View) -> Chart | None:
    """Norms of the classifier's weights where a training, or a second stage, began, and at its end."""
    for method, block in view.methods.items():
        before, after = block.get("weight_norm_before"), block.get("weight_norm")
        if before and after:
            columns = {**CLASS, "before": "norm before", "after": "norm after", "method": "method"}
            index = {row["name"]: k for _, k, row in view.order}
            rows = [(*row, after[index[row[1]]], method) for row in view.by_class(before)]
            return Chart(
                "weight-norms-before",
                "Classifier weight norms before and after training",
                "The norm of each class's weights in the head that the training, or the second stage, began "
                "with, and at its end.",
                columns,
                rows,
                framed(
                    "circle",
                    columns,
                    x=quantity("before", "norm before"),
                    y=quantity("after", "norm after"),
                    color=shade(view.groups),
                ),
            )
    return None


def group_map(view: View) -> Chart | None:
    """t-SNE of training features, by group."""
    points = view.features.get("group_map")
    if not points:
        return None
    names = view.block["classes"]
    columns = {"x": "x", "y": "y", "class": "class", "group": "group"}
    return Chart(
        "t-sne-groups",
        "Map of training features by group",
        "t-SNE of training features, equally many images of each group: neighbourhoods are meaningful, "
        "distances and cluster sizes are not.",
        columns,
        [(p["x"], p["y"], names[p["class"]], p["group"]) for p in points],
        framed(
            {"type": "point", "filled": True, "size": 40},
            {"class": "class", "group": "group"},
            height=380,
            x={**quantity("x", ""), "axis": None},
            y={**quantity("y", ""), "axis": None},
            color=shade(view.groups),
        ),
    )
