"""A comparison on a terminal of 80 columns: the papers' table, the ranking with intervals, failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.text import exports, format, published
from probe.report.text.comparison_conclusion import conclusion, pairs_of_best
from probe.report.text.paragraph import Paragraph
from probe.report.text.run import BLANK, STYLES, WIDTH, cell, concluded, plain, write
from probe.system.safe_text import printable

BACKBONE = 14  # columns of a backbone in the table
METHOD = 10  # columns of a method in the table; a longer one is wrapped, never cut
NAMED = 36  # columns of backbone, data set and method in the ranking
RANKED = 10  # runs whose hard-class gain is shown with its interval


def show(comparison: Mapping[str, Any], folder: str, console: Console | None = None) -> None:
    """Print a comparison."""
    write(sections(comparison), folder, console)


def sections(comparison: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts of the output, from top to bottom."""
    yield from concluded(conclusion(comparison))
    tables = comparison.get("tables") or []
    for table in tables:
        yield from published.sections(table)
    printed = {row["run"] for table in tables for row in table["rows"]}
    for data, rows in exports.by_data(comparison):
        others = [row for row in rows if row["run"] not in printed]
        if others:
            yield Text(plain(data, 60), style="bold")
            for table in _tables(comparison, others):
                yield table
                yield BLANK
    for scheme, other in exports.by_count(comparison):
        for data, rows in exports.by_data(other):
            yield Text(f"{plain(data, 40)} by training images, {scheme}", style="bold")
            for table in _tables(other, rows):
                yield table
                yield BLANK
    if comparison["rows"]:
        yield Text(printable(exports.legend(comparison)), style="dim")
    for data, said in (comparison.get("shared_groups") or {}).items():
        yield Text(f"{plain(format.data(data), 30)}: {printable(said)}", style="dim")
    if comparison.get("backbones"):
        yield BLANK
        yield _pairs(comparison["backbones"])
        yield BLANK
    compared = [row for row in comparison["rows"] if list(row["statistics"].values())[-1]["gain"]]
    if compared:
        yield _ranking(sorted(compared, key=format.place_in_ranking(comparison)))
    for remark in comparison["remarks"]:
        yield Paragraph(f"note: {printable(remark)}", style="yellow")
    for failed in comparison["failed"]:
        where = " / ".join(plain(failed[k], 24) for k in ("data", "backbone", "method"))
        yield Text(f"failed: {where}: {plain(failed['error'], 300)}", style="red")


def _tables(comparison: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Iterator[Table]:
    """The columns that fit beside each other in one table, the others in further ones: no number is cut."""
    room = WIDTH - 1 - METHOD - max(cell_len(plain(row["backbone"], BACKBONE)) for row in rows)
    names: list[str] = []
    left = room
    for name in exports.columns(comparison):
        cells = (exports.cell(row["statistics"].get(name)) for row in rows)
        wide = max(map(cell_len, [plain(name, 10), *cells])) + 1  # and a space before it
        if names and wide > left:
            yield _table(names, rows)
            names, left = [], room
        names.append(name)
        left -= wide
    yield _table(names, rows)


def _table(names: list[str], rows: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("backbone", max_width=BACKBONE, no_wrap=True)
    table.add_column("method", min_width=METHOD, max_width=METHOD, overflow="fold")
    for name in names:
        table.add_column(cell(name, 10), justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for name in names:
            statistic = row["statistics"].get(name)
            said = format.verdict(statistic["gain"]) if statistic and statistic["gain"] else ""
            cells.append(Text(exports.cell(statistic), style=STYLES.get(said, "")))
        table.add_row(cell(row["backbone"], BACKBONE), _method(row["method"]), *cells)
    return table


def _method(label: str) -> Text:
    """A long one is split before its suffix: `erm`, `-finetune`."""
    name, dash, how = plain(label, 300).rpartition("-")
    split = dash and how.isalpha() and cell_len(label) > METHOD
    return Text(f"{name}\n-{how}" if split else f"{name}{dash}{how}")


def _pairs(blocks: Sequence[Mapping[str, Any]]) -> Table:
    """The best backbone of each data set against each other one, on the same test images."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("backbones, overall", no_wrap=True)
    table.add_column("points (95 %, Holm)", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True, min_width=len(format.NO_CHANGE))
    for block in blocks:
        on = f" {plain(format.data(block['data']), 10)}" if len(blocks) > 1 else ""
        for pair in pairs_of_best(block)[:RANKED]:
            gain, said = pair["gain"], format.verdict(pair["gain"])
            who = f"{plain(pair['first'], 14)} over {plain(pair['second'], 14)}{on}"
            interval = f"  {format.gained(gain)} ({format.gain_interval(gain['ci'])}) "
            table.add_row(Text(who), interval, Text(said, style=STYLES[said]))
    return table


def _ranking(rows: list[Mapping[str, Any]]) -> Table:
    hardest = list(rows[0]["statistics"])[-1]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column(cell(f"gain on {plain(hardest, 20)}"), no_wrap=True)
    table.add_column("gain (95 %, Holm)", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True, min_width=len(format.NO_CHANGE))
    several = len({row["data"] for row in rows}) > 1
    gains = [(row, list(row["statistics"].values())[-1]["gain"]) for row in rows]
    for row, gain in gains[:RANKED]:
        said = format.verdict(gain)
        on = f" {plain(format.data(row['data']), 10)}" if several else ""
        who = f"{plain(row['backbone'], 14)}{on} "
        who += plain(row["method"], NAMED - cell_len(who))
        interval = f"{format.gained(gain)} ({format.gain_interval(gain['ci'])})"
        table.add_row(Text(who), interval, Text(said, style=STYLES[said]))
    return table
