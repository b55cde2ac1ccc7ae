"""Tiny image folders and parquet folders in the real formats."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (12, 9)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


def write_folder(root: Path, classes=("cat", "dog"), splits=("train", "test"), each: int = 3) -> Path:
    for s, split in enumerate(splits):
        for c, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(each):
                picture(100 * s + 10 * c + i).save(folder / f"{i}.png")
    return root


def write_parquet(
    path: Path,
    labels: list,
    *,
    names=("cat", "dog"),
    ids: list | None = None,
    images: list | None = None,
    seed: int = 0,
    image: str = "image",
    label: str = "label",
    label_type: pa.DataType | None = None,
    binary: bool = False,
    **options,
) -> Path:
    """A file as the `datasets` library writes it: image struct, int label, class names in the metadata."""
    images = [encoded(picture(seed + i)) for i in range(len(labels))] if images is None else images
    path.parent.mkdir(parents=True, exist_ok=True)
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {
        image: pa.array(images, pa.binary())
        if binary
        else pa.array([{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(images)], struct),
        label: pa.array(labels, label_type),
    }
    if ids is not None:
        columns["id"] = pa.array(ids)
    table = pa.table(columns)
    if names:
        features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, **{"compression": "none", **options})
    return path


def write_parquet_folder(root: Path, **options) -> Path:
    write_parquet(root / "train-00000-of-00001.parquet", [0, 1, 0, 1, 0, 1], **options)
    write_parquet(root / "test-00000-of-00001.parquet", [1, 0, 1, 0], seed=50, **options)
    return root
