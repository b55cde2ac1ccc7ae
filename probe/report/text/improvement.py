"""What `probe improve` found, on a terminal of 80 columns: the levers, then the test images, what to look
at first, and one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.text import format
from probe.report.text.paragraph import Paragraph
from probe.report.text.run import BLANK, accuracies, cell, look_first, plain, write
from probe.system.safe_text import printable

NAME = 28  # columns of a lever's name
NO_TIME = "no time"  # how the reason of a lever begins that was not tried for it


def show(report: Mapping[str, Any], folder: str, console: Console | None = None) -> None:
    """Print what was found."""
    write(sections(report), folder, console)


def sections(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts of the output, from top to bottom."""
    yield Text(f"{plain(report['backbone'])} on {plain(format.data(report['data']))}", style="bold")
    yield Text(searched(report), style="dim")
    yield _levers(report)
    if late := without_time(report):
        yield Text(f"{printable(late)}\n", style="dim")
    yield Text("test images, chosen recipe against the plain probe", style="dim")
    yield accuracies(as_result(report))
    yield BLANK
    yield from look_first(as_result(report))
    for remark in report["remarks"]:
        yield Paragraph(f"note: {printable(remark)}", style="yellow")
    yield Paragraph(printable(report["sentence"]), style="bold")


def searched(report: Mapping[str, Any]) -> str:
    """How the search went, in a line."""
    judged, tried = report["judged"], [row for row in report["levers"] if row["gain"] is not None]
    return (
        f"{format.plural(len(tried), 'lever')} judged by {judged['images']:,} training images in "
        f"{judged['folds']} folds, {report['seconds'] / 60:.1f} of {report['minutes']:g} minutes, "
        f"budget {report['budget']:g} points"
    )


def judged_levers(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All levers but those that time ended before."""
    return [row for row in report["levers"] if not row["why"].startswith(NO_TIME)]


def without_time(report: Mapping[str, Any]) -> str:
    """Levers that time ended before, with what each takes: `no time for: fine-tuning (it takes 6 min)`."""
    late = [row for row in report["levers"] if row["why"].startswith(NO_TIME)]
    said = (f"{row['name']} ({row['why'].removeprefix(NO_TIME).lstrip(': ')})" for row in late)
    return f"no time for: {', '.join(said)}" if late else ""


def as_result(report: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen recipe's test images as a run's result, against the plain probe and its hard classes."""
    return {
        "test": report["chosen"]["test"],
        "versus": report["versus"],
        "groups_by": report["groups_by"],
        "diagnostics": {"look_first": report.get("look_first")},
    }


def _levers(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("lever", no_wrap=True)
    table.add_column("hard, points (95 %)", justify="right", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("")
    for row in judged_levers(report):
        name, said = cell(row["name"], NAME), "kept" if row["kept"] else printable(row["why"])
        style = "bold green" if row["kept"] else "dim"
        if row["gain"] is None:
            table.add_row(name, "", "", "", Text(said, style=style))
            continue
        hard, every = row["gain"]["hard"], row["gain"]["overall"]
        interval = format.gain_interval(hard["ci"], 1, "..")
        table.add_row(
            name,
            f"{format.gained(hard)} ({interval})",
            format.gained(every),
            f"{row['seconds']:.0f}",
            Text(said, style=style),
        )
    return table
