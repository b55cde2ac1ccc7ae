"""Look at these first: the hard classes, the likely reason of each, and the images that show it.

    diagnostics.look_first in result.json:
    {
      "images":          training images that plain probes were cross-fitted on,
      "compared":        {"train": images whose neighbours were looked for, "test": likewise},
      "classes":         the hard third by cross-fitted accuracy, the hardest first:
                         [{"name", "accuracy", "train_n",
                           "reasons": [{"reason", "text", "strength"}, ...] strongest first, perhaps none,
                           "text": the first reason, or that there is none,
                           "confused": {"with", "share", "back", "both_ways"},
                           "spread": {"ratio", "above"}, "neighbours": {"own", "others"},
                           "suspects": {"expected", "ci", "count", "images": [{"split", "id", "rival",
                                        "probability", "rival_probability"}, ...]},
                           "near_duplicates": [pair, ...]}, ...],
      "suspects":        {"expected", "count"} of all classes; here and above null is expected where the
                         probes are too often wrong to tell,
      "near_duplicates": {"cosine": from which on, "train": images that have one in train,
                          "test": test images that have one in train, "other_label": pairs with two labels,
                          "pairs": [{"cosine", "images": [{"split", "id", "class"}, the other]}, ...]},
      "forecast":        {"by": signs, "order": class names, hardest first,
                          "correlation": by ranks, with the probes' accuracy}
    }

Reasons come from training images alone, so that they may be acted on; test images are only asked for copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.crossfitted import Crossfitted
from probe.evaluation.diagnostics import features, forecast, neighbourhood, reasons, suspects
from probe.evaluation.diagnostics.neighbourhood import Nearest, Pair
from probe.evaluation.diagnostics.sampling import balanced_rows
from probe.system import progress

if TYPE_CHECKING:
    from torch import Tensor

    from probe.core.scaling import FeatureMatrix

MOST_ROWS = (
    20_000  # images of a split whose neighbours are looked for: a seeded sample, balanced over classes
)
LISTED = 4  # suspects and pairs of a class that are named
PAIRS = 12  # pairs of the whole data set that are named
WORTH_A_BAR = 5_000  # images from which on it takes more than a moment

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NamedImages:
    """Images with their features, as the head sees them."""

    X: NDArray[np.floating] | Tensor | FeatureMatrix  # N x D
    y: NDArray[np.int64]  # N
    ids: Sequence[str]  # N
    splits: Sequence[str]  # N: the split each is from

    def sample(self, seed: int) -> NamedImages:
        """At most MOST_ROWS of them, in memory."""
        rows = balanced_rows(self.y, MOST_ROWS, seed)
        whole = len(rows) == len(self.y)
        X = np.asarray(self.X[:] if whole else self.X[rows], dtype=np.float32)
        return NamedImages(X, self.y[rows], [self.ids[i] for i in rows], [self.splits[i] for i in rows])

    def named(self, row: int, class_names: Sequence[str]) -> dict[str, str]:
        """An image by its split, id and class."""
        return {"split": self.splits[row], "id": self.ids[row], "class": class_names[self.y[row]]}


def look_first(
    said: Crossfitted,
    train: NamedImages,
    test: NamedImages,
    class_names: Sequence[str],
    hard: Sequence[int],
    *,
    zero_shot: Floats | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The block above. `train` are the images of `said`, in its order; `zero_shot` (K) is CLIP's accuracy."""
    found = suspects.find(said)
    space = FeatureSpace.of(train.sample(seed), test.sample(seed), said.num_classes)
    copies = Copies.of(space, class_names)
    facts = gather(said, found, space, copies, class_names)
    rank = {k: place for place, k in enumerate(np.argsort(np.nan_to_num(said.accuracy), kind="stable"))}
    return {
        "images": len(said.labels),
        "compared": {"train": len(space.train.y), "test": len(space.test.y)},
        "classes": [
            {
                **about(facts[k]),
                "suspects": _suspects(k, said, found, train, class_names),
                "near_duplicates": copies.by_class.get(k, []),
            }
            for k in sorted(hard, key=lambda k: rank[k])
        ],
        "suspects": {"expected": _number(_known(found.expected.sum())), "count": len(found.rows)},
        "near_duplicates": copies.summary(),
        "forecast": _forecast(space, said, class_names, zero_shot),
    }


