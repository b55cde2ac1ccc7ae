"""What there is to choose from: backbones, data sets and methods, one line each, or JSON. No torch here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import backbones as backbone_room
from probe.data import catalogue as data_room
from probe.losses import catalogue as loss_room
from probe.methods import catalogue as method_room
from probe.system.safe_text import printable


def backbones(as_json: bool) -> None:
    rows = [spec.row() for spec in backbone_room.specs()]
    _show(rows, ("name", "dim", "size", "licence", "weights"), as_json)


def datasets(as_json: bool) -> None:
    rows = [row.row() for row in data_room.rows()]
    for row in rows:
        row["images"] = " / ".join(f"{n:,}" for n in row["sizes"].values())
    _show(rows, ("name", "classes", "metric", "images", "source"), as_json)
    if not as_json:
        print("\nimages: train / (val /) test. Also: an image folder, a folder of parquet files, any hub id.")


def methods(as_json: bool) -> None:
    rows = [method.row() for method in (*loss_room.specs(), *method_room.specs())]
    for row in rows:
        row["parameters"] = {p["name"]: p["default"] for p in row["parameters"]}
        row["on balanced data"] = row["balanced"]
    _show(rows, ("name", "takes", "needs", "frozen", "on balanced data", "title", "paper"), as_json)
    if not as_json:
        print("\nfrozen: what it can do on cached features. Parameters and reasons: probe methods --json")


def cache(entries: Sequence[Any], as_json: bool) -> None:
    rows = [
        {**asdict(entry), "date": f"{entry.date:%Y-%m-%d %H:%M}", "path": str(entry.path)}
        for entry in entries
    ]
    for row in rows:
        row["size"] = f"{row['bytes'] / 1e6:,.1f} MB"
    _show(rows, ("name", "state", "rows", "dim", "dtype", "size", "date"), as_json)


def _show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """One line a row; on a terminal it is cut where the window ends, so the last columns matter least."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    lines = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if limit is None or len(text) <= limit else text[: limit - 1] + "…")
        if number == 0:
            print("-" * min(len(text), limit or len(text)))


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return printable(", ".join(map(str, value))) or "-"
    return "-" if value is None else printable(str(value))
