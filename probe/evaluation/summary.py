"""The `test` and `versus` blocks of result.json: a method's accuracies, and its gains over another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probe.evaluation import groups as grouping
from probe.evaluation import metrics, significance
from probe.evaluation.significance import ACCURACY, GAIN, LEVEL, ClassMoments, Estimates

Groups = Mapping[str, list[int]]
WHOLE = ("overall", "mean_per_class")


@dataclass(frozen=True)
class MethodOutcome:
    """One method's predictions on the test split, seed by seed."""

    method: str
    correct: NDArray[np.bool_]  # S x N: is the prediction correct?
    correct_top5: NDArray[np.bool_] | None = None  # S x N: is the true class among the top five?
    confidence: NDArray[np.floating] | None = None  # S x N: probability of the prediction


@dataclass(frozen=True)
class EvaluationSet:
    """What every method is evaluated on: the same test images, classes and groups."""

    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    groups: Groups
    train_counts: NDArray[np.int64] | None = None  # K: adds the groups by training count

    @property
    def n(self) -> NDArray[np.int64]:
        """K: test images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def count_groups(self) -> dict[str, dict[str, list[int]]]:
        """Groups by training images, one entry per scheme; none when the counts are unknown."""
        return {} if self.train_counts is None else grouping.by_count(self.train_counts)

    def estimates(self, m: ClassMoments, groups: Groups) -> dict[str, tuple[Estimates, int] | None]:
        """Overall, mean per class and each group: the estimates and its row; None if it has no images."""
        table = significance.weightings(self.n, groups)
        found = significance.estimates(m, np.stack(list(table.values())))
        return {name: (found, i) if w.any() else None for i, (name, w) in enumerate(table.items())}


def summarise(outcome: MethodOutcome, eval_set: EvaluationSet) -> dict[str, Any]:
    """The `test` block: accuracy overall, by group and by class, each with a 95 % interval."""
    counts = metrics.count(outcome.correct, eval_set.labels, len(eval_set.class_names))
    m = significance.class_moments(outcome.correct, eval_set.labels, len(eval_set.class_names), ACCURACY)
    whole = eval_set.estimates(m, {})
    return {
        **metrics.overall(counts),
        "top5": None if outcome.correct_top5 is None else float(outcome.correct_top5.mean()),
        "ece": _calibration(outcome, np.ones(len(eval_set.labels), dtype=bool)),
        "reliability": _reliability(outcome),
        "ci": _interval(whole["overall"]),
        "mean_per_class_ci": _interval(whole["mean_per_class"]),
        **metrics.extremes(counts, eval_set.class_names),
        "groups": _groups(outcome, eval_set, eval_set.groups, m),
        "count_groups": {s: _groups(outcome, eval_set, g, m) for s, g in eval_set.count_groups.items()},
        "by_class": _by_class(counts, eval_set, m),
    }


def _groups(
    outcome: MethodOutcome, eval_set: EvaluationSet, groups: Groups, m: ClassMoments
) -> dict[str, Any]:
    """Each group's accuracy (a mean over its classes), calibration and members; a group may be empty."""
    found = eval_set.estimates(m, groups)
    return {
        name: {
            "accuracy": None if found[name] is None else _mean(found[name]),
            "ci": _interval(found[name]),
            "ece": _calibration(outcome, np.isin(eval_set.labels, members)),
            "classes": [eval_set.class_names[k] for k in members],
        }
        for name, members in groups.items()
    }


def _mean(found: tuple[Estimates, int] | None) -> float | None:
    return None if found is None else float(found[0].mean[found[1]])


def _interval(found: tuple[Estimates, int] | None) -> list[float] | None:
    return None if found is None else [float(v) for v in found[0].ci[found[1]]]


def _calibration(outcome: MethodOutcome, chosen: NDArray[np.bool_]) -> float | None:
    """Mean over seeds of the calibration error on the chosen images (N booleans)."""
    if outcome.confidence is None or not chosen.any():
        return None
    pairs = zip(outcome.confidence, outcome.correct, strict=True)
    return float(np.mean([metrics.calibration_error(c[chosen], h[chosen]) for c, h in pairs]))


def _reliability(outcome: MethodOutcome) -> list[dict[str, Any]] | None:
    return None if outcome.confidence is None else metrics.reliability(outcome.confidence, outcome.correct)


def _by_class(counts: metrics.ClassCounts, eval_set: EvaluationSet, m: ClassMoments) -> list[dict[str, Any]]:
    group_of = {k: name for name, members in eval_set.groups.items() for k in members}
    intervals = significance.estimates(m, np.eye(len(m.n))).ci
    rows = []
    for k, name in enumerate(eval_set.class_names):
        row = {
            "name": name,
            "n": int(counts.n[k]),
            "accuracy": float(counts.accuracy[k]) if counts.n[k] else None,
            "ci": [float(v) for v in intervals[k]] if counts.n[k] else None,
            "group": group_of[k],
        }
        if eval_set.train_counts is not None:
            row["train_n"] = int(eval_set.train_counts[k])
        rows.append(row)
    return rows


def gain_over(outcome: MethodOutcome, reference: MethodOutcome, eval_set: EvaluationSet) -> dict[str, Any]:
    """The paired gain of `outcome` over `reference`: overall, by group and by class.

    Every table of gains is corrected for its size: the chance of any false alarm in it is at most 5 %.
    """
    m = _differences(outcome, reference, eval_set)
    return {
        "method": reference.method,
        "seeds": len(outcome.correct),  # 1: the intervals are about these two heads only
        "gain": _gains(eval_set, m, eval_set.groups, (*WHOLE, *eval_set.groups)),
        "count_gain": {
            scheme: _gains(eval_set, m, groups, tuple(groups))
            for scheme, groups in eval_set.count_groups.items()
        },
        "by_class": _class_gains(m, eval_set),
    }


