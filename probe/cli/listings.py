"""What there is to choose from: backbones, data sets, methods, cached features. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    """Every registered backbone."""
    import backbones

    rows = [spec.row() for spec in backbones.specs()]
    return Listing(rows, ("name", "dim", "size", "licence", "weights"))


def datasets() -> Listing:
    """Every registered data set."""
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
    """Every loss, and every method around a loss."""
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


def cache_entries(cache: Path | None) -> Listing:
    """Every entry of the feature cache, newest first."""
    from probe.features import inventory

    rows = []
    for entry in inventory.entries(cache):
        size, date = f"{entry.bytes / 1e6:,.1f} MB", f"{entry.date:%Y-%m-%d %H:%M}"
        rows.append({**asdict(entry), "date": date, "path": str(entry.path), "size": size})
    return Listing(rows, ("name", "view", "state", "rows", "dim", "dtype", "size", "date"))
