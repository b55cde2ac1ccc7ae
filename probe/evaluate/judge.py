"""The `test` and `versus` blocks of result.json: what a method achieved, and what it gained over another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluate import metrics, significance

Groups = Mapping[str, list[int]]


@dataclass(frozen=True)
class Outcome:
    """One method's predictions on the test split, seed by seed."""

    method: str
    hits: NDArray[np.bool_]  # S x N: is the first guess right?
    hits5: NDArray[np.bool_] | None = None  # S x N: is the truth among the first five?


@dataclass(frozen=True)
class Bench:
    """What every outcome is judged on: the same test images, classes and groups."""

    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    groups: Groups

    @property
    def n(self) -> NDArray[np.int64]:
        """Test images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def weightings(self) -> dict[str, NDArray[np.float64]]:
        """Overall, mean per class and each group, as weights of the class accuracies."""
        return significance.weightings(self.n, self.groups)


def judge(outcome: Outcome, bench: Bench) -> dict[str, Any]:
    """Accuracy overall, by group and by class, each with a 95 % interval."""
    counts = metrics.count(outcome.hits, bench.labels, len(bench.class_names))
    draws = significance.class_draws(outcome.hits[None], bench.labels, len(bench.class_names))[0]
    spread = {k: significance.estimate(draws, counts.accuracy, w) for k, w in bench.weightings.items()}
    group_of = {k: name for name, members in bench.groups.items() for k in members}
    intervals = metrics.wilson(counts.right, counts.n)
    by_class = [
        {
            "name": name,
            "n": int(counts.n[k]),
            "accuracy": float(counts.accuracy[k]) if counts.n[k] else None,
            "ci": [float(v) for v in intervals[k]] if counts.n[k] else None,
            "group": group_of[k],
        }
        for k, name in enumerate(bench.class_names)
    ]
    return {
        **metrics.overall(counts),
        "top5": None if outcome.hits5 is None else float(outcome.hits5.mean()),
        "ci": list(spread["overall"].ci),
        "mean_per_class_ci": list(spread["mean_per_class"].ci),
        **metrics.extremes(counts, bench.class_names),
        "groups": {
            name: {
                "accuracy": spread[name].mean,
                "ci": list(spread[name].ci),
                "classes": [bench.class_names[k] for k in members],
            }
            for name, members in bench.groups.items()
        },
        "by_class": by_class,
    }


def versus(outcome: Outcome, reference: Outcome, bench: Bench) -> dict[str, Any]:
    """The paired gain of `outcome` over `reference`, overall and by group."""
    both = np.stack([reference.hits, outcome.hits])
    num_classes = len(bench.class_names)
    before, after = (metrics.count(h, bench.labels, num_classes).accuracy for h in both)
    draws = significance.class_draws(both, bench.labels, num_classes)
    gain = {}
    for name, weight in bench.weightings.items():
        e = significance.estimate(draws[1] - draws[0], after - before, weight)
        gain[name] = {"mean": e.mean, "ci": list(e.ci), "p": e.p, "clear": e.clear}
    return {"method": reference.method, "gain": gain}
