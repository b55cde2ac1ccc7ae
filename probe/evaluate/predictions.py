"""Predictions on the test split: from class scores to the rows of predictions.parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.evaluate.judge import Outcome
from probe.files import write_atomic

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


def outcome(predictions: Sequence[Predictions], labels: NDArray[np.int64], method: str) -> Outcome:
    """The method's hits, one line a seed."""
    mine = [p for p in predictions if p.method == method]
    return Outcome(
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
