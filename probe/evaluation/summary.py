"""The `test` and `versus` blocks of result.json: what a method achieved, and what it gained over another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluation import groups as grouping
from probe.evaluation import metrics, significance
from probe.evaluation.significance import ACCURACY, GAIN, LEVEL, Estimates, Tally

Groups = Mapping[str, list[int]]
WHOLE = ("overall", "mean_per_class")


@dataclass(frozen=True)
class MethodOutcome:
    """One method's predictions on the test split, seed by seed."""

    method: str
    hits: NDArray[np.bool_]  # S x N: is the first guess right?
    hits5: NDArray[np.bool_] | None = None  # S x N: is the truth among the first five?
    confidence: NDArray[np.floating] | None = None  # S x N: probability of the first guess


@dataclass(frozen=True)
class Bench:
    """What every outcome is judged on: the same test images, classes and groups."""

    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    groups: Groups
    train_counts: NDArray[np.int64] | None = None  # K: adds the groups by training count

    @property
    def n(self) -> NDArray[np.int64]:
        """Test images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def count_groups(self) -> dict[str, dict[str, list[int]]]:
        """Groups by training count, scheme by scheme; none when the counts are unknown."""
        return {} if self.train_counts is None else grouping.by_count(self.train_counts)

    def estimates(self, t: Tally, groups: Groups) -> dict[str, tuple[Estimates, int] | None]:
        """Overall, mean per class and each group: the estimates and its row; None where no image is."""
        table = significance.weightings(self.n, groups)
        found = significance.estimates(t, np.stack(list(table.values())))
        return {name: (found, i) if w.any() else None for i, (name, w) in enumerate(table.items())}


def judge(outcome: MethodOutcome, bench: Bench) -> dict[str, Any]:
    """Accuracy overall, by group and by class, each with a 95 % interval."""
    counts = metrics.count(outcome.hits, bench.labels, len(bench.class_names))
    t = significance.tally(outcome.hits, bench.labels, len(bench.class_names), ACCURACY)
    whole = bench.estimates(t, {})
    return {
        **metrics.overall(counts),
        "top5": None if outcome.hits5 is None else float(outcome.hits5.mean()),
        "ece": _calibration(outcome, np.ones(len(bench.labels), dtype=bool)),
        "ci": _interval(whole["overall"]),
        "mean_per_class_ci": _interval(whole["mean_per_class"]),
        **metrics.extremes(counts, bench.class_names),
        "groups": _groups(outcome, bench, bench.groups, t),
        "count_groups": {s: _groups(outcome, bench, g, t) for s, g in bench.count_groups.items()},
        "by_class": _by_class(counts, bench, t),
    }


def _groups(outcome: MethodOutcome, bench: Bench, groups: Groups, t: Tally) -> dict[str, Any]:
    """Each group's accuracy (a mean over its classes), calibration and members; a group may be empty."""
    found = bench.estimates(t, groups)
    return {
        name: {
            "accuracy": None if found[name] is None else _mean(found[name]),
            "ci": _interval(found[name]),
            "ece": _calibration(outcome, np.isin(bench.labels, members)),
            "classes": [bench.class_names[k] for k in members],
        }
        for name, members in groups.items()
    }


def _mean(found: tuple[Estimates, int] | None) -> float | None:
    return None if found is None else float(found[0].mean[found[1]])


def _interval(found: tuple[Estimates, int] | None) -> list[float] | None:
    return None if found is None else [float(v) for v in found[0].ci[found[1]]]


def _calibration(outcome: MethodOutcome, chosen: NDArray[np.bool_]) -> float | None:
    """Mean over seeds of the calibration error of the chosen images."""
    if outcome.confidence is None or not chosen.any():
        return None
    pairs = zip(outcome.confidence, outcome.hits, strict=True)
    return float(np.mean([metrics.calibration_error(c[chosen], h[chosen]) for c, h in pairs]))


def _by_class(counts: metrics.ClassCounts, bench: Bench, t: Tally) -> list[dict[str, Any]]:
    group_of = {k: name for name, members in bench.groups.items() for k in members}
    intervals = significance.estimates(t, np.eye(len(t.n))).ci
    rows = []
    for k, name in enumerate(bench.class_names):
        row = {
            "name": name,
            "n": int(counts.n[k]),
            "accuracy": float(counts.accuracy[k]) if counts.n[k] else None,
            "ci": [float(v) for v in intervals[k]] if counts.n[k] else None,
            "group": group_of[k],
        }
        if bench.train_counts is not None:
            row["train_n"] = int(bench.train_counts[k])
        rows.append(row)
    return rows


