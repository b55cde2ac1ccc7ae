"""Parquet data, predictions and results from elsewhere: parts missing, null, nested, mistyped, huge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from probe import data
from probe.report.html import page
from tests.torture.answers import command, parsed
from tests.torture.finished import run, without_charts
from tests.torture.images import damaged, painted
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture
from tests.torture.recipes import WORDS, value
from tests.torture.trees import mutated

TYPES = (
    pa.int64(),
    pa.int8(),
    pa.uint64(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("ns"),
    pa.decimal128(30, 2),
    pa.null(),
    pa.list_(pa.int64()),
    pa.struct({"bytes": pa.int64()}),
    pa.dictionary(pa.int32(), pa.string()),
)
CLEAN = [word.encode("utf-8", "replace").decode() for word in WORDS]


def column(luck: Random, values: list[Any]) -> pa.Array:
    """The values as they should be, or nulls among them, other values, or another type altogether."""
    what = luck.randrange(8)
    if what == 0:
        values = [None if luck.random() < luck.choice([0.1, 1]) else v for v in values]
    elif what == 1:
        values = [luck.choice([0, 1, 50_000, 10**9, -1, 2**63 - 1]) for _ in values]
    elif what == 2:
        values = [luck.choice(CLEAN) for _ in values]
    elif what == 3:
        try:
            return pa.array([None] * len(values), luck.choice(TYPES))
        except pa.ArrowException:
            return pa.nulls(len(values))
    elif what == 4 and values:
        return pa.array([[v] * luck.randrange(3) for v in values])
    return pa.array(values)


def written(luck: Random, path: Path, columns: dict[str, list[Any]], about: dict[str, bytes]) -> None:
    """A parquet file of these columns, of which some went wrong."""
    wrong = set(luck.sample(list(columns), luck.randrange(len(columns)))) if luck.random() < 0.8 else set()
    arrays = {name: column(luck, v) if name in wrong else pa.array(v) for name, v in columns.items()}
    if luck.random() < 0.15:
        del arrays[luck.choice(list(arrays))]
    if luck.random() < 0.1:
        arrays[luck.choice([*CLEAN[:8], "id", "method", "seed", "scores"])] = pa.nulls(len(columns["id"]))
    table = pa.table(arrays).replace_schema_metadata(about)
    table = table.slice(0, luck.choice([len(table), len(table), len(table), 0, 1]))
    pq.write_table(
        table, path, compression=luck.choice(["none", "zstd"]), row_group_size=luck.choice([1, 3, 1000])
    )
    if luck.random() < 0.2:
        content = bytearray(path.read_bytes())
        for _ in range(luck.randrange(1, 20)):
            content[-luck.randrange(1, min(len(content), 400))] = luck.randrange(256)  # the footer, mostly
        path.write_bytes(bytes(content[: luck.choice([len(content), luck.randrange(len(content))])]))


def prepare_data(folder: Path) -> Case:
    root = folder / "data"

    def look() -> None:
        found = data.load(root)
        for name in found.splits:
            assert len(found[name].fingerprint) == 64
            for i in range(min(3, len(found[name]))):
                parsed(lambda name=name, i=i: found[name][i])

    def case(luck: Random) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for split in luck.choice([["train", "test"]] * 4 + [["train"], ["train", "test", "validation"]]):
            number = luck.choice([1, 4, 6])
            images = [luck.choice([painted, damaged])(luck) for _ in range(number)]
            columns: dict[str, list[Any]] = {
                "image": [{"bytes": b, "path": None} for b in images] if luck.random() < 0.7 else images,
                "label": [i % 2 for i in range(number)],
                "id": [f"{split}{i}" for i in range(number)],
            }
            features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "b"]}}
            declared = mutated(luck, {"info": {"features": features}}) if luck.random() < 0.5 else {}
            about = {"huggingface": json.dumps(declared).encode()}
            name = split + luck.choice(["", "", "-00000-of-00001", "-00000-of-00002"])
            written(luck, root / f"{name}.parquet", columns, about)
        parsed(look)

    return case


def prepare_predictions(folder: Path) -> Case:
    path = folder / "here" / "predictions.parquet"
    page.library = without_charts

    def case(luck: Random) -> None:
        number, classes = luck.choice([1, 2, 6, 12]), luck.choice([1, 2, 3])
        methods = luck.choice([["model"], ["erm", "mr2"], ["erm"], ["a", "b", "c"]])
        n = number * len(methods)
        columns: dict[str, list[Any]] = {
            "id": [f"i{k % number}" for k in range(n)],
            "label": [k % number % classes for k in range(n)],
            "prediction": [luck.randrange(classes) for _ in range(n)],
            "method": [methods[k // number] for k in range(n)],
            "seed": [0] * n,
            "probability": [luck.random() for _ in range(n)],
            "scores": [[luck.gauss(0, 1) for _ in range(classes)] for _ in range(n)],
            "top5": [list(range(classes)) for _ in range(n)],
        }
        for name in luck.sample(list(columns)[3:], luck.randrange(6)):
            del columns[name]
        names = [str(value(luck, 3)) for _ in range(classes)] if luck.random() < 0.5 else value(luck)
        written(
            luck, path, columns, {"class_names": json.dumps(names).encode()} if luck.random() < 0.4 else {}
        )
        command(["report", str(path)])

    return case


def prepare_results(folder: Path) -> Case:
    page.library = without_charts
    made = run(folder)
    result = json.loads((made / "result.json").read_text())
    other = folder / "here" / "run"

    def spoilt(luck: Random) -> bytes:
        kinds: list[Callable[[], bytes]] = [
            lambda: json.dumps(mutated(luck, result)).encode(),
            lambda: json.dumps(mutated(luck, result, 12)).encode(),
            lambda: json.dumps(value(luck)).encode(),
            lambda: b"[" * 10 ** luck.randrange(1, 6),
            lambda: b'{"test": {}}',
            lambda: luck.randbytes(luck.randrange(100)),
            lambda: json.dumps(result).encode()[: luck.randrange(5000)],
        ]
        return luck.choice([kinds[0], *kinds])()

    def case(luck: Random) -> None:
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(made, other)
        (other / "SHA256SUMS").unlink(missing_ok=True)  # nothing says that it was changed
        (other / "result.json").write_bytes(spoilt(luck))
        if luck.random() < 0.7:
            command(["report", str(other), *luck.choice([[], [], ["--json"]])])
        else:
            command(["compare", str(made), str(other), "--out", str(folder / "compared")])

    return case


PROMISE = "a report or a data set, or one clear line"
ROWS = (
    Torture("bad input: parquet data", PROMISE, jailed(prepare_data), quick=60, share=2, timeout=SECONDS),
    Torture(
        "bad input: predictions", PROMISE, jailed(prepare_predictions), quick=60, share=2, timeout=SECONDS
    ),
    Torture("bad input: results", PROMISE, jailed(prepare_results), quick=40, share=2, timeout=SECONDS),
)
