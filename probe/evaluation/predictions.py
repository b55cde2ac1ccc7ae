"""Predictions on the test split: from class scores to the rows of predictions.parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.errors import UserError
from probe.evaluation.summary import MethodOutcome
from probe.system import checksums
from probe.system import safe_parquet as tables
from probe.system.atomic import write_atomic

FILE = "predictions.parquet"
TOP = 5


@dataclass(frozen=True)
class Predictions:
    """What one method, trained with one seed, says about every test image."""

    method: str
    seed: int
    prediction: NDArray[np.int64]  # N
    probability: NDArray[np.float32]  # N: of the prediction
    true_probability: NDArray[np.float32]  # N: of the label
    top5: NDArray[np.int64]  # N x min(5, K), best first

    def called(self, method: str) -> Predictions:
        """The same under another name."""
        return replace(self, method=method)


def from_scores(scores: Tensor, labels: NDArray[np.int64], method: str, seed: int) -> Predictions:
    """Keep the best guesses and two probabilities; softmax(scores) are the probabilities."""
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
    """The method's hits, one line a seed."""
    mine = [p for p in predictions if p.method == method]
    return MethodOutcome(
        method,
        hits=np.stack([p.prediction == labels for p in mine]),
        hits5=np.stack([(p.top5 == labels[:, None]).any(axis=1) for p in mine]),
        confidence=np.stack([p.probability for p in mine]),
    )


def write(
    path: Path,
    predictions: Sequence[Predictions],
    ids: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
) -> None:
    """One row an image, method and seed."""
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
    table = pa.concat_tables(tables).replace_schema_metadata({"class_names": json.dumps(list(class_names))})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue().to_pybytes())


def read(path: Path, ids: Sequence[str]) -> list[Predictions]:
    """What a run wrote about its own method, which stands first; its test images must be these, in order."""
    checksums.check(path)
    try:
        table = tables.opened(path).read()
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
        raise UserError(f"{path} is about other test images; remove its folder, and it is run again")
    return found


COLUMNS = ("prediction", "probability", "true_probability", "top5")


def _array(column: pa.Array) -> NDArray[np.generic]:
    """The values with the types that `write` was given; a list a row becomes a row."""
    if isinstance(column, pa.FixedSizeListArray):
        return column.flatten().to_numpy().reshape(len(column), -1)
    return column.to_numpy(zero_copy_only=False)


def _seeds(columns: dict[str, NDArray[np.generic]]) -> list[int]:
    return sorted(set(columns["seed"].tolist()))
