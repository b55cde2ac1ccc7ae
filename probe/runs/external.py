"""A result from predictions that were made elsewhere, as a run would have given it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import UserError
from probe.evaluation import external, metrics
from probe.evaluation.diagnostics.diagnose import Model, diagnose
from probe.evaluation.external import ExternalPredictions
from probe.evaluation.groups import Ranking, thirds
from probe.evaluation.summary import EvaluationSet, Groups, gain_over, summarise
from probe.recipe import COUNT_GROUPS, group_source
from probe.runs import groups as grouping
from probe.runs.reference import ERM


def result(path: Path, *, groups: str | None = None) -> dict[str, Any]:
    """The result of the predictions in a parquet file (`probe.evaluation.external` lists its columns).

    `groups` is a run folder that ranks the classes, or a JSON file that names the groups.
    """
    predictions = external.read(path)
    methods = [m for m in predictions.prediction if m != ERM] or [ERM]
    if len(methods) > 1:
        raise UserError(
            f'{path}: holds the methods {", ".join(methods)}; keep one, with "{ERM}" as its reference'
        )
    method, compared = methods[0], len(predictions.prediction) > 1
    ranking = _ranking(predictions, groups, compared)
    eval_set = EvaluationSet(predictions.labels, predictions.class_names, ranking.groups)
    own = predictions.outcome(method)
    block: dict[str, Any] = {
        "schema": 1,
        "method": method,
        "data": {"name": path.stem, "sizes": {"test": len(predictions.labels)}},
        "seeds": [{"seed": s} for s in range(len(own.correct))],
        **ranking.origin,
        "remarks": [ranking.remark] if ranking.remark else [],
        "test": summarise(own, eval_set),
        "reference": None,
        "versus": None,
        "diagnostics": _diagnostics(predictions, [method, ERM] if compared else [method], ranking.groups),
    }
    if compared:
        erm = predictions.outcome(ERM)
        block |= {"reference": summarise(erm, eval_set), "versus": gain_over(own, erm, eval_set)}
    return block


def _ranking(predictions: ExternalPredictions, groups: str | None, compared: bool) -> Ranking:
    """The groups that were asked for; else by the test accuracy of erm; else all classes in one group."""
    source = group_source("paper" if groups is None else groups)
    if source == "crossfit" or source in COUNT_GROUPS:
        raise UserError(
            "predictions have no training images to rank or count classes by; "
            "give a run or a file with --groups"
        )
    found: Groups | None = grouping.given(source, predictions.class_names)
    if found is None and not compared:
        remark = "nothing ranks the classes; give a run or a file with --groups to see groups"
        return Ranking({"all": list(range(len(predictions.class_names)))}, "none", remark=remark)
    if found is None:
        correct = predictions.outcome(ERM).correct
        counts = metrics.count(correct, predictions.labels, len(predictions.class_names))
        found = thirds(np.nan_to_num(counts.accuracy))
    where = grouping.origin(source)
    return Ranking(dict(found), str(where["groups_by"]), where["groups_from"], grouping.remark(source))


def _diagnostics(predictions: ExternalPredictions, methods: list[str], groups: Groups) -> dict[str, Any]:
    """All diagnostics that scores allow; without scores, the confusions."""
    models = {m: Model(predictions.scores[m][0]) for m in methods if m in predictions.scores}
    own = methods[0]
    if own not in models:  # confusions use only the argmax and the confidence, which these logits have too
        known = predictions.probability.get(own)
        confidence = np.ones(len(predictions.labels)) if known is None else np.nan_to_num(known[0])
        logits = np.zeros((len(confidence), len(predictions.class_names)))
        logits[np.arange(len(confidence)), predictions.prediction[own][0]] = 1 + confidence
        models = {own: Model(logits)}
    block = diagnose(
        models,
        labels=predictions.labels,
        ids=predictions.ids,
        class_names=predictions.class_names,
        groups=groups,
    )
    return block if predictions.scores else {**block, "methods": {}}
