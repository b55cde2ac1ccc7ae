"""The `attribute` block of result.json: accuracy by the values of an attribute, and the gaps between them.

The images of one class and one value are a *cell*, and play the part that a class plays elsewhere: a value's
accuracy is the weighting of its cells by their images, so intervals and gains come from the same moments.

Two values are two disjoint sets of images, so a gap between them is not paired by images; it is by seeds
(`probe.evaluation.significance.differences`). The plain gap also shows that two values have other classes;
`same_classes` is the mean over the classes that both have, which leaves that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.evaluation import significance
from probe.evaluation.significance import ACCURACY, GAIN, ClassMoments, Estimates
from probe.evaluation.summary import MethodOutcome, corrected, gain

PAIRED = 8  # values up to which every two are compared; beyond, each with all other images
REST = "all others"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AttributeSet:
    """N test images with labels and values of an attribute; the cell of class k and value v is k A + v."""

    name: str
    values: tuple[str, ...]  # A
    codes: NDArray[np.int64]  # N
    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]  # K
    train_counts: NDArray[np.int64] | None = None  # K x A

    @property
    def shape(self) -> tuple[int, int]:
        """K and A."""
        return len(self.class_names), len(self.values)

    def moments(self, values: NDArray[np.generic], scale: significance.Scale) -> ClassMoments:
        """The moments of S x N values by cell."""
        k, a = self.shape
        return significance.class_moments(values, self.labels * a + self.codes, k * a, scale)

    @property
    def counts(self) -> NDArray[np.int64]:
        """K x A: test images of each cell."""
        k, a = self.shape
        return np.bincount(self.labels * a + self.codes, minlength=k * a).reshape(k, a)

    def by_images(self, chosen: Sequence[int]) -> Floats:
        """K A weights: the images of these values, each the same."""
        weight = np.zeros(self.shape)
        weight[:, list(chosen)] = self.counts[:, list(chosen)]
        return np.asarray((weight / max(weight.sum(), 1)).ravel())

    def by_classes(self, chosen: Sequence[int], among: NDArray[np.bool_]) -> Floats:
        """K A weights: these values' images, each of the classes `among` (K) the same."""
        part = np.zeros(self.shape)
        part[:, list(chosen)] = self.counts[:, list(chosen)]
        share = part / np.maximum(part.sum(axis=1, keepdims=True), 1)
        return np.asarray((share * (among / max(among.sum(), 1))[:, None]).ravel())


def evaluate(
    values: AttributeSet, outcome: MethodOutcome, reference: MethodOutcome | None = None
) -> dict[str, Any]:
    """All of the block; gains over the `reference` where there is one."""
    made: dict[str, Any] = {
        "name": values.name,
        "test": _accuracies(values, outcome),
        "reference": None,
        "versus": None,
    }
    if reference is None:
        return made
    difference = outcome.correct.astype(np.int8) - reference.correct.astype(np.int8)
    m = values.moments(difference, GAIN)
    known = [v for v in range(len(values.values)) if values.counts[:, v].any()]
    found = significance.estimates(m, np.stack([values.by_images([v]) for v in known]))
    gains = [gain(found, row) for row in range(len(known))]
    adjusted = significance.holm([g["p"] for g in gains])
    by_value = {
        values.values[v]: corrected(g, float(p)) for v, g, p in zip(known, gains, adjusted, strict=True)
    }
    return made | {
        "reference": _accuracies(values, reference),
        "versus": {"method": reference.method, "gain": by_value},
    }


def _accuracies(values: AttributeSet, outcome: MethodOutcome) -> dict[str, Any]:
    """Every value and every cell with images, the worst of each, and the gaps."""
    m, counts = values.moments(outcome.correct, ACCURACY), values.counts
    found = significance.estimates(m, np.stack([values.by_images([v]) for v in range(len(values.values))]))
    by_value = [
        {"value": name, **_row(found, v, int(counts[:, v].sum()), _trained(values, v))}
        for v, name in enumerate(values.values)
    ]
    by_cell = significance.estimates(m, np.eye(counts.size))
    cells = [
        {
            "class": values.class_names[k],
            "value": values.values[v],
            **_row(by_cell, k * counts.shape[1] + v, int(counts[k, v]), _trained(values, v, k)),
        }
        for k, v in np.argwhere(counts > 0).tolist()
    ]
    return {
        "values": by_value,
        "cells": cells,
        "worst": _worst(by_value),
        "worst_cell": _worst(cells),
        "gaps": _gaps(values, m),
    }


def _row(e: Estimates, row: int, n: int, trained: int | None) -> dict[str, Any]:
    known = n > 0
    made: dict[str, Any] = {
        "n": n,
        "accuracy": float(e.mean[row]) if known else None,
        "ci": [float(v) for v in e.ci[row]] if known else None,
    }
    return made if trained is None else {**made, "train_n": trained}


def _trained(values: AttributeSet, v: int, k: int | None = None) -> int | None:
    if values.train_counts is None:
        return None
    return int(values.train_counts[:, v].sum() if k is None else values.train_counts[k, v])


def _worst(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row with the lowest accuracy; of equal ones, the one with more images."""
    known = [row for row in rows if row["accuracy"] is not None]
    return min(known, key=lambda row: (row["accuracy"], -row["n"]), default=None)


def gaps(values: AttributeSet, correct: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The gaps between the values, of S x N predictions that are correct or not."""
    return _gaps(values, values.moments(correct, ACCURACY))


def _gaps(values: AttributeSet, m: ClassMoments) -> list[dict[str, Any]]:
    """Every two values, Holm-corrected for their number; of many values, each against the others together."""
    counts = values.counts
    known = [v for v in range(counts.shape[1]) if counts[:, v].any()]
    if len(known) < 2:
        return []
    sides = [([a], [b]) for a, b in combinations(known, 2)]
    if len(known) > PAIRED:
        sides = [([v], [w for w in known if w != v]) for v in known]
    plain = significance.differences(
        m, *(np.stack([values.by_images(pair[side]) for pair in sides]) for side in (0, 1))
    )
    shared = [np.asarray(counts[:, a].any(axis=1) & counts[:, b].any(axis=1)) for a, b in sides]
    same = significance.differences(
        m,
        *(
            np.stack([values.by_classes(p[side], s) for p, s in zip(sides, shared, strict=True)])
            for side in (0, 1)
        ),
    )
    found = _corrected(plain, [True] * len(sides))
    fair = _corrected(same, [bool(s.any()) for s in shared])
    return [
        {
            "value": values.values[a[0]],
            "than": values.values[b[0]] if len(b) == 1 else REST,
            **row,
            "same_classes": None if level is None else {"classes": int(s.sum()), **level},
        }
        for (a, b), row, level, s in zip(sides, found, fair, shared, strict=True)
    ]


def _corrected(e: Estimates, known: list[bool]) -> list[Any]:
    rows = [gain(e, i) if there else None for i, there in enumerate(known)]
    adjusted = iter(significance.holm([row["p"] for row in rows if row is not None]).tolist())
    return [None if row is None else corrected(row, next(adjusted)) for row in rows]
