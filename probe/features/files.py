"""Features as files that other programs read: parquet, or NumPy arrays; written block by block.

    parquet  <split>.parquet: id, label (with the names of the classes, as `datasets` reads them), features
    npy      <split>-features.npy (N x D, float32), <split>-labels.npy (N), <split>-ids.npy (N), classes.json

A view other than the evaluation crop has its name after the split's: `train-flip.parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from probe.errors import UserError, nearest
from probe.features.feature_set import FeatureSet
from probe.system.atomic import staged_folder, write_atomic
from probe.system.progress import bar

BLOCK = 8192  # rows at a time: 67 MB of 2,048 features
MARK = "classes.json"  # every such folder has it


def check(folder: Path, kind: str) -> None:
    """Refuse an unknown kind of file, and a folder that holds something else."""
    if kind not in WRITERS:
        raise UserError(f'features are not written as "{kind}"{nearest(kind, WRITERS)}')
    if folder.exists() and not (folder.is_dir() and (folder / MARK).is_file()):
        raise UserError(f"{folder} is there and holds no features; give --out another folder")


def write(sets: Mapping[str, FeatureSet], folder: Path, kind: str) -> dict[str, Path]:
    """Write features by name (`train`, `test-flip`) to `folder`; returns the file of each.

    The folder appears whole, and replaces an older one of features.
    """
    check(folder, kind)
    class_names = next(iter(sets.values())).class_names
    with staged_folder(folder) as staged:
        for name, features in sets.items():
            WRITERS[kind](features, staged, name)
        write_atomic(staged / MARK, json.dumps(list(class_names), indent=2))
    return {name: folder / f"{name}{ENDS[kind]}" for name in sets}


def _parquet(f: FeatureSet, folder: Path, name: str) -> None:
    import pyarrow.parquet as pq

    schema = f.to_arrow(0, 0).schema
    # a number of a feature hardly ever occurs twice: a dictionary of them would only cost time
    with pq.ParquetWriter(
        folder / f"{name}{ENDS['parquet']}", schema, compression="zstd", use_dictionary=["id", "label"]
    ) as file:
        for start in _blocks(f, name):
            file.write_table(f.to_arrow(start, start + BLOCK))


def _npy(f: FeatureSet, folder: Path, name: str) -> None:
    np.save(folder / f"{name}-labels.npy", f.y)
    np.save(folder / f"{name}-ids.npy", np.array(f.ids, dtype=np.str_))
    out = np.lib.format.open_memmap(
        folder / f"{name}{ENDS['npy']}", mode="w+", dtype=np.float32, shape=f.X.shape
    )
    for start in _blocks(f, name):
        out[start : start + BLOCK] = f.X[start : start + BLOCK].numpy()
    out.flush()


def _blocks(f: FeatureSet, name: str) -> Iterator[int]:
    with bar(f"writing {name}", len(f), "rows") as advance:
        for start in range(0, len(f), BLOCK):
            yield start
            advance(min(BLOCK, len(f) - start))


ENDS = {"parquet": ".parquet", "npy": "-features.npy"}
WRITERS: dict[str, Callable[[FeatureSet, Path, str], None]] = {"parquet": _parquet, "npy": _npy}
