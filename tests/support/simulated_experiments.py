"""Made-up experiments whose truth is known: how often do intervals cover it, do equal methods look different?

A probit model: every image has a difficulty that all methods and seeds share, a seed shifts its method's
score on a class (or on all classes), and each prediction has luck of its own. Class accuracies are exact.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr, ndtri

from probe.evaluation.summary import EvaluationSet, MethodOutcome, gain_over, summarise

WHAT = ("overall", "mean_per_class", "easy", "medium", "hard")
SMALL = (0.05, 0.01, 0.001)  # levels at which p-values of equal methods are counted
IMAGES = 1.0  # spread of the images' difficulty beside a prediction's own luck


@dataclass(frozen=True)
class Cell:
    """One kind of experiment."""

    classes: int
    images: int  # of a class; the geometric middle where classes differ in size
    accuracy: float  # the middle of the classes'
    seeds: int
    spread: float = 0.0  # standard deviation between seeds of a class's accuracy, in points
    alike: bool = False  # does a seed shift all classes by the same, or each by its own amount?
    balanced: bool = True
    gain: float = 0.02  # what the better method has more, in each class

    @property
    def sizes(self) -> np.ndarray:
        if self.balanced:
            return np.full(self.classes, self.images)
        spread = 10 ** np.linspace(0.5, -0.5, self.classes)
        return np.maximum(
            np.round(self.images * spread[np.arange(self.classes) * 7 % self.classes]), 1
        ).astype(int)

    @property
    def border(self) -> bool:
        """Do seeds not differ at all, or are fewer than 20 errors expected in a third of the classes?"""
        third = self.images * max(self.classes // 3, 1)
        return self.spread == 0 or round(third * (1 - self.accuracy)) < 20

    def levels(self, more: float = 0.0) -> np.ndarray:
        """The class accuracies; with `more`, those of a better method."""
        around = min(0.1, 0.5 * (1 - self.accuracy))
        level = self.accuracy + np.linspace(around, -around, self.classes)
        return np.minimum(level + more, level + 0.5 * (1 - level))

    def eval_set(self) -> EvaluationSet:
        labels = np.repeat(np.arange(self.classes), self.sizes)
        thirds = zip(("easy", "medium", "hard"), np.array_split(np.arange(self.classes), 3), strict=True)
        groups = {name: [int(k) for k in part] for name, part in thirds}
        return EvaluationSet(labels, tuple(map(str, range(self.classes))), groups)


@dataclass
class Counts:
    """What `trials` experiments showed."""

    trials: int = 0
    covered: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of accuracies and of gains
    optimistic: int = 0  # intervals of a group's accuracy that lie above the truth
    pessimistic: int = 0
    small: dict[float, int] = field(default_factory=lambda: defaultdict(int))  # p <= a where nothing differs
    small_classes: dict[float, int] = field(default_factory=lambda: defaultdict(int))  # the same of classes
    smallest: float = 1.0  # of all
    tests: int = 0  # p-values counted in `small`
    class_tests: int = 0
    false_classes: int = 0  # tables with a class called clear where nothing differs
    false_groups: int = 0  # the same of overall, mean per class and groups
    split_minds: int = 0  # verdicts that contradict their interval

    def rate(self, name: str) -> float:
        return self.covered[name] / self.trials


def _model(
    cell: Cell, labels: np.ndarray, rng: np.random.Generator, level: np.ndarray, difficulty: np.ndarray
):
    """Correct predictions (S x N) of a method, and the class accuracies that they are to be judged by."""
    density = np.exp(-(ndtri(level) ** 2) / 2) / np.sqrt(2 * np.pi)
    part = np.minimum(cell.spread / 100 / density, 0.95)  # of the score's spread that is the seeds'
    own = np.sqrt(1 + IMAGES**2)
    size = own / np.sqrt(1 - part**2)  # of the whole score, so that the class means are `level` exactly
    shift = rng.normal(size=(cell.seeds, 1 if cell.alike else cell.classes)) * part * size
    center = ndtri(level) * size + shift  # S x K
    correct = rng.random((cell.seeds, len(labels))) < ndtr(difficulty + center[:, labels])
    # One seed shows nothing of the others: its interval is about that one head.
    return correct, level if cell.seeds > 1 else ndtr(center[0] / own)


def run(cell: Cell, trials: int, seed: int) -> Counts:
    rng, eval_set, counts = np.random.default_rng(seed), cell.eval_set(), Counts(trials)
    labels, n = eval_set.labels, eval_set.n
    weights = {"overall": n / n.sum(), "mean_per_class": np.full(cell.classes, 1 / cell.classes)}
    for name, members in eval_set.groups.items():
        weights[name] = np.isin(np.arange(cell.classes), members) / len(members)
    for _ in range(trials):
        difficulty = IMAGES * rng.normal(size=len(labels))
        made = [
            _model(cell, labels, rng, cell.levels(more), difficulty) for more in (0.0, 0.0, cell.gain / 2)
        ]
        plain, equal, better = (MethodOutcome("m", correct) for correct, _ in made)
        truth = [level for _, level in made]
        _count_accuracy(counts, summarise(plain, eval_set), truth[0], weights)
        _count_gain(counts, gain_over(better, plain, eval_set), truth[2] - truth[0], weights)
        null = gain_over(equal, plain, eval_set)
        _count_gain(counts, null, truth[1] - truth[0], weights, "null ")
        if cell.seeds > 1 or cell.spread == 0:
            _count_alarms(counts, null)
    return counts


def _inside(ci: list[float], truth: float) -> bool:
    return ci[0] <= truth <= ci[1]


def _count_accuracy(counts: Counts, result: dict, truth: np.ndarray, weights: dict[str, np.ndarray]) -> None:
    intervals = {"overall": result["ci"], "mean_per_class": result["mean_per_class_ci"]}
    intervals |= {name: group["ci"] for name, group in result["groups"].items()}
    for name, ci in intervals.items():
        value = float(weights[name] @ truth)
        counts.covered[name] += _inside(ci, value)
        if name == "hard":
            counts.optimistic += ci[0] > value
            counts.pessimistic += ci[1] < value
    inside = [_inside(row["ci"], truth[k]) for k, row in enumerate(result["by_class"])]
    counts.covered["class"] += float(np.mean(inside))


def _count_gain(
    counts: Counts, result: dict, truth: np.ndarray, weights: dict[str, np.ndarray], kind: str = ""
) -> None:
    for name, gain in result["gain"].items():
        counts.covered[f"{kind}gain {name}"] += _inside(gain["ci_alone"], float(weights[name] @ truth))
        counts.split_minds += gain["clear"] == _inside(gain["ci"], 0)
    rows = result["by_class"]
    counts.covered[f"{kind}gain class"] += float(
        np.mean([_inside(r["ci_alone"], t) for r, t in zip(rows, truth, strict=True)])
    )
    counts.split_minds += sum(row["clear"] == _inside(row["ci"], 0) for row in rows)


def _count_alarms(counts: Counts, result: dict) -> None:
    p = np.array([result["gain"][name]["p"] for name in WHAT])
    counts.false_groups += any(result["gain"][name]["clear"] for name in WHAT)
    counts.false_classes += any(row["clear"] for row in result["by_class"])
    classes = np.array([row["p"] for row in result["by_class"]])
    counts.smallest = min(counts.smallest, float(p.min()), float(classes.min()))
    counts.tests += len(p)
    counts.class_tests += len(classes)
    for level in SMALL:
        counts.small[level] += int((p <= level).sum())
        counts.small_classes[level] += int((classes <= level).sum())
