"""A run's result as a compact terminal table that stays readable at 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from probe.report.text import attribute, format
from probe.report.text.certainty import by_accuracy, rank_note
from probe.report.text.conclusion import conclusion, next_command
from probe.report.text.format import percent
from probe.report.text.paragraph import Paragraph
from probe.system.safe_text import printable

BLANK = Text("")
WIDE = 0.1  # a gain of ten points and more has room for one decimal in 80 columns
EXTREMES = 3  # how many of the worst and best classes are shown
NAME = 32  # columns of a class name: two of them, with their numbers, fit in 80
LOOK_FIRST = 5  # how many classes to look at first are shown
REASON = 27  # columns of a class name beside a reason
GROUP = 12  # columns of a group's name: with its gain and the verdict the line fits in 80
GAPS = 6  # gaps between values of an attribute that are shown
WIDTH = 80
Line = tuple[str, Mapping[str, Any], Mapping[str, Any] | None]  # label, accuracy with interval, gain
STYLES = {"better": "bold green", "worse": "bold red", format.NO_CHANGE: "dim"}  # of verdicts


def plain(name: str, width: int = NAME) -> str:
    """A name that is safe on a terminal (no control codes) and at most `width` columns wide."""
    clean = printable(name)
    return clean if cell_len(clean) <= width else set_cell_size(clean, width - 1).rstrip() + "…"


def cell(name: str, width: int = NAME) -> Text:
    """The same for a rich table, which would read `[red]` in a bare string as a colour."""
    return Text(plain(name, width))


def show(
    result: Mapping[str, Any], folder: str, console: Console | None = None, *, method: str | None = None
) -> None:
    """Print the result of one run; `method` is its method as a recipe writes it, with parameters."""
    write(sections(result, method), folder, console, following=next_command(result))


def write(
    parts: Iterable[RenderableType], folder: str, console: Console | None = None, *, following: str = ""
) -> None:
    """Print the parts, then the folder and the command to try next on lines that are never wrapped, so that
    they can be copied."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    console.print(Group(*parts))
    console.print(Text(f"saved: {printable(folder)}", style="dim"), soft_wrap=True)
    if following:
        console.print(Text(f"next: {printable(following)}", style="dim"), soft_wrap=True)


def sections(result: Mapping[str, Any], method: str | None = None) -> Iterator[RenderableType]:
    """The parts of a run's table, from top to bottom."""
    yield _headline(result, method or format.method(result))
    yield BLANK
    for part in PARTS:
        yield from part(result)


def concluded(said: Sequence[str]) -> Iterator[RenderableType]:
    """The sentences of a conclusion, above everything else."""
    for sentence in said:
        yield Paragraph(printable(sentence))
    yield BLANK