def gain_over(outcome: MethodOutcome, reference: MethodOutcome, bench: Bench) -> dict[str, Any]:
    """The paired gain of `outcome` over `reference`: overall, by group and by class.

    Every table of gains is corrected for its size, so that one false call in it has a chance of 5 % at most.
    """
    t = _differences(outcome, reference, bench)
    return {
        "method": reference.method,
        "seeds": len(outcome.hits),  # 1: the intervals are about these two heads alone
        "gain": _gains(bench, t, bench.groups, (*WHOLE, *bench.groups)),
        "count_gain": {
            scheme: _gains(bench, t, groups, tuple(groups)) for scheme, groups in bench.count_groups.items()
        },
        "by_class": _class_gains(t, bench),
    }


def overall_gain(outcome: MethodOutcome, reference: MethodOutcome, bench: Bench) -> dict[str, Any]:
    """One gain that no table surrounds."""
    table = significance.weightings(bench.n, {})
    return _gain(significance.estimates(_differences(outcome, reference, bench), table["overall"][None]), 0)


def _differences(outcome: MethodOutcome, reference: MethodOutcome, bench: Bench) -> Tally:
    difference = outcome.hits.astype(np.int8) - reference.hits.astype(np.int8)
    return significance.tally(difference, bench.labels, len(bench.class_names), GAIN)


def _gains(bench: Bench, t: Tally, groups: Groups, names: tuple[str, ...]) -> dict[str, Any]:
    """The table of the named gains, corrected by Holm for their number; None where no image is."""
    found = bench.estimates(t, groups)
    gains = {name: _gain(*row) for name in names if (row := found[name]) is not None}
    adjusted = significance.holm([gain["p"] for gain in gains.values()])
    known = {name: corrected(g, float(p)) for (name, g), p in zip(gains.items(), adjusted, strict=True)}
    return {name: known.get(name) for name in names}


def _gain(e: Estimates, index: int) -> dict[str, Any]:
    """A gain, its interval, and the parts it was made of, so that a table can correct it for its size."""
    p = float(e.p[index])
    ci = [float(v) for v in e.ci[index]]
    return {"mean": float(e.mean[index]), "ci": ci, "p": p, "clear": p < LEVEL, "parts": e.parts(index)}


def corrected(gain: Mapping[str, Any], p_holm: float) -> dict[str, Any]:
    """A gain among others: verdict and interval after Holm's correction; `ci_alone` is that of one look.

    A gain that was corrected before, for a smaller table, is corrected anew.
    """
    alone, clear = list(gain.get("ci_alone", gain["ci"])), p_holm < LEVEL
    if gain.get("parts"):
        e = significance.from_parts(gain["mean"], gain["parts"])
        ci = [float(v) for v in e.interval(significance.corrected_level(gain["p"], p_holm))[0]]
    else:  # results of earlier releases have none: the least that agrees with the verdict
        ci = alone if clear else [min(alone[0], 0.0), max(alone[1], 0.0)]
    return {**gain, "ci": ci, "ci_alone": alone, "p_holm": p_holm, "clear": clear}


def _class_gains(t: Tally, bench: Bench) -> list[dict[str, Any]]:
    """Each class's gain, corrected by Holm for the number of classes."""
    e = significance.estimates(t, np.eye(len(t.n)))
    known = t.n > 0
    p, adjusted = np.ones(len(t.n)), np.ones(len(t.n))
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
        for k, name in enumerate(bench.class_names)
    ]


def evaluate(
    classifier: Any, features: Any, *, groups: Mapping[str, list[int]] | None = None, versus: Any = None
) -> dict[str, Any]:
    """The `test` block of a result, and the gain over another classifier, on a test split's features.

    `groups` maps names to class indices, e.g. a ranking by `evaluate.groups.crossfit`; by default all classes
    are one group, because ranking them by the judged classifier itself would flatter its rivals.
    """
    everything = {"all": list(range(len(features.class_names)))}
    bench = Bench(features.y, tuple(features.class_names), everything if groups is None else groups)

    def outcome(clf: Any) -> MethodOutcome:
        order = np.argsort(-clf.predict_proba(features.X), axis=1, kind="stable")
        ranked = np.asarray(clf.classes_)[order]
        return MethodOutcome(
            getattr(clf, "method", type(clf).__name__),
            hits=(ranked[:, 0] == features.y)[None],
            hits5=(ranked[:, :5] == features.y[:, None]).any(axis=1)[None],
        )

    mine = outcome(classifier)
    block = {"test": judge(mine, bench), "versus": None}
    return block if versus is None else {**block, "versus": gain_over(mine, outcome(versus), bench)}
