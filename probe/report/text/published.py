"""Tables of papers on a terminal of 80 columns: our numbers, and below them the published ones.

Each row has up to four lines: ours (with the gain in brackets), its 95 % interval, the published number and
the difference. Columns that do not fit beside each other are printed below each other: no number is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.text import exports, format
from probe.report.text.exports import LATEX, MARKDOWN, escaped
from probe.report.text.run import BLANK, STYLES, WIDTH, plain
from probe.system.safe_text import printable

TITLE = 20  # columns of a row's title; a longer one is wrapped
# The lines below our accuracies: what each is called, and its key.
LINES = (("95 %", "ci"), ("published", "published"), ("difference", "difference"))
PublishedTable = Mapping[str, Any]


def sections(table: PublishedTable) -> Iterator[RenderableType]:
    """A table of a paper: heading, numbers, and what cannot be run."""
    yield Text(printable(heading(table)), style="bold")
    for columns in blocks(table):
        yield _block(table, columns)
    for line in notes(table):
        yield Text(printable(line), style="yellow")
    yield BLANK


def notes(table: PublishedTable) -> Iterator[str]:
    """What cannot be run, and which settings are ours because no source states them."""
    for row in table["rows"]:
        if problem(row):
            yield f"{row['title']}: {problem(row)}"
    shared = [key for key in table["rows"][0]["ours"] if all(key in row["ours"] for row in table["rows"])]
    if shared:
        yield f"settings that no source states, ours: {', '.join(shared)}"
    for row in table["rows"]:
        own = [key for key in row["ours"] if key not in shared]
        if own and not problem(row):
            yield f"{row['title']}: ours: {', '.join(own)}"


def heading(table: PublishedTable) -> str:
    """`table 1a: CIFAR-100, ResNet-32 (Zhu et al., ...)`."""
    what = str(table["table"])
    number = what if what.startswith("figure") else f"table {what}"
    return f"{table['name']}, {number}: {table['title']} ({table['paper']})"


def problem(row: Mapping[str, Any]) -> str:
    """Why a row has no numbers of ours; empty where it has."""
    if row["why_not"]:
        return f"not available: {row['why_not']}"
    return f"failed: {row['error']}" if row["error"] else ""


def lines(row: Mapping[str, Any], columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of a row, each with its name (empty for our accuracies) and a cell for each column."""
    cells = [row["statistics"][column] for column in columns]
    if row["run"] is not None:
        yield "", [exports.cell(s) for s in cells]
    for name, key in LINES:
        if any(s[key] is not None for s in cells):
            yield name, [_shown(s, key) for s in cells]


def _shown(statistic: Mapping[str, Any], key: str) -> str:
    value = statistic[key]
    if value is None:
        return format.UNKNOWN
    if key == "ci":
        return format.interval(value)
    if key == "difference":
        return format.signed(value["mean"])
    return format.percent(value, 2).removesuffix("0")  # as printed, with one digit or two


def blocks(table: PublishedTable, width: int = WIDTH) -> list[list[str]]:
    """The columns in groups that fit beside the titles, by the widest cell of each."""
    found: list[list[str]] = [[]]
    left = width - TITLE
    for column in table["columns"]:
        cells = [cell for row in table["rows"] for _, (cell,) in lines(row, [column])]
        wide = max(map(cell_len, [plain(column, 12), *cells])) + 1  # and a space before it
        if found[-1] and wide > left:
            found.append([])
            left = width - TITLE
        found[-1].append(column)
        left -= wide
    return found


def _block(table: PublishedTable, columns: Sequence[str]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    drawn.add_column("", min_width=TITLE, max_width=TITLE, overflow="fold")
    for column in columns:
        drawn.add_column(Text(plain(column.capitalize(), 12)), justify="right", no_wrap=True)
    for row in table["rows"]:
        told = list(lines(row, columns))
        if not told or told[0][0]:  # no numbers of ours
            drawn.add_row(Text(printable(row["title"])), *[""] * len(columns))
        for name, cells in told:
            if name:
                drawn.add_row(Text(f"  {name}", style="dim"), *(Text(c, style="dim") for c in cells))
                continue
            verdicts = [format.verdict(row["statistics"][c]["gain"]) for c in columns]
            styled = [Text(c, style=STYLES.get(v, "")) for c, v in zip(cells, verdicts, strict=True)]
            drawn.add_row(Text(printable(row["title"])), *styled)
    return drawn


def markdown(comparison: Mapping[str, Any]) -> str:
    """The tables of papers as Markdown, with the same lines."""
    parts = []
    for table in comparison.get("tables") or ():
        columns = table["columns"]
        head = ["row", "", *(column.capitalize() for column in columns)]
        rows = [[escaped(cell, MARKDOWN) for cell in line] for line in _lines_of(table)]
        parts.append(f"### {escaped(heading(table), MARKDOWN)}\n\n{exports.grid(head, rows, len(columns))}")
        parts.append("\n".join(f"- {escaped(line, MARKDOWN)}" for line in notes(table)))
    return "\n\n".join(filter(None, parts)) + ("\n\n" if parts else "")


def latex(comparison: Mapping[str, Any]) -> str:
    """The tables of papers as one tabular each, with the same lines; needs the package booktabs."""
    return "".join(_tabular(table) + "\n" for table in comparison.get("tables") or ())


def _tabular(table: PublishedTable) -> str:
    columns = table["columns"]
    width = len(columns) + 2
    head = ["Row", "", *(escaped(column.capitalize(), LATEX) for column in columns)]
    rows = [[escaped(cell, LATEX) for cell in line] for line in _lines_of(table)]
    told = [escaped(line, LATEX) for line in (heading(table), *notes(table))]
    said = [rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {line}}}" for line in told]
    lines = [
        rf"\begin{{tabular}}{{ll{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(line) + r" \\" for line in rows),
        r"\bottomrule",
        *(line + r" \\" for line in said),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _lines_of(table: PublishedTable) -> Iterator[list[str]]:
    """Every line of every row: the row's title, what the line is, and a cell for each column."""
    columns = table["columns"]
    for row in table["rows"]:
        told = list(lines(row, columns)) or [("", [format.UNKNOWN] * len(columns))]
        for name, cells in told:
            yield [row["title"], name or "ours", *cells]
