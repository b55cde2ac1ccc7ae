"""All diagnostics of a run, as the small `diagnostics` block of result.json.

Large inputs (logits, features) are read once, while they are in memory; what is kept is one number per
class, quantiles, and a few examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.diagnostics import classifiers, confusion_matrix, features, outputs, weights
from probe.evaluation.diagnostics.sampling import balanced_rows
from probe.evaluation.diagnostics.training_bias import TrainingBias

if TYPE_CHECKING:
    from torch import Tensor

    from probe.core.scaling import FeatureMatrix

MOST_ROWS = 20_000  # training rows that are used, at most: a seeded sample, balanced over classes
UNEQUAL = 1.5  # largest over smallest class, from which classes are chosen by their size
LOOK_ALIKES = 2  # right images of the predicted class that are shown beside a confusion
MAPPED_ROWS = 120  # of the t-SNE map of the groups: a quarter of a second
MAPPED = 8  # classes on the t-SNE map: the hardest, the easiest, and what they are mistaken for


@dataclass(frozen=True)
class Model:
    """One method's head, trained with one seed, and its outputs on the test split."""

    logits: NDArray[np.floating]  # N x K
    weight: NDArray[np.floating] | None = None  # K x D, of a linear or cosine head
    before: NDArray[np.floating] | None = None  # K x D, where its training, or second stage, began with such
    on_train: TrainingBias | None = None


@dataclass(frozen=True)
class LabelledFeatures:
    """Features as the head sees them, with their labels."""

    X: NDArray[np.floating] | Tensor | FeatureMatrix  # N x D
    y: NDArray[np.int64]