@dataclass(frozen=True)
class FeatureSpace:
    """The compared images, their neighbours, and what these say about each of K classes."""

    train: NamedImages
    test: NamedImages
    near: Nearest  # training images among themselves
    across: Nearest  # the nearest training image of each test image
    spread: Floats  # K, of unit features
    relative_spread: Floats  # K
    own_share: Floats  # K

    @classmethod
    def of(cls, train: NamedImages, test: NamedImages, num_classes: int) -> FeatureSpace:
        """Everything, from features in memory."""
        X, seen = np.asarray(train.X), np.asarray(test.X)
        total = len(X) + len(seen)
        with progress.bar("looking for neighbours", total, "images", show=total > WORTH_A_BAR) as advance:
            near = neighbourhood.nearest(X, advance=advance)
            across = neighbourhood.nearest(X, seen, k=1, advance=advance)
        unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return cls(
            train,
            test,
            near,
            across,
            features.spread(unit, train.y, num_classes),
            forecast.relative_spread(unit, train.y, num_classes),
            neighbourhood.own_share(train.y, near, num_classes),
        )


@dataclass(frozen=True)
class Copies:
    """Near-duplicates; the pairs that are named come in the order in which they are worth looking at."""

    limit: float  # distance
    first: list[dict[str, Any]]  # pairs of the whole data set, as in result.json
    by_class: dict[int, list[dict[str, Any]]]  # pairs in which a class takes part
    other_label: int  # pairs with two labels
    repeated: NDArray[np.int64]  # K: training images that have one in train
    conflicting: NDArray[np.int64]  # K: those that have one under another label
    tested: int  # test images that have one in train

    @classmethod
    def of(cls, space: FeatureSpace, class_names: Sequence[str]) -> Copies:
        """Pairs under two labels first, then those across splits, then the closest."""
        limit = neighbourhood.duplicate_distance(space.near)
        within = list(neighbourhood.close_pairs(space.near, limit, within=True))
        across = list(neighbourhood.close_pairs(space.across, limit, within=False))
        y, num_classes = space.train.y, len(class_names)
        rows = [(space.train, pair) for pair in within] + [(space.test, pair) for pair in across]
        rows.sort(key=lambda row: _order(row[0], row[1], y))
        by_class: dict[int, list[dict[str, Any]]] = {}
        for side, pair in rows:
            for k in {int(side.y[pair.row]), int(y[pair.other])}:
                if len(named := by_class.setdefault(k, [])) < LISTED:
                    named.append(_as_json(side, pair, space.train, class_names))
        ends = np.array([(pair.row, pair.other) for pair in within], dtype=np.int64).reshape(-1, 2)
        odd = ends[y[ends[:, 0]] != y[ends[:, 1]]]
        return cls(
            limit,
            [_as_json(side, pair, space.train, class_names) for side, pair in rows[:PAIRS]],
            by_class,
            other_label=sum(int(side.y[pair.row]) != int(y[pair.other]) for side, pair in rows),
            repeated=np.bincount(y[np.unique(ends)], minlength=num_classes),
            conflicting=np.bincount(y[np.unique(odd)], minlength=num_classes),
            tested=len({pair.row for pair in across}),
        )

    def summary(self) -> dict[str, Any]:
        """The block of the whole data set."""
        return {
            "cosine": float(f"{1 - self.limit:.6g}"),
            "train": int(self.repeated.sum()),
            "test": self.tested,
            "other_label": self.other_label,
            "pairs": self.first,
        }


def _order(side: NamedImages, pair: Pair, y: NDArray[np.int64]) -> tuple[bool, bool, float, int, int]:
    same_label = bool(side.y[pair.row] == y[pair.other])
    return same_label, side.splits[pair.row] != "test", pair.distance, pair.row, pair.other


