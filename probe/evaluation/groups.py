"""Easy, Medium and Hard: thirds of the classes, ranked by a model that is not the one under test.

Ranking classes by the evaluated model's own test accuracy makes any rival look good on "Hard" by regression
to the mean. So the ranking comes from a reference: by default the cross-fitted accuracy of an ERM probe on
the training split, which costs five solves on cached features.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backbones import reading
from probe.errors import UserError, nearest

if TYPE_CHECKING:
    from probe.evaluation.crossfitted import Crossfitted

GROUPS = ("easy", "medium", "hard")
RESERVED = ("overall", "mean_per_class")  # statistics beside the groups in every table

# Groups by training images: (name, smallest count that belongs to it), largest first.
COUNT_SCHEMES = {
    "many/medium/few": (("many", 101), ("medium", 20), ("few", 0)),  # DBM: > 100, 20 to 100, < 20
    "head/torso/tail": (("head", 100), ("torso", 20), ("tail", 0)),  # ELM: >= 100, [20, 100), < 20
}

# (rows to train on, held-out rows) -> class probabilities of the held-out rows
FitPredict = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.floating]]
# (fold, its rows, their class probabilities): is shown every fold while its probabilities are in memory
Keep = Callable[[int, NDArray[np.int64], NDArray[np.floating]], None]


@dataclass(frozen=True)
class Ranking:
    """The groups of the classes, and where they come from."""

    groups: dict[str, list[int]]
    by: str
    source: str | None = None  # the file or the run that defines them
    remark: str | None = None
    crossfitted: Crossfitted | None = None  # every training image; None for networks from scratch

    @property
    def accuracy(self) -> NDArray[np.float64] | None:
        """K: of the plain probe on held-out training images, where it is known."""
        return None if self.crossfitted is None else self.crossfitted.accuracy

    @property
    def origin(self) -> dict[str, str | None]:
        """The same as fields of result.json."""
        return {"groups_by": self.by, "groups_from": self.source}


def thirds(
    accuracy: NDArray[np.float64], tie_break: NDArray[np.float64] | None = None
) -> dict[str, list[int]]:
    """Class indices of each group, easiest first; when K is not a multiple of 3 the easier groups are larger.

    `accuracy` is K. Ties are ordered by `tie_break` (a finer score, higher is easier), then by class.
    """
    num_classes = len(accuracy)
    finer = np.zeros(num_classes) if tie_break is None else tie_break
    order = np.lexsort((np.arange(num_classes), -finer, -accuracy))
    return {name: [int(k) for k in part] for name, part in zip(GROUPS, np.array_split(order, 3), strict=True)}


def folds(labels: NDArray[np.int64], number: int, seed: int) -> NDArray[np.int64]:
    """N: the fold of each row. Every class is dealt out evenly, in a seeded order."""
    rng = np.random.default_rng(seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == k))
        fold[rows] = (np.arange(len(rows)) + rng.integers(number)) % number
    return fold


def crossfit(
    labels: NDArray[np.int64],
    num_classes: int,
    fit_predict: FitPredict,
    *,
    number: int = 5,
    seed: int = 0,
    keep: Keep | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Held-out accuracy and mean probability of the true class, K each.

    `fit_predict(kept, held)` trains on rows `kept` and returns the probabilities (len(held) x K) of `held`.
    """
    correct = np.zeros(len(labels))
    confidence = np.zeros(len(labels))
    fold = folds(labels, number, seed)
    for part in range(number):
        kept, held = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        if len(held) == 0:
            continue
        probability = fit_predict(kept, held)
        if keep is not None:
            keep(part, held, probability)
        correct[held] = probability.argmax(axis=1) == labels[held]
        confidence[held] = probability[np.arange(len(held)), labels[held]]
    return class_mean(correct, labels, num_classes), class_mean(confidence, labels, num_classes)


def class_mean(
    values: NDArray[np.floating] | NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int
) -> NDArray[np.float64]:
    """K: the mean value of the rows of each class; 0 for a class without rows."""
    n = np.bincount(labels, minlength=num_classes)
    return np.asarray(np.bincount(labels, weights=values, minlength=num_classes) / np.maximum(n, 1))


def held_out(
    labels: NDArray[np.int64], probability: NDArray[np.floating], num_classes: int
) -> dict[str, list[int]] | None:
    """Thirds by the accuracy on held-out rows (labels: N, probability: N x K); None if a class has none."""
    if not np.bincount(labels, minlength=num_classes).all():
        return None
    own = probability[np.arange(len(labels)), labels]
    correct = (probability.argmax(axis=1) == labels).astype(np.float64)
    return thirds(class_mean(correct, labels, num_classes), class_mean(own, labels, num_classes))


def by_count(train_counts: NDArray[np.int64]) -> dict[str, dict[str, list[int]]]:
    """Both published groupings by the number of training images; a group may be empty."""
    schemes = {}
    for scheme, bounds in COUNT_SCHEMES.items():
        members: dict[str, list[int]] = {name: [] for name, _ in bounds}
        for k, n in enumerate(train_counts):
            members[next(name for name, least in bounds if n >= least)].append(k)
        schemes[scheme] = members
    return schemes


def from_file(path: Path, class_names: Sequence[str]) -> dict[str, list[int]]:
    """Groups named in a JSON file, `{"easy": ["pug", ...], "hard": [...]}`: every class once."""
    try:
        content = json.loads(reading.content(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read groups from {path}: {error}") from error
    named = isinstance(content, dict) and all(isinstance(v, list) and v for v in content.values())
    if not named or not content:
        raise UserError(f'{path}: groups must be written as {{"easy": ["class", ...], "hard": [...]}}')
    for name in (name for name in content if name in RESERVED or not name.strip()):
        raise UserError(f'{path}: a group cannot be named "{name}"; choose another name')
    where = {name: k for k, name in enumerate(class_names)}
    for name in (str(name) for members in content.values() for name in members):
        if name not in where:
            raise UserError(f'{path}: there is no class "{name}"{nearest(name, class_names)}')
    groups = {group: [where[str(name)] for name in members] for group, members in content.items()}
    check_partition(groups, class_names, str(path))
    return groups


def check_partition(groups: Mapping[str, list[int]], class_names: Sequence[str], where: str) -> None:
    """Refuse groups that do not hold every class (an index into the K names) once; `where` they are given."""
    listed = Counter(k for members in groups.values() for k in members)
    for k in sorted(listed.keys() - range(len(class_names)))[:1]:
        raise UserError(f"{where}: there is no class number {k}; they run from 0 to {len(class_names) - 1}")
    for k, name in enumerate(class_names):
        if listed[k] != 1:
            problem = "in no group" if listed[k] == 0 else "listed more than once"
            raise UserError(f'{where}: class "{name}" is {problem}; name every class once')