def _conclusion(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    return concluded(conclusion(result))


def _accuracies(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield accuracies(result)
    yield BLANK


def _headline(result: Mapping[str, Any], method: str) -> Text:
    recipe, data = result["recipe"], result["data"]
    how = "fine-tuned" if recipe.get("finetune") else recipe["solver"]["name"]
    l2 = sorted({s["l2"] for s in result["seeds"] if s.get("l2")})
    if l2:
        chosen = "given" if recipe["solver"]["l2"] else "by validation"
        ends = dict.fromkeys((l2[0], l2[-1]))
        how += f", l2 {' to '.join(f'{v:.3g}' for v in ends)} {chosen}"
    what = f"{plain(result['backbone']['name'])} on {plain(data['name'])}"
    method = f"{plain(method, 60)} ({how}), {format.seeds(result)}"
    head = Text(what, style="bold")
    head.append("  " if cell_len(what) + cell_len(method) + 2 <= WIDTH else "\n")
    head.append(f"{method}\n", style="not bold")
    head.append(
        f"{len(result['test']['by_class'])} classes, {data['sizes']['train']:,} training "
        f"and {data['sizes']['test']:,} test images",
        style="not bold dim",
    )
    return head


def accuracies(result: Mapping[str, Any]) -> Table:
    """Overall, mean per class and every group, with intervals and, where there is a reference, gains."""
    test, gains = result["test"], (result.get("versus") or {}).get("gain") or {}
    whole = {"accuracy": test["top1"], "ci": test["ci"]}
    each = {"accuracy": test["mean_per_class"], "ci": test["mean_per_class_ci"]}
    rows: list[Line] = [
        ("overall", whole, gains.get("overall")),
        ("mean per class", each, gains.get("mean_per_class")),
    ]
    rows += _group_rows(test["groups"], gains)
    return _accuracy_table("classes", rows, result.get("versus"))


def _by_count(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The groups by training images, where those differ; a scheme with the same classes is not repeated."""
    shown: list[list[list[str]]] = []
    for groups, gains in format.count_groups(result).values():
        members = [group["classes"] for group in groups.values()]
        if members not in shown:
            shown.append(members)
            yield _accuracy_table("by class size", _group_rows(groups, gains), result.get("versus"))
            yield BLANK


def by_attribute(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The values of an attribute, the gaps between them and the worst class and value."""
    if (block := result.get("attribute")) is None:
        return
    versus, test = block.get("versus"), block["test"]
    gains = versus["gain"] if versus else {}
    known = [row for row in test["values"] if row["accuracy"] is not None]
    rows: list[Line] = [
        (f"{plain(row['value'], GROUP)} ({row['n']:,})", row, gains.get(row["value"])) for row in known
    ]
    how = (result.get("versus") or {}).get("how")
    yield _accuracy_table(plain(f"by {block['name']}", GROUP + 8), rows, versus and {**versus, "how": how})
    yield BLANK
    said = [attribute.gap(row) for row in test["gaps"][:GAPS]]
    if len(test["gaps"]) > GAPS:
        said.append(f"{len(test['gaps']) - GAPS} more gaps are on the page")
    for line in [*said, attribute.worst(test)]:
        if line is not None:
            yield Text(printable(line))
    yield BLANK


def _group_rows(groups: Mapping[str, Any], gains: Mapping[str, Any]) -> list[Line]:
    """A line for each group that has a test image."""
    return [
        (f"{plain(name, GROUP)} ({len(group['classes'])})", group, gains.get(name))
        for name, group in groups.items()
        if group["accuracy"] is not None
    ]


def _accuracy_table(first: str, rows: Sequence[Line], versus: Mapping[str, Any] | None) -> Table:
    table = _table(first, "accuracy\n%", "95 %\ninterval", first="left")
    if versus:
        against = plain(format.against(versus["method"], versus.get("how")))
        table.add_column(Text(f"vs {against}\npoints (95 %, Holm)"), justify="right", no_wrap=True)
        table.add_column("", no_wrap=True, min_width=len(format.NO_CHANGE))

    for label, group, gain in rows:
        cells: list[str | Text] = [Text(label), percent(group["accuracy"]), format.interval(group["ci"])]
        if versus and gain:
            said = format.verdict(gain)
            digits = 2 if max(map(abs, gain["ci"])) < WIDE else 1
            interval = format.gain_interval(gain["ci"], digits, "..")
            cells += [f"{format.gained(gain, digits)} ({interval})", Text(said, style=STYLES[said])]
        table.add_row(*cells)
    return table


def _table(*columns: str, first: JustifyMethod) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], justify=first, no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def extremes(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The worst classes and the best, none in both lists, and what their ranks cannot say."""
    rows = result["test"]["by_class"]
    known = by_accuracy(rows)
    if len(known) < 2:
        return
    table = _table("%", first="right")
    table.add_column("worst classes", no_wrap=True)
    table.add_column("%", justify="right", no_wrap=True, min_width=5)
    table.add_column("best classes", no_wrap=True)
    shown = min(EXTREMES, len(known) // 2)
    for worst, best in list(zip(known, reversed(known), strict=True))[:shown]:
        table.add_row(
            percent(worst["accuracy"]), cell(worst["name"]), percent(best["accuracy"]), cell(best["name"])
        )
    yield table
    note = rank_note(rows, shown)
    if note:
        yield Text(note, style="dim")
    yield BLANK


def look_first(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The hardest classes for which there is a reason, and what was found in the whole data set."""
    found = (result.get("diagnostics") or {}).get("look_first")
    if not found:
        return
    reasons = [(row["name"], row["text"]) for row in found["classes"] if row["reasons"]][:LOOK_FIRST]
    if reasons:
        table = _table("look at these first", first="left")
        table.add_column("likely reason (training images, cross-fitted)", overflow="fold")
        for name, reason in reasons:
            table.add_row(cell(name, REASON), Paragraph(printable(reason)))
        yield table
        yield BLANK
    for line in format.look_first_totals(found):
        yield Text(printable(line))


def _margins(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    if result.get("margins"):
        low, high = result["margins"]["smallest"], result["margins"]["largest"]
        ends = (f"{end['gamma']:.3f} ({plain(end['class'])})" for end in (low, high))
        yield Text(f"margins: {' to '.join(ends)}")


def _remarks(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    for remark in format.remarks(result):
        yield Paragraph(f"note: {printable(remark)}", style="yellow")


def _times(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    timing = result["timing"]
    parts = [f"{name} {seconds:.1f} s" for name, seconds in timing.items() if name != "total"]
    yield Text(f"time: {timing['total']:.1f} s ({', '.join(parts)})", style="dim")


# From top to bottom, below the headline; a further part is a further row.
PARTS: tuple[Callable[[Mapping[str, Any]], Iterator[RenderableType]], ...] = (
    _conclusion,
    _accuracies,
    _by_count,
    by_attribute,
    extremes,
    look_first,
    _margins,
    _remarks,
    _times,
)
