"""The table of classes: one bar per class, sortable and searchable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from probe.report.html.markup import element, text
from probe.report.html.markup import name as named
from probe.report.text import format
from probe.report.text.format import gained, interval, percent

Row = Mapping[str, Any]  # of `test.by_class`
SEARCH = (
    '<div class="tools"><label for="search">Search classes</label>'
    '<input id="search" type="search" placeholder="name or group" autocomplete="off" '
    'data-search="classes" data-count="found">'
    '<output id="found" for="search" aria-live="polite"></output></div>'
)


@dataclass(frozen=True)
class Column:
    """A column: its heading, and what it shows for a class."""

    heading: str
    show: Callable[[Row], str]  # HTML
    value: Callable[[Row], float | None] | None = None  # what it is sorted by; None: by the text
    numeric: bool = True
    sortable: bool = True
    optional: bool = False  # hidden on narrow screens
    style: Callable[[Row], str] = lambda row: ""

    def head(self) -> str:
        """The heading; a button where the table can be sorted by it."""
        name = text(self.heading)
        content = element("button", name, type="button") if self.sortable else name
        order = "none" if self.sortable else None
        return element("th", content, scope="col", cls=self._classes() or None, aria_sort=order)

    def cell(self, row: Row) -> str:
        """The cell of a class, with the value that it is sorted by."""
        data = None
        if self.value is not None:
            value = self.value(row)
            data = "" if value is None else f"{value:.6g}"
        return element("td", self.show(row), cls=self._classes(self.style(row)) or None, data_value=data)

    def _classes(self, more: str = "") -> str:
        parts = ("number" if self.numeric else "", "optional" if self.optional else "", more)
        return " ".join(filter(None, parts))


def class_table(result: Mapping[str, Any]) -> str:
    """Every class of a result, worst first."""
    shown = list(columns(result))
    rows = sorted(result["test"]["by_class"], key=lambda r: (r["accuracy"] is None, r["accuracy"] or 0))

    def line(row: Row) -> str:
        cells = element("th", named(row["name"]), scope="row") + "".join(c.cell(row) for c in shown)
        return element("tr", cells, data_words=f"{row['name']} {row['group']}")

    caption = "Worst classes first."
    if result.get("versus"):
        caption += " Verdicts are corrected for the number of classes (Holm)."
    name = Column("class", lambda row: "", numeric=False)
    heading = element("tr", name.head() + "".join(c.head() for c in shown))
    body = element(
        "table",
        element("caption", text(caption))
        + element("thead", heading)
        + element("tbody", "".join(map(line, rows))),
        id="classes",
        cls="sortable",
    )
    return SEARCH + element(
        "div", body, cls="scroll window", tabindex="0", role="region", aria_label="Table of classes"
    )


def columns(result: Mapping[str, Any]) -> Iterator[Column]:
    """What this result has about each class, besides its name."""
    rows, versus = result["test"]["by_class"], result.get("versus") or {}
    yield Column("group", lambda row: text(row["group"]), numeric=False)
    yield Column("test images", lambda row: f"{row['n']:,}", lambda row: row["n"], optional=True)
    if any("train_n" in row for row in rows):
        yield Column(
            "training images",
            lambda row: f"{row.get('train_n', 0):,}",
            lambda row: row.get("train_n"),
            optional=True,
        )
    yield Column("accuracy %", _bar, lambda row: row["accuracy"])
    yield Column("95 % interval", lambda row: interval(row["ci"]), sortable=False, optional=True)
    if result.get("reference"):
        name = format.against(versus.get("method", "reference"), versus.get("how"))
        yield _reference(result["reference"], name)
    if versus.get("by_class"):
        yield from _gains({row["name"]: row for row in versus["by_class"]})


def _bar(row: Row) -> str:
    accuracy = row["accuracy"]
    inner = f'<i style="width:{100 * (accuracy or 0):.1f}%"></i><b>{percent(accuracy)}</b>'
    return element("span", inner, cls="bar")


def _reference(reference: Mapping[str, Any], name: str) -> Column:
    accuracy = {row["name"]: row["accuracy"] for row in reference["by_class"]}
    return Column(
        f"{name} %",
        lambda row: percent(accuracy[row["name"]]),
        lambda row: accuracy[row["name"]],
        optional=True,
    )


def _gains(gains: Mapping[str, Row]) -> Iterator[Column]:
    def said(row: Row) -> str:
        gain = gains[row["name"]]
        return format.verdict(gain if gain["mean"] is not None else None)

    yield Column("gain", lambda row: gained(gains[row["name"]]), lambda row: gains[row["name"]]["mean"])
    yield Column("verdict", said, numeric=False, style=lambda row: f"verdict {format.TONE[said(row)]}")
