"""The result of a fitted recipe: every block of result.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core.threads import free_threads
from probe.errors import UserError
from probe.evaluation import predictions, several_labels
from probe.evaluation.diagnostics import training_bias
from probe.evaluation.diagnostics.diagnose import LabelledFeatures, Model, diagnose
from probe.evaluation.diagnostics.training_bias import TrainingBias
from probe.evaluation.groups import Ranking
from probe.evaluation.summary import Groups, gain_over, summarise
from probe.heads.fitted import FittedHead, OnScaled
from probe.probing.post_hoc import calibration
from probe.probing.problem import Fit, ProbeProblem
from probe.report.text import format
from probe.runs import attribute_groups, reference
from probe.runs.experiment import Experiment
from probe.runs.metadata import describe, remarks_and_margins
from probe.runs.reference import ERM, PROBE
from probe.runs.strategy import FittedMethod
from probe.runs.training_summary import course

FIRST = "first stage"  # what its predictions are called beside those of the second
MOST_LOGITS = 20_000_000  # of training images that diagnostics look at: CIFAR-100 has five million
BLOCK = 1_000_000  # of them at a time


def evaluate(e: Experiment, ranking: Ranking) -> dict[str, Any]:
    """Everything but the diagnostics and the timing."""
    said = (reference.remark(e.recipe, e.trained), ranking.remark)
    result = {
        **describe(e),
        **ranking.origin,
        **remarks_and_margins(e, said, ranking.accuracy),
        **accuracies(e, ranking.groups),
    }
    if e.fitted.first_scores:
        result["stage"] = second_stage(e, ranking.groups)
        gain = result["stage"]["gain"]["overall"]
        against = f"{format.gained(gain)} points ({format.gain_interval(gain['ci'])})"
        result["remarks"].append(f"overall against its first stage: {against}")
    if (values := attribute_groups.block(e)) is not None:
        result["attribute"] = values
        result["remarks"] += [said for said in (attribute_groups.remark(e),) if said is not None]
    if e.inputs.several_labels is not None:
        result["real"] = _real(e, e.inputs.several_labels, ranking.groups)
        result["remarks"].append(several_labels.remark(result["real"]))
    if e.recipe.finetune:
        result["training"], remarks = course(
            e.eval_set(ranking.groups),
            e.fitted.fits,
            e.predictions,
            end=e.fitted.name,
            probe=ERM if e.versus == PROBE else None,
            starts=e.fitted.start_scores,
        )
        result["remarks"] += remarks
    return result


def accuracies(e: Experiment, groups: Groups) -> dict[str, Any]:
    """The `test`, `reference` and `versus` blocks."""
    eval_set = e.eval_set(groups)
    own = predictions.outcome(e.predictions, e.test.y, e.fitted.name)
    block: dict[str, Any] = {"test": summarise(own, eval_set), "reference": None, "versus": None}
    if e.versus is None:
        return block
    erm = predictions.outcome(e.predictions, e.test.y, ERM)
    about = {"how": e.versus, "run": None if e.trained is None else e.trained.name}
    return {
        **block,
        "reference": summarise(erm, eval_set),
        "versus": {**gain_over(own, erm, eval_set), **about},
    }


def second_stage(e: Experiment, groups: Groups) -> dict[str, Any]:
    """The `stage` block: what a second stage changed, against the head that it started from."""
    eval_set, labels = e.eval_set(groups), torch.from_numpy(e.test.y)
    pairs = list(zip(e.fitted.first_scores, e.fitted.scores, strict=True))
    first = replace(e.fitted, name=FIRST, scores=[before for before, _ in pairs])
    before = predictions.outcome(first.predictions(e.test.y), e.test.y, FIRST)
    own = predictions.outcome(e.own_predictions, e.test.y, e.fitted.name)
    gained = gain_over(own, before, eval_set)
    weights = [_array(head.tensors.get("weight")) for head in _heads(e.fitted.fits[0])]
    return {
        "first": None if e.inputs.first is None else e.inputs.first.name,
        "before": summarise(before, eval_set),
        "gain": gained["gain"],
        "count_gain": gained["count_gain"],
        "calibration": {
            when: [calibration(pair[place], labels) for pair in pairs]  # one per seed
            for place, when in enumerate(("before", "after"))
        },
        "weight_norms": {
            when: None if w is None else [float(f"{n:.6g}") for n in np.linalg.norm(w, axis=1)]
            for when, w in zip(("before", "after"), weights, strict=True)
        },
    }


def _heads(fit: Fit) -> tuple[FittedHead, FittedHead]:
    assert fit.first is not None, "only asked for where there is a first head"
    return fit.first, fit.head


def _real(e: Experiment, labels: several_labels.SeveralLabels, groups: Groups) -> dict[str, Any]:
    """The `real` block: the same by several right answers of each test image."""
    accepted = labels.accepted(e.test.ids, len(e.test.class_names))
    names = [e.fitted.name] if e.versus is None else [e.fitted.name, ERM]
    return several_labels.evaluate(labels, accepted, e.predictions, e.eval_set(groups), names)


@free_threads()
def diagnostics(e: Experiment, groups: Groups, margins: Mapping[str, Any] | None) -> dict[str, Any]:
    """The `diagnostics` block, of the first seed; a network from scratch has no frozen features."""
    models = {method.name: _model(e, method) for method in e.methods}
    train = LabelledFeatures(e.problem.crops, e.problem.labels)
    test = LabelledFeatures(e.problem.head_scaling.lazily(e.test.X), e.test.y)
    return diagnose(
        models,
        labels=e.test.y,
        ids=e.test.ids,
        class_names=e.problem.class_names,
        groups=groups,
        margins=None if margins is None else margins["by_class"],
        train=None if e.recipe.from_scratch else train,
        test=None if e.recipe.from_scratch else test,
    )


def _model(e: Experiment, method: FittedMethod) -> Model:
    """A method's first head as the diagnostics look at it."""
    head, tuned = method.fits[0].head, method.tuned[0] if method.tuned else None
    start = method.fits[0].first if tuned is None else tuned.start
    return Model(
        method.scores[0].numpy(),
        _array(head.tensors.get("weight")),
        before=None if start is None else _array(start.tensors.get("weight")),
        on_train=_on_train(e.problem, head) if tuned is None else None,
    )


def _on_train(problem: ProbeProblem, head: FittedHead) -> TrainingBias | None:
    """Prediction bias on the training images; None where that would cost as much as the probe itself."""
    n, k = problem.images, problem.num_classes
    if head.kind not in ("linear", "cosine") or n * k > MOST_LOGITS:
        return None
    scores, parts = OnScaled(head), np.array_split(np.arange(n), -(-n * k // BLOCK))
    blocks = ((problem.logits(scores, rows).numpy(), problem.labels[rows]) for rows in parts)
    return training_bias.of_blocks(blocks, k)


def _array(tensor: Tensor | None) -> NDArray[np.floating] | None:
    return None if tensor is None else tensor.numpy()


def check_finite(result: Mapping[str, Any]) -> None:
    """Refuse a result that holds NaN or infinity: weights can grow too large for any sum of them."""
    bad = next(_not_finite(result, ""), None)
    if bad is not None:
        raise UserError(
            f"training ended with weights so large that the result is not finite ({bad}), so nothing was "
            "written. Try a smaller train.lr, train.clip=1, or a larger solver.l2"
        )


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from _not_finite(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path