def overall_gain(outcome: MethodOutcome, reference: MethodOutcome, eval_set: EvaluationSet) -> dict[str, Any]:
    """The overall gain alone, which needs no correction."""
    table = significance.weightings(eval_set.n, {})
    return gain(significance.estimates(_differences(outcome, reference, eval_set), table["overall"][None]), 0)


def _differences(outcome: MethodOutcome, reference: MethodOutcome, eval_set: EvaluationSet) -> ClassMoments:
    difference = outcome.correct.astype(np.int8) - reference.correct.astype(np.int8)
    return significance.class_moments(difference, eval_set.labels, len(eval_set.class_names), GAIN)


def _gains(
    eval_set: EvaluationSet, m: ClassMoments, groups: Groups, names: tuple[str, ...]
) -> dict[str, Any]:
    """The named gains, Holm-corrected for their number; None for those without images."""
    found = eval_set.estimates(m, groups)
    gains = {name: gain(*row) for name in names if (row := found[name]) is not None}
    adjusted = significance.holm([gain["p"] for gain in gains.values()])
    known = {name: corrected(g, float(p)) for (name, g), p in zip(gains.items(), adjusted, strict=True)}
    return {name: known.get(name) for name in names}


def gain(e: Estimates, index: int) -> dict[str, Any]:
    """A gain, its interval, and its parts, from which a table can correct it for the table's size."""
    p = float(e.p[index])
    ci = [float(v) for v in e.ci[index]]
    return {"mean": float(e.mean[index]), "ci": ci, "p": p, "clear": p < LEVEL, "parts": e.parts(index)}


def corrected(gain: Mapping[str, Any], p_holm: float) -> dict[str, Any]:
    """A gain as one of many: verdict and interval after Holm's correction; `ci_alone` is uncorrected.

    A gain that was already corrected, for a smaller table, is corrected again from `ci_alone`.
    """
    alone, clear = list(gain.get("ci_alone", gain["ci"])), p_holm < LEVEL
    if gain.get("parts"):
        e = significance.from_parts(gain["mean"], gain["parts"])
        ci = [float(v) for v in e.interval(significance.corrected_level(gain["p"], p_holm))[0]]
    else:  # results of earlier releases have no parts: widen just enough to agree with the verdict
        ci = alone if clear else [min(alone[0], 0.0), max(alone[1], 0.0)]
    return {**gain, "ci": ci, "ci_alone": alone, "p_holm": p_holm, "clear": clear}


def _class_gains(m: ClassMoments, eval_set: EvaluationSet) -> list[dict[str, Any]]:
    """Each class's gain, Holm-corrected for the number of classes."""
    e = significance.estimates(m, np.eye(len(m.n)))
    known = m.n > 0
    p, adjusted = np.ones(len(m.n)), np.ones(len(m.n))
    p[known] = e.p[known]
    adjusted[known] = significance.holm(p[known])
    alone, together = e.ci, e.interval(significance.corrected_level(p, adjusted))
    return [
        {
            "name": name,
            "mean": float(e.mean[k]) if known[k] else None,
            "ci": [float(v) for v in together[k]] if known[k] else None,
            "ci_alone": [float(v) for v in alone[k]] if known[k] else None,
            "p": float(p[k]),
            "p_holm": float(adjusted[k]),
            "clear": bool(adjusted[k] < LEVEL),
        }
        for k, name in enumerate(eval_set.class_names)
    ]


class Classifier(Protocol):
    """A fitted classifier, as scikit-learn has them; its `method`, if any, names it in the result."""

    @property
    def classes_(self) -> ArrayLike:
        """K class indices, in the order of the columns of `predict_proba`."""

    def predict_proba(self, X: ArrayLike) -> NDArray[np.floating]:
        """N x K probabilities."""


class LabelledSplit(Protocol):
    """The features of a split, such as `probe.features.extract` returns."""

    @property
    def X(self) -> ArrayLike:
        """N x D."""

    @property
    def y(self) -> NDArray[np.int64]:
        """N labels."""

    @property
    def class_names(self) -> Sequence[str]:
        """K."""


def evaluate(
    classifier: Classifier,
    features: LabelledSplit,
    *,
    groups: Groups | None = None,
    versus: Classifier | None = None,
) -> dict[str, Any]:
    """The `test` block of a result, and the gain over another classifier, on a test split's features.

    `groups` maps names to class indices, e.g. a ranking by `probe.evaluation.groups.crossfit`; by default all
    classes are one group, because ranking them by the evaluated classifier itself would flatter its rivals.
    """
    if groups is None:
        groups = {"all": list(range(len(features.class_names)))}
    grouping.check_partition(groups, features.class_names, "groups")
    eval_set = EvaluationSet(features.y, tuple(features.class_names), groups)

    def outcome(fitted: Classifier) -> MethodOutcome:
        order = np.argsort(-fitted.predict_proba(features.X), axis=1, kind="stable")
        ranked = np.asarray(fitted.classes_)[order]
        return MethodOutcome(
            getattr(fitted, "method", type(fitted).__name__),
            correct=(ranked[:, 0] == features.y)[None],
            correct_top5=(ranked[:, :5] == features.y[:, None]).any(axis=1)[None],
        )

    mine = outcome(classifier)
    block = {"test": summarise(mine, eval_set), "versus": None}
    return block if versus is None else {**block, "versus": gain_over(mine, outcome(versus), eval_set)}
