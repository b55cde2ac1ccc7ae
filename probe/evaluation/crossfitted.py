"""What plain probes say about training images that they have not seen, and crossfit.parquet, which keeps it.

    id                   of the image
    label, label_index   its class, by name and by number
    fold                 the probe that predicted it was fitted to the other folds
    predicted            the most likely class
    probability          of the label
    rival                the most likely class that is not the label
    rival_probability    of the rival
    probabilities        of all K classes

Where n x K probabilities would exceed `BUDGET`, the last column is replaced by `top_classes` (numbers) and
`top_probabilities`, the `TOP` most likely ones, best first. The file's metadata has `class_names` and
`entries`, "all" or "top".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from probe.system import class_columns
from probe.system.atomic import write_atomic

FILE = "crossfit.parquet"
BUDGET = 256 << 20  # bytes of probabilities that are held and stored
BLOCK = 16_384  # images handled at a time, which bounds what their sorting takes
TOP = 10  # entries of each image beyond that: a million images take 80 MB


@dataclass(frozen=True)
class Crossfitted:
    """n images under K classes: `keep` fills in one fold after the other."""

    labels: NDArray[np.int64]  # n
    num_classes: int  # K
    fold: NDArray[np.int64]  # n
    predicted: NDArray[np.int64]  # n
    own: NDArray[np.float32]  # n: probability of the label
    rival: NDArray[np.int64]  # n: the best other class; the label itself where there is no other
    rival_probability: NDArray[np.float32]  # n
    probability: NDArray[np.float32]  # n x K, or n x TOP, best first
    classes: NDArray[np.int32] | None = None  # n x TOP: whose probabilities these are; None: all, in order

    @classmethod
    def empty(cls, labels: NDArray[np.int64], num_classes: int) -> Crossfitted:
        """Room for what is said about the images with these labels."""
        n = len(labels)
        whole = 4 * n * num_classes <= BUDGET or num_classes <= TOP
        width = num_classes if whole else TOP

        return cls(
            labels=labels,
            num_classes=num_classes,
            fold=np.zeros(n, dtype=np.int64),
            predicted=np.zeros(n, dtype=np.int64),
            own=np.zeros(n, dtype=np.float32),
            rival=labels.copy(),
            rival_probability=np.zeros(n, dtype=np.float32),
            probability=np.zeros((n, width), dtype=np.float32),
            classes=None if whole else np.zeros((n, width), dtype=np.int32),
        )

    def keep(self, part: int, held: NDArray[np.int64], probability: NDArray[np.floating]) -> None:
        """The probabilities (m x K) of the m images `held` out from the probe of fold `part`."""
        self.fold[held] = part
        for start in range(0, len(held), BLOCK):
            self._keep(held[start : start + BLOCK], probability[start : start + BLOCK])

    def _keep(self, held: NDArray[np.int64], probability: NDArray[np.floating]) -> None:
        given, at = self.labels[held], np.arange(len(held))
        self.predicted[held] = probability.argmax(axis=1)
        self.own[held] = probability[at, given]
        if self.num_classes > 1:
            others = probability.copy()
            others[at, given] = -1
            rival = others.argmax(axis=1)
            self.rival[held] = rival
            self.rival_probability[held] = others[at, rival]
        if self.classes is None:
            self.probability[held] = probability
        else:
            best = np.argsort(-probability, axis=1, kind="stable")[:, :TOP]
            self.classes[held] = best
            self.probability[held] = np.take_along_axis(probability, best, axis=1)

    def probabilities(self, rows: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.float32]:
        """m x c: of these classes on these images; where only the likeliest are kept, the least of them for
        any other, which is at least what it was."""
        if self.classes is None:
            found: NDArray[np.float32] = self.probability[np.ix_(rows, classes)]
            return found
        at = self.classes[rows, None, :] == classes[None, :, None]  # m x c x TOP
        least = self.probability[rows].min(axis=1)[:, None]
        kept = np.where(at, self.probability[rows, None, :], 0).sum(axis=2)
        return np.asarray(np.where(at.any(axis=2), kept, least), dtype=np.float32)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """K: the mean probability of the label over each class's images; 0 for a class without images."""
        n = np.bincount(self.labels, minlength=self.num_classes)
        total = np.bincount(self.labels, weights=self.own, minlength=self.num_classes)
        return np.asarray(total / np.maximum(n, 1))

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """K: the share of each class's images that is predicted right; NaN for a class without images."""
        n = np.bincount(self.labels, minlength=self.num_classes)
        right = np.bincount(self.labels[self.predicted == self.labels], minlength=self.num_classes)
        with np.errstate(invalid="ignore"):
            return np.asarray(right / n)

    def confusions(self) -> NDArray[np.float64]:
        """K x K: the share of class i (rows) that is mistaken for class j; 0 where i has no images."""
        k = self.num_classes
        pairs = np.bincount(self.labels * k + self.predicted, minlength=k * k).reshape(k, k)
        share = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1)
        np.fill_diagonal(share, 0)
        return np.asarray(share)


def write(path: Path, said: Crossfitted, ids: Sequence[str], class_names: Sequence[str]) -> None:
    """Write one row per training image, in the order of the ids."""
    names = pa.array(list(class_names), pa.string())

    def named(classes: NDArray[np.int64]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(classes), names).cast(pa.string())

    columns = {
        "id": pa.array(ids, pa.string()),
        "label": named(said.labels),
        "label_index": pa.array(said.labels),
        "fold": pa.array(said.fold.astype(np.int8)),
        "predicted": named(said.predicted),
        "probability": pa.array(said.own),
        "rival": named(said.rival),
        "rival_probability": pa.array(said.rival_probability),
    }
    if said.classes is None:
        columns["probabilities"] = _lists(said.probability)
    else:
        columns |= {"top_classes": _lists(said.classes), "top_probabilities": _lists(said.probability)}
    entries = "all" if said.classes is None else "top"
    table = class_columns.named(
        pa.table(columns), class_names, ("label_index", "top_classes"), entries=entries
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue().to_pybytes())


def _lists(matrix: NDArray[np.float32] | NDArray[np.int32]) -> pa.Array:
    """One list of equal length per row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])
