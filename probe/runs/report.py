"""The page of a finished run, or of predictions made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError
from probe.report.html import page
from probe.runs.folder import PAGE, PLOTS, RunFolder, read_result, understood
from probe.system import checksums
from probe.system.atomic import write_atomic
from probe.system.safe_text import visible


@dataclass(frozen=True)
class Report:
    """Where a page was written, and the result it shows."""

    path: Path
    result: dict[str, Any]
    plots: list[Path]


def write_page(folder: RunFolder, result: Mapping[str, Any]) -> Path:
    """Draw the page of a run again, with the thumbnails that the run kept."""
    return folder.write_page(page.render(result, thumbnails=folder.thumbnails()))


def report(source: Path, *, groups: str | None = None, plots: bool = False) -> Report:
    """Write the page (and static charts) of a run folder or of a predictions file, beside it."""
    if source.suffix == ".parquet":
        from probe.runs import external

        if (source.parent / checksums.FILE).exists() and source.is_file():  # of a run; a loose file is data
            checksums.check(source, reading.PREDICTIONS)
        result, folder = external.result(source, groups=groups), source.parent
        path = folder / f"{source.stem}-{PAGE}"
        write_atomic(path, page.render(result))
    else:
        if groups is not None:
            raise UserError("--groups is for predictions files; a run keeps its own groups")
        result, folder = read_result(source), source if source.is_dir() else source.parent
        with understood(source):
            path = write_page(RunFolder(folder), result)
    drawn: list[Path] = []
    if plots:
        from probe.report.charts import diagnostics, results, static

        shown = visible(result)
        with understood(source):
            figures = [*results.of_result(shown), *diagnostics.of_result(shown)]
        drawn = static.save(figures, folder / PLOTS)
    return Report(path, result, drawn)
