"""Predictions made elsewhere: a parquet file with the columns id, label and prediction or scores.

    id           anything unique to a test image
    label        the true class: a number from 0, or its name
    prediction   the guessed class, in the same way; or instead of it
    scores       a list with one score a class: logits or probabilities
    method, seed optional; "erm" is the reference that the other method is compared with

Class names are taken from the names in the file, from the schema metadata "class_names" (a JSON list), or are
the numbers themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe import recipe
from probe.errors import UserError
from probe.evaluation import external_columns, metrics
from probe.evaluation import groups as grouping
from probe.evaluation.diagnostics import outputs
from probe.evaluation.diagnostics.diagnose import Model, diagnose
from probe.evaluation.summary import Bench, Groups, MethodOutcome, gain_over, judge

REFERENCE = "erm"
MOST_CLASSES = 20_000


@dataclass(frozen=True)
class ExternalPredictions:
    """The content of such a file: for every method, predictions (and scores) by seed on the same images."""

    ids: list[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    prediction: Mapping[str, NDArray[np.int64]]  # method -> S x N
    probability: Mapping[str, NDArray[np.float64]]  # method -> S x N, of the prediction; may be empty
    scores: Mapping[str, NDArray[np.float64]]  # method -> S x N x K; empty when the file has none
    top5: Mapping[str, NDArray[np.int64]]  # method -> S x N x T; may be empty

    def outcome(self, method: str) -> MethodOutcome:
        hits5 = None
        if method in self.scores:
            hits5 = np.stack([metrics.top_k(s, self.labels, 5) for s in self.scores[method]])
        elif method in self.top5:
            hits5 = (self.top5[method] == self.labels[None, :, None]).any(axis=2)
        hits = self.prediction[method] == self.labels
        return MethodOutcome(method, hits, hits5, self.probability.get(method))


def result(path: Path, *, groups: str | None = None) -> dict[str, Any]:
    """A result as a run would give it, from the predictions alone.

    `groups` is a run folder that ranks the classes, or a JSON file that names the groups.
    """
    foreign = read(path)
    methods = [m for m in foreign.prediction if m != REFERENCE] or [REFERENCE]
    if len(methods) > 1:
        raise UserError(
            f'{path}: holds the methods {", ".join(methods)}; keep one, with "{REFERENCE}" as its reference'
        )
    method, compared = methods[0], len(foreign.prediction) > 1
    ranking, origin, remark = _ranking(foreign, groups, compared)
    bench = Bench(foreign.labels, foreign.class_names, ranking)
    mine = foreign.outcome(method)
    block: dict[str, Any] = {
        "schema": 1,
        "method": method,
        "data": {"name": path.stem, "sizes": {"test": len(foreign.labels)}},
        "seeds": [{"seed": s} for s in range(len(mine.hits))],
        **origin,
        "remarks": [remark] if remark else [],
        "test": judge(mine, bench),
        "reference": None,
        "versus": None,
        "diagnostics": _diagnostics(foreign, [method, *([REFERENCE] if compared else [])], ranking),
    }
    if compared:
        other = foreign.outcome(REFERENCE)
        block |= {"reference": judge(other, bench), "versus": gain_over(mine, other, bench)}
    return block


def _ranking(
    foreign: ExternalPredictions, groups: str | None, compared: bool
) -> tuple[Groups, dict[str, str | None], str | None]:
    """The groups, where they come from, and what to keep in mind about them."""
    from probe.runs import groups as given_groups

    source = recipe.group_source("paper" if groups is None else groups)
    if source == "crossfit":
        raise UserError("predictions hold no training images to cross-fit on; name a run or a file as groups")
    given = given_groups.given(source, foreign.class_names)
    if given is not None:
        return given, given_groups.origin(source), given_groups.remark(source)
    if not compared:
        everything = {"all": list(range(len(foreign.class_names)))}
        remark = "nothing ranks the classes; name a run or a file with --groups to see groups"
        return everything, {"groups_by": "none", "groups_from": None}, remark
    hits = foreign.outcome(REFERENCE).hits
    accuracy = metrics.count(hits, foreign.labels, len(foreign.class_names)).accuracy
    return grouping.thirds(np.nan_to_num(accuracy)), given_groups.origin(source), given_groups.remark(source)


def _diagnostics(foreign: ExternalPredictions, methods: list[str], ranking: Groups) -> dict[str, Any]:
    """All diagnostics that scores allow; without scores, the confusions."""
    scored = {m: Model(foreign.scores[m][0]) for m in methods if m in foreign.scores}
    own = methods[0]
    if own not in scored:  # one-hot scores have the same argmax, which is all that confusions look at
        sure = foreign.probability.get(own)
        weight = np.ones(len(foreign.labels)) if sure is None else np.nan_to_num(sure[0])
        logits = np.zeros((len(weight), len(foreign.class_names)))
        logits[np.arange(len(weight)), foreign.prediction[own][0]] = 1 + weight
        scored = {own: Model(logits)}
    block = diagnose(
        scored, labels=foreign.labels, ids=foreign.ids, class_names=foreign.class_names, groups=ranking
    )
    return block if foreign.scores else {**block, "methods": {}}


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
    if textual == {True, False}:  # which name has number 0?
        raise UserError(
            f"{path}: label and prediction are names in one column and numbers in the other; "
            "write both alike, or the names as class_names into its metadata"
        )
    if textual == {True}:
        return tuple(sorted(set(values)))
    number = max(max(values) + 1, *map(len, given.get("scores", [[]])))
    if number > MOST_CLASSES:
        raise UserError(f"{path}: class {number - 1:,} is beyond the {MOST_CLASSES:,} that are supported")
    return tuple(str(k) for k in range(number))


def _stored_names(stored: bytes, path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(stored)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UserError(f"{path}: class_names in its metadata is no JSON list of names")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a name stands twice in the class_names of its metadata")
    return tuple(names)


def _classes(values: list[Any], where: Mapping[str, int], column: str, path: Path) -> NDArray[np.int64]:
    """Class indices of names or numbers; anything else is named with its row."""
    found = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        index = where.get(value, -1) if isinstance(value, str) else value
        if not 0 <= index < len(where):
            raise UserError(f"{path}: row {row}: {column} {value!r} is none of the {len(where)} classes")
        found[row] = index
    return found


def _matrix(values: list[Any], column: str, path: Path) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {column} must be numbers, as many in every row") from error


def _add_from_scores(data: dict[str, Any], num_classes: int, path: Path) -> None:
    """The prediction and its probability, where the file gives scores only."""
    scores = data["scores"]
    if scores.ndim != 2 or scores.shape[1] != num_classes or np.isnan(scores).any():
        raise UserError(f"{path}: scores must be {num_classes} numbers in every row, one a class")
    certain = bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
    probability = scores if certain else outputs.softmax(scores)
    data.setdefault("prediction", scores.argmax(axis=1))
    data.setdefault("probability", probability.max(axis=1))
    data["scores"] = np.log(np.maximum(scores, 1e-12)) if certain else scores


def _by_method(data: dict[str, Any], names: tuple[str, ...], path: Path) -> ExternalPredictions:
    """Rows sorted by image within each method and seed; every part must hold the same images, once each."""
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
                    f"{path}: method {method}, seed {seed} has other images or labels than the rest"
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
