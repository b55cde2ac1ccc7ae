"""Plain rows as a table with one line per row, or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from probe.system.safe_text import printable


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, note: str = "") -> None:
    """Print the named columns of `rows`, then `note`; or, as JSON, all there is in the rows.

    On a terminal, lines are cut where the window ends, so the last columns matter least.
    """
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
    if note:
        print(f"\n{note}")


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return printable(", ".join(map(str, value))) or "-"
    return "-" if value is None else printable(str(value))