def _as_json(side: NamedImages, pair: Pair, train: NamedImages, class_names: Sequence[str]) -> dict[str, Any]:
    images = [side.named(pair.row, class_names), train.named(pair.other, class_names)]
    return {"cosine": _number(1 - pair.distance), "images": images}


def gather(
    said: Crossfitted,
    found: suspects.Suspects,
    space: FeatureSpace,
    copies: Copies,
    class_names: Sequence[str],
) -> list[reasons.ClassFacts]:
    """The facts of every class."""
    n = np.bincount(said.labels, minlength=said.num_classes)
    share, accuracy = said.confusions(), said.accuracy
    rival = share.argmax(axis=1)

    def facts(k: int) -> reasons.ClassFacts:
        others = np.arange(len(n)) != k
        spread = _median(space.spread[others])
        known = space.spread[others & ~np.isnan(space.spread)]
        mistaken = float(share[k, rival[k]])
        return reasons.ClassFacts(
            name=class_names[k],
            count=int(n[k]),
            others_count=float(np.median(n[others])) if others.any() else 0.0,
            accuracy=_known(accuracy[k]),
            rival=class_names[rival[k]] if mistaken > 0 else None,
            mistaken=mistaken,
            back=float(share[rival[k], k]),
            spread=_known(space.spread[k] / spread) if spread else None,
            spread_above=float((known < space.spread[k]).mean()) if len(known) else None,
            own_neighbours=_known(space.own_share[k]),
            others_neighbours=_median(space.own_share[others]),
            wrong_labels=_known(found.expected[k]),
            wrong_interval=(_known(found.low[k]), _known(found.high[k])),
            repeated=int(copies.repeated[k]),
            conflicting=int(copies.conflicting[k]),
        )

    return [facts(k) for k in range(len(n))]


def about(facts: reasons.ClassFacts) -> dict[str, Any]:
    """A class's part of the block, without its images."""
    found = reasons.of_class(facts)
    return {
        "name": facts.name,
        "accuracy": facts.accuracy,
        "train_n": facts.count,
        "reasons": found,
        "text": found[0]["text"] if found else reasons.none_found(facts),
        "confused": {
            "with": facts.rival,
            "share": _number(facts.mistaken),
            "back": _number(facts.back),
            "both_ways": facts.both_ways,
        },
        "spread": {"ratio": _number(facts.spread), "above": _number(facts.spread_above)},
        "neighbours": {"own": _number(facts.own_neighbours), "others": _number(facts.others_neighbours)},
    }


def _suspects(
    k: int, said: Crossfitted, found: suspects.Suspects, train: NamedImages, class_names: Sequence[str]
) -> dict[str, Any]:
    rows = found.rows[said.labels[found.rows] == k]
    return {
        "expected": _number(_known(found.expected[k])),
        "ci": [_number(_known(end[k])) for end in (found.low, found.high)],
        "count": len(rows),
        "images": [
            {
                "split": train.splits[i],
                "id": train.ids[i],
                "rival": class_names[said.rival[i]],
                "probability": _number(said.own[i]),
                "rival_probability": _number(said.rival_probability[i]),
            }
            for i in rows[:LISTED].tolist()
        ],
    }


def _forecast(
    space: FeatureSpace, said: Crossfitted, class_names: Sequence[str], zero_shot: Floats | None
) -> dict[str, Any]:
    signs = {"spread": space.relative_spread, "neighbours": 1 - space.own_share}
    if zero_shot is not None:
        signs["zero-shot"] = 1 - zero_shot
    expected = forecast.difficulty(signs)
    order = [k for k in np.argsort(-expected, kind="stable") if not np.isnan(expected[k])]
    return {
        "by": list(signs),
        "order": [class_names[k] for k in order],
        "correlation": forecast.rank_correlation(-expected, said.accuracy),
    }


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _number(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
