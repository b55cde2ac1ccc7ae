"""Predictions on the test split: from class scores to the rows of predictions.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.errors import UserError
from probe.evaluation.summary import MethodOutcome
from probe.system import checksums, class_columns, safe_parquet
from probe.system.atomic import write_atomic

FILE = "predictions.parquet"
TOP = 5


@dataclass(frozen=True)
class Predictions:
    """The predictions of one method, trained with one seed, on every test image."""

    method: str
    seed: int
    prediction: NDArray[np.int64]  # N
    probability: NDArray[np.float32]  # N: of the predicted class
    true_probability: NDArray[np.float32]  # N: of the true class
    top5: NDArray[np.int64]  # N x min(5, K), best first

    def called(self, method: str) -> Predictions:
        """The same predictions under another method name."""
        return replace(self, method=method)


def from_scores(scores: Tensor, labels: NDArray[np.int64], method: str, seed: int) -> Predictions:
    """Top-5 classes and two probabilities of each image; `scores` (N x K) are logits."""
    probability = F.softmax(scores.double(), dim=1).numpy()
    best = np.argsort(-probability, axis=1, kind="stable")[:, :TOP]
    rows = np.arange(len(labels))
    return Predictions(
        method=method,
        seed=seed,
        prediction=best[:, 0],
        probability=probability[rows, best[:, 0]].astype(np.float32),
        true_probability=probability[rows, labels].astype(np.float32),
        top5=best,
    )


def outcome(predictions: Sequence[Predictions], labels: NDArray[np.int64], method: str) -> MethodOutcome:
    """Which test images the method got right, one row per seed."""
    mine = [p for p in predictions if p.method == method]
    return MethodOutcome(
        method,
        correct=np.stack([p.prediction == labels for p in mine]),
        correct_top5=np.stack([(p.top5 == labels[:, None]).any(axis=1) for p in mine]),
        confidence=np.stack([p.probability for p in mine]),
    )


def write(
    path: Path,
    predictions: Sequence[Predictions],
    ids: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
) -> None:
    """Write one row per image, method and seed; `datasets.load_dataset` shows the names of the classes."""
    tables = [
        pa.table(
            {
                "id": pa.array(ids, pa.string()),
                "label": labels,
                "prediction": p.prediction,
                "method": pa.array([p.method] * len(labels), pa.string()),
                "seed": np.full(len(labels), p.seed, dtype=np.int32),
                "probability": p.probability,
                "true_probability": p.true_probability,
                "top5": pa.FixedSizeListArray.from_arrays(pa.array(p.top5.ravel()), p.top5.shape[1]),
            }
        )
        for p in predictions
    ]
    table = class_columns.named(pa.concat_tables(tables), class_names, ("label", "prediction", "top5"))
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue().to_pybytes())


def read(path: Path, ids: Sequence[str]) -> list[Predictions]:
    """The predictions of a run's own method, which comes first in the file, seed by seed.

    Its test images must be `ids`, in that order.
    """
    checksums.check(path)
    try:
        table = safe_parquet.opened(path).read()
        columns = {name: _array(table[name].combine_chunks()) for name in table.column_names}
        mine = columns["method"] == columns["method"][0]
        parts = [{k: v[mine & (columns["seed"] == s)] for k, v in columns.items()} for s in _seeds(columns)]
        found = [
            Predictions(str(part["method"][0]), seed, *(part[name] for name in COLUMNS))
            for seed, part in enumerate(parts)
        ]
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError) as error:
        raise UserError(f"cannot read predictions from {path}: {error}; run it again") from error
    if any(part["id"].tolist() != list(ids) for part in parts):
        raise UserError(f"{path} has other test images; remove its folder, and it is run again")
    return found


def guesses(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The label of each test image and what the run's own method said, of all seeds one after the other."""
    checksums.check(path)
    try:
        table = safe_parquet.opened(path).read(columns=["label", "prediction", "method"])
        own = table.filter(pc.equal(table["method"], table["method"][0]))
        # `to_numpy` would import pandas, which a prediction has no time for
        columns = (np.from_dlpack(own[name].combine_chunks()) for name in ("label", "prediction"))
        label, said = (column.astype(np.int64, copy=False) for column in columns)
        return label, said
    except (OSError, pa.ArrowException, LookupError, ValueError, TypeError) as error:
        raise UserError(f"cannot read predictions from {path}: {error}; run it again") from error


COLUMNS = ("prediction", "probability", "true_probability", "top5")


def _array(column: pa.Array) -> NDArray[Any]:
    """A column with the types that `write` was given; a column of lists becomes a matrix."""
    if isinstance(column, pa.FixedSizeListArray):
        return np.asarray(column.flatten()).reshape(len(column), -1)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _seeds(columns: dict[str, NDArray[Any]]) -> list[int]:
    return sorted(set(columns["seed"].tolist()))
