"""What there is to choose from: backbones, data sets, methods, cached features. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from probe.cli.options import json_flag
from probe.report.text import listings

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Listing:
    """Rows as JSON gives them, the columns of the table, and a line below it."""

    rows: Rows
    columns: tuple[str, ...]
    note: str = ""

    def show(self, as_json: bool) -> None:
        """Print the table, or the rows as JSON."""
        listings.show(self.rows, self.columns, as_json=as_json, note=self.note)


def backbones() -> Listing:
    """List the backbones that can be probed."""
    import backbones

    rows = [spec.row() for spec in backbones.specs()]
    for row in rows:
        row["top-1"] = ", ".join(f"{kind} {value:g}" for kind, value in row["imagenet"].items()) or None
    return Listing(
        rows,
        ("name", "dim", "size", "top-1", "licence", "weights"),
        "top-1: on ImageNet, in percent, as published; nothing measured here.",
    )


def datasets() -> Listing:
    """List the registered data sets."""
    from probe.data import catalogue

    rows = [spec.row() for spec in catalogue.rows()]
    for row in rows:
        row["images"] = " / ".join(f"{n:,}" for n in row["sizes"].values())
    return Listing(
        rows,
        ("name", "classes", "metric", "images", "source"),
        "images: train / (val /) test. Also: an image folder, a folder of parquet files, any Hub dataset id.",
    )


def methods() -> Listing:
    """List the losses and training methods."""
    from probe.losses import catalogue as losses
    from probe.methods import catalogue as methods

    plain = [loss for loss in losses.specs() if not methods.wraps(loss.name)]
    rows = [method.row() for method in (*plain, *methods.specs())]
    for row in rows:
        row["parameters"] = {p["name"]: p["default"] for p in row["parameters"]}
        row["on balanced data"] = row["balanced"]
    return Listing(
        rows,
        ("name", "takes", "needs", "frozen", "on balanced data", "title", "paper"),
        "frozen: what it can do on cached features. Parameters and reasons: probe methods --json",
    )


def recipes() -> Listing:
    """List the recipes that come with the package: for everyday use, and every row of the papers' tables."""
    from probe.recipe import library
    from probe.runs.availability import Catalogues

    rows, catalogues = [], Catalogues()
    for row in library.every():
        why_not = catalogues.why_not(row.content)
        numbers = [v for v in (row.published or {}).values() if v is not None]
        rows.append(
            {
                **{key: getattr(row, key) for key in ("name", "paper", "table", "row", "variant", "title")},
                "about": row.about or None,
                "method": row.content.get("method", "default"),
                "published": row.published,
                "ours": list(row.ours),
                "note": row.note,
                "runnable": why_not is None,
                "why_not": why_not,
                "numbers": " ".join(f"{v:g}" for v in numbers) or None,
                "state": "runs" if why_not is None else f"not available: {why_not}",
            }
        )
    return Listing(
        rows,
        ("name", "numbers", "state", "method"),
        "numbers: as published, in percent; their columns are in probe recipes --json. To run one: probe run "
        "NAME; a whole table: probe compare --recipes TABLE.",
    )


def cache_entries(cache: Path | None) -> Listing:
    """Every entry of the feature cache, newest first."""
    from probe.features import inventory

    rows = []
    for entry in inventory.entries(cache):
        size, date = f"{entry.bytes / 1e6:,.1f} MB", f"{entry.date:%Y-%m-%d %H:%M}"
        rows.append({**asdict(entry), "date": date, "path": str(entry.path), "size": size})
    return Listing(rows, ("name", "view", "state", "rows", "dim", "dtype", "size", "date"))


LISTED = (backbones, datasets, methods, recipes)  # each is a command of its name; its docstring is the help


def listing(make: Callable[[], Listing]) -> click.Command:
    """The command that prints a listing."""

    @json_flag
    def show(as_json: bool) -> None:
        make().show(as_json)

    return click.command(make.__name__, help=make.__doc__)(show)
