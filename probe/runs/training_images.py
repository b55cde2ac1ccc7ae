"""training_images.parquet: the content of every image that a run learnt from, so that none is judged later.

    id       of the image
    sha256   of its stored bytes (32 bytes)

Train and validation images of all seeds; an image that occurs more than once has one row. Equal pixels in
other bytes (another encoder) are other images here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from probe.data.dataset import Split
from probe.data.images import UNREADABLE
from probe.errors import UserError
from probe.system import checksums, safe_parquet
from probe.system.atomic import write_atomic

FILE = "training_images.parquet"
CONTENT = "sha256"
SIZE = 32  # bytes of a digest


def write(path: Path, splits: Sequence[Split]) -> None:
    """Write the images of all `splits`; those that could not be read taught nothing, and are left out."""
    ids = {
        digest.tobytes(): sample
        for split in reversed(splits)
        for sample, digest in zip(reversed(split.ids), split.digests[::-1], strict=True)
    }  # of equal images the first one's
    ids.pop(UNREADABLE, None)
    rows = sorted(ids.items(), key=lambda row: row[1])
    columns = {
        "id": pa.array([sample for _, sample in rows], pa.string()),
        CONTENT: pa.array([digest for digest, _ in rows], pa.binary(SIZE)),
    }
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue().to_pybytes())


def read(path: Path) -> NDArray[np.uint8]:
    """The digests, N x 32 bytes."""
    checksums.check(path)
    with safe_parquet.plain_errors(path):
        file = safe_parquet.opened(path)
        if CONTENT not in file.schema_arrow.names or file.schema_arrow.field(CONTENT).type != pa.binary(SIZE):
            raise UserError(f"{path} has no column {CONTENT} of {SIZE} bytes; run it again")
        column = safe_parquet.columns(path, file, [CONTENT])[CONTENT]
    if column.null_count:
        raise UserError(f"{path} lacks {column.null_count:,} values of {CONTENT}; run it again")
    return np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint8).reshape(-1, SIZE)
