"""Reading back what a run stored."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def predictions(folder: Path, method: str | None = None) -> dict[str, np.ndarray]:
    """The columns of a run's `predictions.parquet`, of one method when asked."""
    table = pq.read_table(folder / "predictions.parquet")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    kept = slice(None) if method is None else columns["method"] == method
    return {name: values[kept] for name, values in columns.items()}


def accuracy(folder: Path, method: str) -> float:
    mine = predictions(folder, method)
    return float((mine["label"] == mine["prediction"]).mean())
