"""Finished runs as the report reads them: a folder, a result.json, or predictions from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError
from probe.report.html import page, thumbnails
from probe.system import checksums
from probe.system.atomic import write_atomic
from probe.system.safe_text import visible

PAGE = "report.html"
RESULT = "result.json"


@dataclass(frozen=True)
class Report:
    """Where a page was written, and the result it shows."""

    path: Path
    result: dict[str, Any]
    plots: list[Path]


def read_result(folder: Path) -> dict[str, Any]:
    """A run's result; what is missing or damaged is named."""
    path = folder / RESULT if folder.is_dir() else folder
    try:
        content = json.loads(checksums.read(path))
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} is no run: it has no {RESULT}; name a folder that `probe run` wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}; run it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), dict):
        raise UserError(f"{path}: holds no result of a run")
    return content


@contextmanager
def understood(*folders: Path) -> Iterator[None]:
    """A result that lacks something, or holds something else in its place, is said to be so in one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        named = " or ".join(map(str, folders))
        raise UserError(
            f"{named} holds no whole result of this version ({type(error).__name__}: {error}); run it again"
        ) from error


def write_page(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write `report.html` again, with the thumbnails that the run kept."""
    write_atomic(folder / PAGE, page.render(result, thumbnails=thumbnails.read(folder)))
    return folder / PAGE


def report(source: Path, *, groups: str | None = None, plots: bool = False) -> Report:
    """Write the page (and static charts) of a run folder or of a predictions file, beside it."""
    if source.suffix == ".parquet":
        from probe.runs import external

        if (source.parent / checksums.FILE).exists() and source.is_file():  # of a run; a loose file is data
            checksums.check(source, reading.PREDICTIONS)
        result, folder = external.result(source, groups=groups), source.parent
        path = folder / f"{source.stem}-report.html"
        write_atomic(path, page.render(result))
    else:
        if groups is not None:
            raise UserError("--groups is for predictions files; a run keeps the groups it was judged with")
        result, folder = read_result(source), source if source.is_dir() else source.parent
        with understood(source):
            path = write_page(folder, result)
    drawn: list[Path] = []
    if plots:
        from probe.report.charts import diagnostics, results, static

        shown = visible(result)
        with understood(source):
            figures = [*results.of_result(shown), *diagnostics.of_result(shown)]
        drawn = static.save(figures, folder / "plots")
    return Report(path, result, drawn)
