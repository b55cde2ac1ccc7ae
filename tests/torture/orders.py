"""Parquet files of one data set that disagree about order, types and columns of their classes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from probe import data
from tests.torture.answers import parsed
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

CLASSES = ("ant", "bee", "cow", "dog")
INTEGERS = (pa.int8(), pa.int32(), pa.int64(), pa.uint64())
Order = tuple[str, ...]
TEXTS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))


def colour(name: str, number: int) -> tuple[int, int, int]:
    """The class can be read from the first pixel."""
    return (40 * CLASSES.index(name) + 9, number % 256, 3)


def file(luck: Random, path: Path, names: list[str], agreed: Order | None) -> Order | None:
    """One file: its classes as numbers of its own list, as texts, or as numbers without a list.

    `agreed` is the order of all files, None where each has its own. Returns the list that it declares.
    """
    order = agreed or tuple(luck.sample(CLASSES, len(CLASSES)))
    images = []
    for i, name in enumerate(names):
        buffer = io.BytesIO()
        Image.new("RGB", (3, 3), colour(name, i)).save(buffer, "PNG")
        images.append(buffer.getvalue())
    kind = luck.choice(["numbers", "numbers", "numbers", "texts", "bare"])
    image, label = luck.choice([("image", "label")] * 3 + [("photo", "class")])
    if kind == "texts":
        labels = pa.array(names, luck.choice(TEXTS))
    else:
        labels = pa.array([order.index(name) for name in names], luck.choice(INTEGERS))
    columns: dict[str, Any] = {
        image: images if luck.random() < 0.5 else [{"bytes": b, "path": None} for b in images],
        label: labels,
    }
    table = pa.table(columns)
    if kind == "numbers":
        listed = (*order[:-1], "emu") if luck.random() < 0.02 else order
        features = {image: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": list(listed)}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    if luck.random() < 0.05:
        table = table.append_column(luck.choice([image, label, "note"]), table[label])
    how = {"compression": luck.choice(["none", "snappy"]), "row_group_size": luck.choice([1, 50])}
    pq.write_table(table, path, **how)
    return order if kind == "numbers" else None


def prepare(folder: Path) -> Case:
    root = folder / "here" / "data"

    def case(luck: Random) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        agreed = tuple(luck.sample(CLASSES, len(CLASSES))) if luck.random() < 0.5 else None
        declared = set()
        for split in ("train", "test"):
            for f in range(luck.randrange(1, 5)):
                names = [*CLASSES, *luck.choices(CLASSES, k=luck.randrange(4))]
                luck.shuffle(names)
                declared.add(file(luck, root / f"{split}-{f}.parquet", names, agreed))
        if agreed is None and len(declared - {None}) < 2:
            return  # numbers without names would mean one order here, and were written in another
        found = parsed(lambda: data.load(root))
        for split in found.by_name.values() if found else ():
            for i in range(len(split)):
                image, label = split[i]
                truth, said = CLASSES[image.getpixel((0, 0))[0] // 40], split.class_names[label]
                if said.isdigit() and agreed:  # no file of train has names
                    said = agreed[int(said)]
                assert said == truth, f"{truth} is said to be {said}"

    return case


ROWS = (
    Torture(
        "bad input: parquet class orders",
        "every label is right, or one clear line",
        jailed(prepare),
        quick=60,
        timeout=SECONDS,
    ),
)
