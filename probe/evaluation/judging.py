"""What a choice is judged by: statistics of held-out predictions, and the best of several candidates.

Classes are ranked and judged by different images: each fold has groups of its own, ranked by the
reference's predictions of the *other* folds. Judged by the images that rank them, the hard classes of an
unlucky draw would look better under any rival (regression to the mean), and a choice would chase that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError, nearest
from probe.evaluation import metrics, significance, summary
from probe.evaluation.groups import GROUPS, class_mean, thirds

WORST = "worst_tenth"
# Of the words that a recipe uses: the statistic that is as large as possible.
STATISTICS = {"overall": "overall", "mean-per-class": "mean_per_class", "hard": "hard", "worst-tenth": WORST}
AUTO, BUDGET = "auto", "budget"
OBJECTIVES = (AUTO, *STATISTICS, BUDGET)
METRICS = {
    "accuracy": "overall",
    "mean_per_class": "mean-per-class",
}  # what `auto` means, by a data set's metric
EQUAL = 9  # decimals beyond which two scores differ by rounding only
DOUBT = 0.001  # the level at which predictions are better than chance; with any signal they are far beyond


@dataclass(frozen=True)
class Judge:
    """Images that judge, with the groups of each fold of them.

    A statistic is a weighted mean of `correct` (n: is the image's held-out prediction right?), except the
    worst tenth of the classes, whichever they are.
    """

    labels: NDArray[np.int64]  # n
    fold: NDArray[np.int64]  # n, in 0..F-1
    num_classes: int
    groups: tuple[Mapping[str, list[int]], ...]  # F: easy, medium and hard, ranked without the fold's images

    @classmethod
    def ranked(
        cls,
        labels: NDArray[np.int64],
        num_classes: int,
        fold: NDArray[np.int64],
        correct: NDArray[np.bool_],
        confidence: NDArray[np.floating],
    ) -> Judge:
        """Groups by a reference: its held-out `correct`, and its probability of the true class, n each.

        >>> judge = Judge.ranked(y, 37, fold, reference.correct(y), reference.confidence)
        >>> judge.score(candidate.correct(y), "hard")
        """
        made = []
        for part in range(int(fold.max()) + 1):
            others = fold != part
            own = labels[others]
            accuracy, finer = (
                class_mean(values[others], own, num_classes) for values in (correct, confidence)
            )
            made.append(thirds(accuracy, finer))
        return cls(labels, fold, num_classes, tuple(made))

    @cached_property
    def _weights(self) -> dict[str, NDArray[np.float64]]:
        n = np.bincount(self.labels, minlength=self.num_classes)
        table = {
            "overall": np.full(len(self.labels), 1 / len(self.labels)),
            "mean_per_class": 1 / (n[self.labels] * (n > 0).sum()),
        }
        return table | {name: self._group_weights(name) for name in GROUPS}

    def _group_weights(self, group: str) -> NDArray[np.float64]:
        """Folds count alike, in a fold its classes, in a class its images; what has no image is left out."""
        weights = np.zeros(len(self.labels))
        for part, groups in enumerate(self.groups):
            rows = np.flatnonzero((self.fold == part) & np.isin(self.labels, groups[group]))
            n = np.bincount(self.labels[rows], minlength=self.num_classes)
            weights[rows] = 1 / (n[self.labels[rows]] * max((n > 0).sum(), 1))
        held = max(weights.sum(), 1)  # the number of folds that hold such images
        return np.asarray(weights / held, dtype=np.float64)

    def weights(self, statistic: str) -> NDArray[np.float64]:
        """n numbers with sum 1: what each image counts for "overall", "mean_per_class" or a group."""
        found = self._weights[statistic]
        if not found.any():
            raise UserError(
                f"no image of a class of the {statistic} third is left to judge by: "
                "choose another select, or add training images"
            )
        return found

    def score(self, correct: NDArray[np.bool_], statistic: str) -> float:
        """The statistic of n predictions, as a fraction; "worst_tenth" too."""
        if statistic != WORST:
            return float(self.weights(statistic) @ correct)
        accuracy = metrics.count(correct, self.labels, self.num_classes).accuracy
        return metrics.worst_tenth(accuracy[~np.isnan(accuracy)])

    def only(self, images: NDArray[np.bool_]) -> Judge:
        """The same groups, judged by these images alone (n booleans)."""
        return replace(self, labels=self.labels[images], fold=self.fold[images])

    def gains(
        self, correct: NDArray[np.bool_], before: NDArray[np.bool_], statistics: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """How much better n predictions are than others: a mean with a 95 % interval and a p-value for
        each statistic.

        The images of a class in a fold are a sample of their own, because groups differ from fold to fold.
        What the folds' heads share, most of their training images, is not in the interval.
        """
        cells, number = self.fold * self.num_classes + self.labels, self.num_classes * len(self.groups)
        difference = correct.astype(np.int8) - before.astype(np.int8)
        moments = significance.class_moments(difference[None], cells, number, significance.GAIN)
        weights = [np.bincount(cells, self.weights(name), minlength=number) for name in statistics]
        found = significance.estimates(moments, np.stack(weights))
        return {name: summary.gain(found, i) for i, name in enumerate(statistics)}

    def above_chance(self, correct: NDArray[np.bool_]) -> bool:
        """Is the mean per class beyond doubt (99.9 %) above 1 / K, which any constant answer has?

        Where it is not, more right answers in some classes only mean that these are answered more often.
        """
        right = correct[None].astype(np.int8)
        moments = significance.class_moments(right, self.labels, self.num_classes, significance.ACCURACY)
        present = moments.n > 0
        found = significance.estimates(moments, (present / present.sum())[None])
        return bool(found.interval(DOUBT)[0, 0] > 1 / present.sum())

    def scores(self, correct: NDArray[np.bool_]) -> dict[str, float]:
        """Every statistic that has an image, by name."""
        names = [name for name, weights in self._weights.items() if weights.any()]
        return {name: self.score(correct, name) for name in (*names, WORST)}

    def check(self, objective: Objective) -> None:
        """Refuse an objective that no image can judge."""
        for name in objective.statistics:
            if name != WORST:
                self.weights(name)


@dataclass(frozen=True)
class Objective:
    """What a choice maximises, in a recipe's words; `budget` is in percentage points.

    "budget" is the best accuracy on hard classes among the candidates whose mean per class is at most
    `budget` points below the best candidate's.
    """

    name: str
    budget: float = 0.5

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES[1:]:
            raise UserError(f'select is "{self.name}"{nearest(self.name, OBJECTIVES)}')
        if not self.budget >= 0:
            raise UserError(f"select.budget must be at least 0 points, not {self.budget:g}")

    @classmethod
    def of(cls, name: str, metric: str, budget: float = 0.5) -> Objective:
        """The same with `auto` resolved to the data set's metric."""
        return cls(METRICS[metric] if name == AUTO else name, budget)

    @property
    def statistics(self) -> tuple[str, ...]:
        """What a candidate is judged by; what is as large as possible comes last."""
        return ("mean_per_class", "hard") if self.name == BUDGET else (STATISTICS[self.name],)

    @property
    def goals(self) -> tuple[Objective, ...]:
        """What to search for, one after the other: a budget counts from the best mean per class."""
        return (Objective("mean-per-class"), self) if self.name == BUDGET else (self,)

    def best(self, scores: Sequence[Mapping[str, float]], l2s: Sequence[float]) -> int:
        """Which candidate: `scores` has the statistics of each, `l2s` its l2.

        Of equal ones the strongest penalty wins, which is the simplest model, and then the first.
        """
        aim = self.statistics[-1]
        allowed = list(range(len(scores)))
        if self.name == BUDGET:
            least = max(row["mean_per_class"] for row in scores) - self.budget / 100
            allowed = [i for i in allowed if round(scores[i]["mean_per_class"] - least, EQUAL) >= 0]
        return max(allowed, key=lambda i: (round(scores[i][aim], EQUAL), l2s[i], -i))
