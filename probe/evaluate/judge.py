"""The `test` and `versus` blocks of result.json: what a method achieved, and what it gained over another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluate import groups as grouping
from probe.evaluate import metrics, significance
from probe.evaluate.significance import LEVEL, Draws

Groups = Mapping[str, list[int]]


@dataclass(frozen=True)
class Outcome:
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
    def weightings(self) -> dict[str, NDArray[np.float64]]:
        """Overall, mean per class and each group, as weights of the class accuracies."""
        return significance.weightings(self.n, self.groups)

    @property
    def count_groups(self) -> dict[str, dict[str, list[int]]]:
        """Groups by training count, scheme by scheme; none when the counts are unknown."""
        return {} if self.train_counts is None else grouping.by_count(self.train_counts)

    def draw(self, values: NDArray[np.generic]) -> Draws:
        return significance.draw(values, self.labels, len(self.class_names))


def judge(outcome: Outcome, bench: Bench) -> dict[str, Any]:
    """Accuracy overall, by group and by class, each with a 95 % interval."""
    counts = metrics.count(outcome.hits, bench.labels, len(bench.class_names))
    drawn = bench.draw(outcome.hits)
    spread = {k: significance.estimate(drawn, w) for k, w in bench.weightings.items()}
    everything = len(bench.labels)
    return {
        **metrics.overall(counts),
        "top5": None if outcome.hits5 is None else float(outcome.hits5.mean()),
        "ece": _calibration(outcome, np.ones(len(bench.labels), dtype=bool)),
        "ci": _interval(spread["overall"], everything),
        "mean_per_class_ci": _interval(spread["mean_per_class"], everything),
        **metrics.extremes(counts, bench.class_names),
        "groups": _groups(outcome, bench, bench.groups, drawn),
        "count_groups": {s: _groups(outcome, bench, g, drawn) for s, g in bench.count_groups.items()},
        "by_class": _by_class(counts, bench),
    }


def _groups(outcome: Outcome, bench: Bench, groups: Groups, drawn: Draws) -> dict[str, Any]:
    """Each group's accuracy (a mean over its classes), calibration and members; a group may be empty."""
    table = {}
    weightings = significance.weightings(bench.n, groups)
    for name, members in groups.items():
        e = significance.estimate(drawn, weightings[name])
        table[name] = {
            "accuracy": None if e is None else e.mean,
            "ci": _interval(e, int(bench.n[members].sum())),
            "ece": _calibration(outcome, np.isin(bench.labels, members)),
            "classes": [bench.class_names[k] for k in members],
        }
    return table


def _interval(e: significance.Estimate | None, n: int) -> list[float] | None:
    """The 95 % interval of an accuracy on n images; no accuracy is below 0 or above 1.

    Where all images are right, or all wrong, resampling shows no spread at all: Wilson's interval stands in.
    """
    if e is None:
        return None
    if e.ci[0] == e.ci[1]:
        return [float(v) for v in metrics.wilson(np.array([e.mean * n]), np.array([n]))[0]]
    return [min(max(v, 0.0), 1.0) for v in e.ci]


def _calibration(outcome: Outcome, chosen: NDArray[np.bool_]) -> float | None:
    """Mean over seeds of the calibration error of the chosen images."""
    if outcome.confidence is None or not chosen.any():
        return None
    pairs = zip(outcome.confidence, outcome.hits, strict=True)
    return float(np.mean([metrics.calibration_error(c[chosen], h[chosen]) for c, h in pairs]))


def _by_class(counts: metrics.ClassCounts, bench: Bench) -> list[dict[str, Any]]:
    group_of = {k: name for name, members in bench.groups.items() for k in members}
    intervals = metrics.wilson(counts.right, counts.n)
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


def versus(outcome: Outcome, reference: Outcome, bench: Bench) -> dict[str, Any]:
    """The paired gain of `outcome` over `reference`: overall, by group and by class."""
    difference = outcome.hits.astype(np.int8) - reference.hits.astype(np.int8)
    drawn = bench.draw(difference)
    schemes = {s: significance.weightings(bench.n, g) for s, g in bench.count_groups.items()}
    return {
        "method": reference.method,
        "seeds": len(outcome.hits),  # 1: the intervals come from the test images alone
        "gain": {name: _gain(drawn, w) for name, w in bench.weightings.items()},
        "count_gain": {
            scheme: {name: _gain(drawn, table[name]) for name in bench.count_groups[scheme]}
            for scheme, table in schemes.items()
        },
        "by_class": _class_gains(difference, drawn, bench),
    }


def _gain(drawn: Draws, weight: NDArray[np.float64]) -> dict[str, Any] | None:
    e = significance.estimate(drawn, weight)
    if e is not None and e.mean != 0 and e.ci[0] == e.ci[1]:
        e = significance.without_spread(drawn, weight)
    return None if e is None else {"mean": e.mean, "ci": list(e.ci), "p": e.p, "clear": e.clear}


def _class_gains(difference: NDArray[np.int8], drawn: Draws, bench: Bench) -> list[dict[str, Any]]:
    """Each class by an exact test of its own, and Holm's correction over all of them."""
    num_classes = len(bench.class_names)
    vote = np.sign(difference.sum(axis=0, dtype=np.int64))
    better, worse = (np.bincount(bench.labels[vote == s], minlength=num_classes) for s in (1, -1))
    known = np.flatnonzero(bench.n)
    p = np.ones(num_classes)
    p[known] = significance.mcnemar(better[known], worse[known])
    adjusted = np.ones(num_classes)
    adjusted[known] = significance.holm(p[known])
    table = []
    for k, name in enumerate(bench.class_names):
        only = np.zeros(num_classes)
        only[k] = bench.n[k] > 0
        e = _gain(drawn, only)
        table.append(
            {
                "name": name,
                "mean": None if e is None else e["mean"],
                "ci": None if e is None else e["ci"],
                "p": float(p[k]),
                "p_holm": float(adjusted[k]),
                "clear": bool(adjusted[k] < LEVEL),
            }
        )
    return table
