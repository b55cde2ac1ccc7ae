"""How a fine-tuning went: from its start, past the frozen probe, to its end, on the same test images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from probe.evaluation import metrics, predictions
from probe.evaluation.summary import EvaluationSet, MethodOutcome, overall_gain
from probe.report.text import format
from probe.train.lr_search import DIVERGED, LEAST

if TYPE_CHECKING:
    from torch import Tensor

    from probe.evaluation.predictions import Predictions
    from probe.probing.problem import Fit

START = "start"
LOSS = 0.005  # of accuracy on held-out rows that is worth a remark
WAYS_OUT = (
    "try a smaller train.lr, fewer train.epochs, train.start=probe, or train.wise=[0,0.5,1], which keeps the "
    "best of start, middle and end on held-out images"
)


def course(
    eval_set: EvaluationSet,
    fits: Sequence[Fit],
    predicted: Sequence[Predictions],
    *,
    end: str,  # what the trained predictions are called
    probe: str | None,  # what the frozen probe's are called; None: there is none worth the name
    starts: Sequence[Tensor],  # seed by seed, N x K scores at step 0; none where the start was random
) -> tuple[dict[str, Any], list[str]]:
    """The `training` block of the result, and the remarks about it."""
    last = predictions.outcome(predicted, eval_set.labels, end)
    frozen = None if probe is None else predictions.outcome(predicted, eval_set.labels, probe)
    rows = [predictions.from_scores(s, eval_set.labels, START, seed) for seed, s in enumerate(starts)]
    first = predictions.outcome(rows, eval_set.labels, START) if rows else None
    before = first or frozen
    gain = None if before is None else overall_gain(last, before, eval_set)
    block = {
        "from": fits[0].record["settings"]["start"],
        "start": _accuracy(first, eval_set),
        "probe": _accuracy(frozen, eval_set),
        "end": _accuracy(last, eval_set),
        "gain": gain,  # of the end over the start, or over the probe where the start was random
        "settings": fits[0].record["settings"],
        "partners": fits[0].record.get("partners"),  # of an image in a batch, where the loss looks at those
    }
    return block, [*_harm(gain, "start" if first else "frozen probe", fits), *_search(fits), *_experts(fits)]


def _accuracy(outcome: MethodOutcome | None, eval_set: EvaluationSet) -> dict[str, float] | None:
    if outcome is None:
        return None
    counts = metrics.count(outcome.correct, eval_set.labels, len(eval_set.class_names))
    return {name: metrics.overall(counts)[name] for name in ("top1", "mean_per_class")}


def _harm(gain: dict[str, Any] | None, before: str, fits: Sequence[Fit]) -> list[str]:
    """Training that made things worse says so: clearly on the test images, or on held-out rows."""
    if gain is not None and gain["clear"] and gain["mean"] < 0:
        lost = format.gained(gain).lstrip(format.MINUS)
        return [f"training ended {lost} points below its {before}; {WAYS_OUT}"]
    held = [fit.record["held_out"] for fit in fits if "held_out" in fit.record]
    fell = sum(row["start"] - row["end"] for row in held) / max(1, len(held))
    if fell > LOSS:
        return [
            f"training ended {format.percent(fell)} points below its start on held-out images; {WAYS_OUT}"
        ]
    return []


def _search(fits: Sequence[Fit]) -> list[str]:
    """Rates that diverged, or do harm of whatever size; that one does for a few steps needs no remark."""
    why = {fit.record["search"]["why"] for fit in fits if "search" in fit.record}
    return [f"learning rate: {reason}" for reason in (DIVERGED, LEAST) if reason in why]


def _experts(fits: Sequence[Fit]) -> list[str]:
    """Experts of which only the first predicts."""
    found = fits[0].record.get("experts")
    if found is None or found["trained"] == found["predict"]:
        return []
    return [
        f"the first of {found['trained']} experts predicts: train.keep=best, train.ema and train.wise keep "
        "the weights of one network; without them the mean of all predicts"
    ]
