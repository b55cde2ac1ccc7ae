"""A table of a paper as recipes: rows that share their settings, each with the numbers that were published.

    paper: "Zhu et al., ..."          where the table is printed
    table: "1a"
    title: CIFAR-100, ResNet-32
    columns: [overall, easy, medium, hard]
    settings: {backbone: cifar-resnet32, data: cifar100, finetune: true}
    ours: [seeds]                     settings that no source states
    rows:
    - {name: fairdro, title: FairDRO, method: fairdro, published: [72.0, 85.7, 72.5, 57.7]}

A file with `variants` has every row once for each of them (imbalance factors, networks): row `bs` of the
variant `if100` is called `bs-if100`, and `published` (and `method`, where it differs) says which is which.
No torch here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError

from probe.errors import UserError, nearest
from probe.recipe import errors
from probe.recipe.base import Section

ROWS = "rows"  # the key that makes a file a table
Numbers = list[float | None]  # in percent, as printed; None where the paper has no number


class VariantConfig(Section):
    """What every row of the table is repeated with."""

    title: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    columns: tuple[str, ...] = ()  # of its published numbers, where they are not those of the table


class RowConfig(Section):
    """A row as the file writes it."""

    name: str = Field(pattern=r"^[\w.-]+$")  # what people type
    title: str = ""  # as the paper prints it; default: the name
    method: str | dict[str, Any] = "erm"  # or one for each variant
    # over those that the rows share; null leaves one of those out
    settings: dict[str, Any] = Field(default_factory=dict)
    # one number for each column; or that for each variant
    published: Numbers | dict[str, Numbers] = Field(default_factory=list)
    ours: tuple[str, ...] = ()
    against: str | None = None  # the row that its gains are measured against; default: erm, same settings
    # parameters of the method that are run folders, and the rows whose runs they are: {first: erm}
    uses: dict[str, str] = Field(default_factory=dict)
    note: str = ""


class TableConfig(Section):
    """The file of a table."""

    paper: str
    table: str | int
    title: str
    columns: tuple[str, ...]  # overall, a group of classes, best or worst class
    settings: dict[str, Any] = Field(default_factory=dict)
    ours: tuple[str, ...] = ()
    against: str | None = None
    groups_from: str | None = None  # the row whose run ranks the classes; default: what a row is against
    variants: dict[str, VariantConfig] = Field(default_factory=dict)
    rows: tuple[RowConfig, ...]
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One recipe: a row of a table, or a recipe file by itself."""

    file: str  # `mr2/table1-cifar100`
    name: str  # `mr2/table1-cifar100/fairdro`; of a recipe by itself that of the file
    content: Mapping[str, Any]
    row: str | None = None  # `fairdro`; None for a recipe by itself
    title: str = ""
    variant: str | None = None
    columns: tuple[str, ...] = ()
    published: Mapping[str, float | None] | None = None  # by column, in percent
    ours: tuple[str, ...] = ()
    against: str | None = None  # names of other rows of the table
    uses: Mapping[str, str] = field(default_factory=dict)
    leaves_out: tuple[str, ...] = ()  # sections of the shared settings that are not for this row
    groups_from: str | None = None
    paper: str | None = None
    table: str | None = None  # `1a`
    about: str = ""  # what the table is about
    note: str = ""


def is_table(content: Mapping[str, Any]) -> bool:
    """Does a recipe file hold the rows of a table?"""
    return ROWS in content


def rows_of(content: Mapping[str, Any], name: str) -> list[Row]:
    """Every row of the table that a file holds; all mistakes are told in one line."""
    mistakes = list(errors.unstorable(dict(content)))
    try:
        table = TableConfig.model_validate(content)
    except ValidationError as error:
        mistakes += errors.explained(error, TableConfig)
    if mistakes:
        lines = dict.fromkeys(mistake.line.removeprefix(errors.PREFIX) for mistake in mistakes)
        raise UserError(f"{name}: {'; '.join(list(lines)[: errors.TOLD])}")
    found = [row for variant in table.variants or (None,) for row in _rows(table, name, variant)]
    known = [row.row for row in found]
    named = (n for row in found for n in (row.against, row.groups_from, *row.uses.values()))
    for given in (n for n in named if n is not None):
        if given not in known:
            raise UserError(f'{name}: there is no row "{given}"{nearest(given, [n for n in known if n])}')
    if len(set(known)) < len(known):
        twice = next(n for n in known if known.count(n) > 1)
        raise UserError(f'{name}: two rows are called "{twice}"; give each its own name')
    _check_uses(name, {str(row.row): row for row in found})
    return found


def _check_uses(name: str, rows: Mapping[str, Row]) -> None:
    """Refuse rows that would each have to be run before the other."""
    for start in rows:
        waiting, needed = [start], set[str]()
        while waiting:
            needed.update(others := set(rows[waiting.pop()].uses.values()) - needed)
            waiting += others
        if start in needed:
            raise UserError(f'{name}: row "{start}" needs its own run; `uses` names a row that is run before')


def _rows(table: TableConfig, name: str, variant: str | None) -> Iterator[Row]:
    own = VariantConfig() if variant is None else table.variants[variant]
    columns = own.columns or table.columns

    def called(row: str) -> str:
        return row if variant is None else f"{row}-{variant}"

    def perhaps(row: str | None) -> str | None:
        return None if row is None else called(row)

    for row in table.rows:
        numbers = _of_variant(row.published, variant, f"{name}/{row.name}: published")
        if numbers is None:  # the paper has no such row here
            continue
        if numbers and len(numbers) != len(columns):
            raise UserError(
                f"{name}/{row.name}: {len(numbers)} published numbers for the columns {', '.join(columns)}"
            )
        method = row.method
        if isinstance(method, dict) and "name" not in method:
            method = _of_variant(method, variant, f"{name}/{row.name}: method") or "erm"
        content: dict[str, Any] = {}
        for settings in (table.settings, own.settings, row.settings):
            content = merged(content, settings)
        yield Row(
            file=name,
            name=f"{name}/{called(row.name)}",
            content={**content, "method": method},
            row=called(row.name),
            title=row.title or row.name,
            variant=variant,
            columns=columns,
            published=dict(zip(columns, numbers, strict=True)) if numbers else None,
            ours=(*table.ours, *row.ours),
            against=perhaps(row.against or table.against),
            uses={key: called(other) for key, other in row.uses.items()},
            leaves_out=tuple(key for key, value in row.settings.items() if value is None),
            groups_from=perhaps(table.groups_from),
            paper=table.paper,
            table=str(table.table),
            about=", ".join(filter(None, (table.title, own.title or variant or ""))),
            note=" ".join(filter(None, (row.note, table.note))),
        )


def _of_variant(value: Any, variant: str | None, where: str) -> Any:
    """The variant's own part of what may differ between variants; None where it has none."""
    if not isinstance(value, dict):
        return value
    if variant is None:
        raise UserError(f"{where} is given by variant, and the table has no variants")
    return value.get(variant)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, section by section; a bare word stands for a section's name, null for none."""
    found = copy.deepcopy(dict(base))
    for key, value in over.items():
        before = found.pop(key, None)
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(before, str):
            before = {"name": before}
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        found[key] = merged(before or {}, value) if both else copy.deepcopy(value)
    return found
