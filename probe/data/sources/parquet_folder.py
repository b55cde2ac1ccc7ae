"""A folder of parquet files in the hub's form: train-*, test-* and perhaps validation-*.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from probe.data.dataset import Split
from probe.data.request import Request
from probe.data.sources.parquet_columns import read_part
from probe.data.sources.parquet_images import ParquetImages
from probe.data.sources.table_splits import table_splits


def read_files(root: Path, found: Mapping[str, Sequence[str]], ask: Request) -> dict[str, Split]:
    """The splits in parquet files that are known by split."""
    parts = {name: [read_part(root / file, ask) for file in files] for name, files in found.items()}
    return table_splits(
        parts, ask, root, lambda mine, ids: ParquetImages([p.file for p in mine], ids, ask.cache)
    )
