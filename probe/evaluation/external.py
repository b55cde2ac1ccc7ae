"""Predictions made elsewhere: a parquet file with the columns id, label and prediction or scores.

    id           unique for each test image
    label        the true class: its name, or its index from 0
    prediction   the predicted class, written the same way; or instead of it
    scores       a list with one score per class: logits or probabilities
    method, seed optional; "erm" is the reference that the other method is compared with

Class names come from the schema metadata "class_names" (a JSON list), else from the names in the columns,
else they are the indices themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation import external_columns, metrics
from probe.evaluation.diagnostics import outputs
from probe.evaluation.summary import MethodOutcome

MOST_CLASSES = 20_000


@dataclass(frozen=True)
class ExternalPredictions:
    """The content of such a file: for every method, predictions (and scores) by seed on the same N images."""

    ids: list[str]  # N
    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    prediction: Mapping[str, NDArray[np.int64]]  # method -> S x N
    probability: Mapping[str, NDArray[np.float64]]  # method -> S x N, of the predicted class; may be empty
    scores: Mapping[str, NDArray[np.float64]]  # method -> S x N x K; empty when the file has none
    top5: Mapping[str, NDArray[np.int64]]  # method -> S x N x T; may be empty

    def first(self, seeds: int) -> ExternalPredictions:
        """The same with as many seeds."""
        blocks: dict[str, Any] = {
            name: {method: values[:seeds] for method, values in getattr(self, name).items()}
            for name in ("prediction", "probability", "scores", "top5")
        }
        return replace(self, **blocks)

    def outcome(self, method: str) -> MethodOutcome:
        """Which images the method got right, seed by seed."""
        correct_top5 = None
        if method in self.scores:
            correct_top5 = np.stack([metrics.top_k(s, self.labels, 5) for s in self.scores[method]])
        elif method in self.top5:
            correct_top5 = (self.top5[method] == self.labels[None, :, None]).any(axis=2)
        correct = self.prediction[method] == self.labels
        return MethodOutcome(method, correct, correct_top5, self.probability.get(method))


def read(path: Path) -> ExternalPredictions:
    """The checked content of a predictions file."""
    given, about = external_columns.read(path)
    names = _class_names(given, about.get(b"class_names"), path)
    where = {name: k for k, name in enumerate(names)}
    data: dict[str, Any] = {
        name: _classes(given[name], where, name, path) for name in ("label", "prediction") if name in given
    }
    data["id"] = np.asarray([str(i) for i in given["id"]])
    for name in ("scores", "top5", "probability"):
        if name in given:
            data[name] = _matrix(given[name], name, path)
    if "scores" in data:
        _add_from_scores(data, len(names), path)
    count = len(given["id"])
    data["method"] = np.asarray(given.get("method", ["model"] * count))
    data["seed"] = np.asarray(given.get("seed", [0] * count))
    return _by_method(data, names, path)


def _class_names(given: Mapping[str, list[Any]], stored: bytes | None, path: Path) -> tuple[str, ...]:
    if stored:
        return _stored_names(stored, path)
    values = [v for name in ("label", "prediction") for v in given.get(name, ())]
    textual = {isinstance(v, str) for v in values}
    if textual == {True, False}:  # which name would have index 0?
        raise UserError(
            f"{path}: label and prediction are names in one column and integers in the other; "
            "use the same in both, or add the names to the metadata as class_names"
        )
    if textual == {True}:
        return tuple(sorted(set(values)))
    number = max(max(values) + 1, *map(len, given.get("scores", [[]])))
    if number > MOST_CLASSES:
        raise UserError(
            f"{path}: class {number - 1:,} is too large; up to {MOST_CLASSES:,} classes are supported"
        )
    return tuple(str(k) for k in range(number))


def _stored_names(stored: bytes, path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(stored)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UserError(f"{path}: class_names in its metadata is not a JSON list of names")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a name occurs twice in the class_names of its metadata")
    return tuple(names)


def _classes(values: list[Any], where: Mapping[str, int], column: str, path: Path) -> NDArray[np.int64]:
    """Class indices of names or indices; the error for anything else names its row."""
    found = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        index = where.get(value, -1) if isinstance(value, str) else value
        if not 0 <= index < len(where):
            raise UserError(f"{path}: row {row}: {column} {value!r} is not one of the {len(where)} classes")
        found[row] = index
    return found


def _matrix(values: list[Any], column: str, path: Path) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {column} must be numbers, the same count in every row") from error


def _add_from_scores(data: dict[str, Any], num_classes: int, path: Path) -> None:
    """Add the prediction and its probability where the file has scores only; make all scores logits."""
    scores = data["scores"]
    if scores.ndim != 2 or scores.shape[1] != num_classes or np.isnan(scores).any():
        raise UserError(f"{path}: scores must be {num_classes} numbers in every row, one per class")
    normalised = bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
    probability = scores if normalised else outputs.softmax(scores)
    data.setdefault("prediction", scores.argmax(axis=1))
    data.setdefault("probability", probability.max(axis=1))
    data["scores"] = np.log(np.maximum(scores, 1e-12)) if normalised else scores


def _by_method(data: dict[str, Any], names: tuple[str, ...], path: Path) -> ExternalPredictions:
    """Rows sorted by image for each method and seed; each of these must have the same images, once."""
    order = np.argsort(data["id"], kind="stable")
    data = {name: values[order] for name, values in data.items()}
    first: tuple[Any, Any] | None = None
    parts: dict[str, dict[str, list[Any]]] = {}
    for method in dict.fromkeys(data["method"].tolist()):
        for seed in sorted(set(data["seed"][data["method"] == method].tolist())):
            chosen = (data["method"] == method) & (data["seed"] == seed)
            ids, labels = data["id"][chosen], data["label"][chosen]
            if len(set(ids.tolist())) != len(ids):
                raise UserError(
                    f"{path}: an id occurs twice for method {method}, seed {seed}; ids must be unique"
                )
            if first is None:
                first = ids, labels
            elif not (np.array_equal(ids, first[0]) and np.array_equal(labels, first[1])):
                raise UserError(
                    f"{path}: method {method}, seed {seed} has different images or labels than the others"
                )
            for name in ("prediction", "probability", "scores", "top5"):
                if name in data:
                    parts.setdefault(name, {}).setdefault(method, []).append(data[name][chosen])
    assert first is not None
    stacked = {name: {m: np.stack(v) for m, v in by_method.items()} for name, by_method in parts.items()}
    return ExternalPredictions(
        ids=first[0].tolist(),
        labels=first[1],
        class_names=names,
        prediction=stacked["prediction"],
        probability=stacked.get("probability", {}),
        scores=stacked.get("scores", {}),
        top5=stacked.get("top5", {}),
    )