def diagnose(
    models: Mapping[str, Model],
    *,
    labels: NDArray[np.int64],
    ids: Sequence[str],
    class_names: Sequence[str],
    groups: Mapping[str, list[int]],
    train: LabelledFeatures | None = None,
    test: LabelledFeatures | None = None,
    margins: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The `diagnostics` block: `models` by method name, the run's own method first.

    `margins` are the rows of the result's `margins.by_class`, for the complexity of Theorem 1 by class.

    >>> diagnose({"mr2": Model(logits, head.weight), "erm": Model(plain, other.weight)}, labels=test.y, ...)
    """
    chosen = chosen_classes(groups, None if train is None else np.asarray(train.y), len(class_names))
    context = _Context(labels, list(ids), len(class_names), groups, chosen)
    block: dict[str, Any] = {
        "classes": list(class_names),
        "groups": {name: list(members) for name, members in groups.items()},
        "chosen": chosen,
        "methods": {name: _of_outputs(model, context) for name, model in models.items()},
    }
    own = next(iter(models.values()))
    block["confusions"] = _confusions(own, context, class_names)
    block["confusion_matrix"] = confusion_matrix.block(own.logits.argmax(axis=1), labels, context.num_classes)
    if margins is not None:
        block["complexity"] = _complexity(margins)
    if train is not None and test is not None:
        block["features"] = _of_features(own, _sample(train, seed), test, context, seed)
    return block


@dataclass(frozen=True)
class _Context:
    labels: NDArray[np.int64]
    ids: list[str]
    num_classes: int
    groups: Mapping[str, list[int]]
    chosen: list[int]  # classes that are looked at one by one

    def quantiles_of_chosen(
        self, values: NDArray[np.floating], labels: NDArray[np.int64]
    ) -> list[list[float]]:
        """The quantiles of the finite values (N) of each chosen class."""
        known = np.isfinite(values)
        return [outputs.quantiles(values[(labels == k) & known]) for k in self.chosen]

    def quantiles(self, values: NDArray[np.floating], labels: NDArray[np.int64]) -> dict[str, list[float]]:
        """The quantiles of the finite values (N) of each group."""
        known = np.isfinite(values)  # a k-NN head gives -inf to classes without votes
        return {
            name: outputs.quantiles(values[np.isin(labels, members) & known])
            for name, members in self.groups.items()
        }


def chosen_classes(
    groups: Mapping[str, list[int]], train_labels: NDArray[np.int64] | None, num_classes: int
) -> list[int]:
    """The classes that distributions are shown of: the most frequent, a middle and the rarest one where class
    sizes differ, else the middle class of every group, three at most."""
    counts = None if train_labels is None else np.bincount(train_labels, minlength=num_classes)
    if counts is not None and counts.max() > UNEQUAL * max(1, counts.min()):
        order = [int(k) for k in np.argsort(-counts, kind="stable")]
        return list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]]))
    return [members[len(members) // 2] for members in groups.values() if members][:3]


def _numbers(values: NDArray[np.floating]) -> list[float | None]:
    """Five significant digits: enough for a chart, and a third of the bytes."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]


def _of_outputs(model: Model, context: _Context) -> dict[str, Any]:
    probability = outputs.softmax(model.logits)
    g_n, g_p = outputs.prediction_bias(probability, context.labels)
    margins = outputs.logit_margins(model.logits, context.labels)
    block: dict[str, Any] = {
        "g_n": _numbers(g_n),
        "g_p": _numbers(g_p),
        "g_n_on": {
            name: _numbers(outputs.prediction_bias(probability[chosen], context.labels[chosen])[0])
            for name, chosen in ((n, np.isin(context.labels, m)) for n, m in context.groups.items())
        },
        "logit_margin": _numbers(outputs.class_mean(margins, context.labels, context.num_classes)),
        "logit_margin_quantiles": context.quantiles(margins, context.labels),
        "logit_margin_quantiles_of_chosen": context.quantiles_of_chosen(margins, context.labels),
    }
    if model.on_train is not None:
        found = model.on_train
        block["on_train"] = {
            "g_n": _numbers(found.g_n),
            "g_p": _numbers(found.g_p),
            "counts": found.counts.tolist(),
            "largest_excess": found.largest_excess,
        }
    if model.before is not None:
        block["weight_norm_before"] = _numbers(weights.norms(np.asarray(model.before)))
    if model.weight is not None:
        weight = np.asarray(model.weight)
        block["weight_norm"] = _numbers(weights.norms(weight))
        block["class_mean_angle"] = _numbers(weights.class_mean_angle(weight))
    return block


def _confusions(model: Model, context: _Context, class_names: Sequence[str]) -> list[dict[str, Any]]:
    prediction = model.logits.argmax(axis=1)
    confidence = outputs.softmax(model.logits).max(axis=1)
    n = np.bincount(context.labels, minlength=context.num_classes)

    def surest(k: int) -> list[int]:
        """Images of class k that look like it to the model, to be seen beside what is mistaken for it."""
        rows = np.flatnonzero((prediction == k) & (context.labels == k))
        return [int(r) for r in rows[np.argsort(-confidence[rows], kind="stable")][:LOOK_ALIKES]]

    return [
        {
            "true": class_names[c.true],
            "predicted": class_names[c.predicted],
            "count": c.count,
            "share": c.count / int(n[c.true]),
            "rows": c.rows,
            "ids": [context.ids[r] for r in c.rows],
            "predicted_ids": [context.ids[r] for r in surest(c.predicted)],
        }
        for c in outputs.top_confusions(prediction, context.labels, confidence)
    ]


def _complexity(margins: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Each class's term of Theorem 1, with its margin and with one margin of the same mean for all."""
    import torch

    from probe.core import theory
    from probe.core.class_stats import ClassStats

    columns = (torch.tensor([float(row[c]) for row in margins]) for c in ("gamma", "mean_norm2", "spread2"))
    gamma, mean_norm2, spread2 = columns
    stats = ClassStats(torch.ones_like(gamma), mean_norm2, spread2)
    equal = torch.full_like(gamma, float(gamma.mean()))
    return {
        "with_margins": _numbers(theory.class_terms(stats, gamma).numpy()),
        "equal_margins": _numbers(theory.class_terms(stats, equal).numpy()),
    }


def _sample(train: LabelledFeatures, seed: int) -> LabelledFeatures:
    """At most MOST_ROWS rows, the same number of every class where it has that many."""
    if len(train.y) <= MOST_ROWS:
        return LabelledFeatures(_array(train.X), np.asarray(train.y))
    rows = balanced_rows(train.y, MOST_ROWS, seed)
    return LabelledFeatures(np.asarray(train.X[rows]), train.y[rows])


def _array(features: NDArray[np.floating] | Tensor | FeatureMatrix) -> NDArray[np.floating]:
    """All rows in memory."""
    return np.asarray(features if isinstance(features, np.ndarray) else features[:])


def _of_features(
    own: Model, train: LabelledFeatures, test: LabelledFeatures, context: _Context, seed: int
) -> dict[str, Any]:
    k, y = context.num_classes, train.y
    X, seen = _array(train.X), _array(test.X)
    angles = features.angles_to_centre(seen, test.y, features.centres(X, y, k))
    farthest = features.largest_distances(X, y)
    predictions = {
        "linear": own.logits.argmax(axis=1),
        "knn": classifiers.neighbours(X, y, seen, k),
        "etf": classifiers.equiangular(X, y, seen, k),
    }
    accuracy = {
        name: outputs.class_mean(predicted == test.y, test.y, k) for name, predicted in predictions.items()
    }
    return {
        "train_rows": len(y),
        "spread2": _numbers(features.spread(X, y, k)),
        "variance_norm": _numbers(features.variance_norm(X, y, k)),
        "separability": _numbers(features.separability(X, y, k)),
        "angle": _numbers(outputs.class_mean(angles, test.y, k)),
        "angle_quantiles": context.quantiles(angles, test.y),
        "largest_distance": _numbers(outputs.class_mean(farthest, y, k)),
        "largest_distance_quantiles": context.quantiles(farthest, y),
        "largest_distance_quantiles_of_chosen": context.quantiles_of_chosen(farthest, y),
        **_to_weights(own.weight, seen, test.y, context),
        "accuracy_by": {name: _numbers(values) for name, values in accuracy.items()},
        "map": _map(seen, test.y, accuracy["linear"], predictions["linear"], seed),
        "group_map": _group_map(X, y, context.groups, seed),
    }


def _to_weights(
    weight: NDArray[np.floating] | None, X: NDArray[np.floating], y: NDArray[np.int64], context: _Context
) -> dict[str, Any]:
    """Degrees between test features and the classifier's weights of their class (DBM), where it has such."""
    if weight is None or np.shape(weight) != (context.num_classes, X.shape[1]):
        return {}
    angles = features.angles_to_centre(X, y, np.asarray(weight, dtype=np.float64))
    return {
        "angle_to_weight": _numbers(outputs.class_mean(angles, y, context.num_classes)),
        "angle_to_weight_quantiles": context.quantiles(angles, y),
    }


def _group_map(
    X: NDArray[np.floating], y: NDArray[np.int64], groups: Mapping[str, list[int]], seed: int
) -> list[dict[str, Any]]:
    """t-SNE points of training features, equally many of each group."""
    group_of = np.full(int(y.max()) + 1, -1)
    for number, members in enumerate(groups.values()):
        group_of[[k for k in members if k < len(group_of)]] = number
    each = max(1, MAPPED_ROWS // max(1, len(groups)))
    plane, rows = features.map_of(X, group_of[y], range(len(groups)), per_class=each, seed=seed)
    names = list(groups)
    return [
        {
            "group": names[group_of[y[r]]],
            "class": int(y[r]),
            "x": float(f"{a:.4g}"),
            "y": float(f"{b:.4g}"),
        }
        for r, (a, b) in zip(rows, plane, strict=True)
    ]


def _map(
    X: NDArray[np.floating],
    y: NDArray[np.int64],
    accuracy: NDArray[np.float64],
    predicted: NDArray[np.int64],
    seed: int,
) -> list[dict[str, Any]]:
    """t-SNE points of the hardest classes, what they are mistaken for, and the easiest for comparison."""
    order = [int(k) for k in np.argsort(accuracy, kind="stable") if not np.isnan(accuracy[k])]
    hardest = order[: MAPPED // 3 + 1]
    rivals = [int(np.bincount(predicted[(y == k) & (predicted != y)], minlength=1).argmax()) for k in hardest]
    chosen = list(dict.fromkeys([*hardest, *rivals, *order[:-MAPPED:-1]]))[:MAPPED]
    plane, rows = features.map_of(X, y, chosen, seed=seed)
    return [
        {
            "class": int(y[r]),
            "right": bool(predicted[r] == y[r]),
            "x": float(f"{a:.4g}"),
            "y": float(f"{b:.4g}"),
        }
        for r, (a, b) in zip(rows, plane, strict=True)
    ]
