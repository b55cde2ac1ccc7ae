"""A grid of runs, or runs that exist, as one table: what is missing is run, what exists is reused.

A run is reused when its folder (named by the recipe's hash) holds a readable result of exactly that recipe.
A failure is noted and the grid goes on.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import sums
from probe.errors import UserError
from probe.evaluate import elsewhere
from probe.evaluate.judge import Bench, judge, versus
from probe.evaluate.significance import LEVEL, holm
from probe.progress import bar
from probe.recipe import Recipe, build, override
from probe.report import runs

SCHEMA = 1
Row = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Every backbone on every data set with every method."""

    backbones: Sequence[str]
    data: Sequence[str]
    methods: Sequence[str]
    settings: Sequence[str] = ()  # KEY=VALUE words laid over every recipe, e.g. seeds=5

    def recipes(self) -> list[Recipe]:
        """Ordered so that runs which share features follow each other."""
        empty = [
            w
            for w, v in (("backbone", self.backbones), ("data set", self.data), ("method", self.methods))
            if not v
        ]
        if empty:
            raise UserError(f"the grid is empty: name at least one {' and one '.join(empty)}")
        cells = ((b, d, m) for d in self.data for b in self.backbones for m in self.methods)
        named = ({"backbone": {"name": b}, "data": {"name": d}, "method": {"name": m}} for b, d, m in cells)
        recipes = [build(override(content, self.settings)) for content in named]
        return list({recipe.slug: recipe for recipe in recipes}.values())  # a name given twice counts once


@dataclass(frozen=True)
class Cell:
    """One run of the grid: its result, or why there is none."""

    recipe: Recipe
    folder: Path
    result: Mapping[str, Any] | None
    error: str | None = None
    reused: bool = False


def fill(grid: Grid, *, cache: Path | None = None, out: Path = Path("runs")) -> list[Cell]:
    """Run what is missing, reuse what exists; one bar for all of it."""
    recipes = grid.recipes()
    cells = []
    with bar("comparing", len(recipes), "runs") as advance:
        for recipe in recipes:
            cells.append(_cell(recipe, cache, out))
            advance(1)
    return cells


def _cell(recipe: Recipe, cache: Path | None, out: Path) -> Cell:
    folder = out / recipe.slug
    found = existing(recipe, folder)
    if found is not None:
        return Cell(recipe, folder, found, reused=True)
    from probe.run import run

    try:
        return Cell(recipe, folder, run(recipe, cache=cache, out=out).result)
    except Exception as error:  # whatever broke one run must not cost the others
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return Cell(recipe, folder, None, error=said.splitlines()[0] if said else type(error).__name__)


def existing(recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """The result in `folder` if it is whole and of this very recipe; else None, and it is run again."""
    if not (folder / "predictions.parquet").is_file():
        return None
    try:
        result = runs.read_result(folder)
        same = build(result["recipe"]).digest == recipe.digest
    except (UserError, KeyError, TypeError):
        return None
    return result if same and result["test"].get("groups") else None


def table(cells: Iterable[Cell]) -> dict[str, Any]:
    """The comparison as plain data: rows in the papers' layout, rankings and failures."""
    cells = list(cells)
    done = [c for c in cells if c.result is not None]
    _check_same_data(done)
    rows = [_row(c.recipe, c.folder, c.result, reused=c.reused) for c in done if c.result is not None]
    failed = [
        {
            "backbone": c.recipe.backbone.name,
            "data": c.recipe.data.name,
            "method": c.recipe.label,
            "error": c.error,
        }
        for c in cells
        if c.error is not None
    ]
    return _assemble(rows, "erm", failed)


def _assemble(rows: list[Row], reference: str, failed: Sequence[Row] = ()) -> dict[str, Any]:
    _correct(rows)
    return {
        "schema": SCHEMA,
        "reference": reference,
        "groups": list(dict.fromkeys(n for row in rows for n in row["statistics"] if n != "overall")),
        "rows": rows,
        "ranking": {key: _ranking(rows, key) for key in ("method", "backbone")},
        "failed": list(failed),
        "remarks": _remarks(rows),
    }


def _check_same_data(cells: Sequence[Cell]) -> None:
    """Runs on one data set must have seen the same test images and classes."""
    first: dict[str, Cell] = {}
    for cell in cells:
        assert cell.result is not None
        other = first.setdefault(cell.recipe.data.name, cell)
        assert other.result is not None
        for what, key in (("classes", _classes), ("test images", _test_images)):
            if key(cell.result) != key(other.result):
                raise UserError(
                    f"{cell.folder.name} and {other.folder.name} have different {what} of "
                    f'"{cell.recipe.data.name}"; remove the older run folder, and it is run again'
                )


def _classes(result: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in result["test"]["by_class"]]


def _test_images(result: Mapping[str, Any]) -> Any:
    return (result["data"].get("fingerprints") or {}).get("test")


def _row(recipe: Recipe, folder: Path, result: Mapping[str, Any], *, reused: bool) -> Row:
    return {
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "method": recipe.label,
        "seeds": len(result["seeds"]),
        "run": folder.name,
        "reused": reused,
        "statistics": statistics(result),
    }


def statistics(result: Mapping[str, Any]) -> Row:
    """Accuracy, interval and gain of each column of the table."""
    test, reference = result["test"], result.get("reference")
    gains = (result.get("versus") or {}).get("gain") or {}

    def entry(name: str, accuracy: float | None, ci: Any, before: float | None) -> Row:
        gain = dict(gains[name]) if gains.get(name) else None
        relative = None if gain is None or not before else gain["mean"] / before
        return {"accuracy": accuracy, "ci": ci, "gain": gain, "relative": relative}

    columns = {"overall": entry("overall", test["top1"], test["ci"], reference and reference["top1"])}
    for name, group in test["groups"].items():
        before = reference and reference["groups"][name]["accuracy"]
        columns[name] = entry(name, group["accuracy"], group["ci"], before)
    return columns


def _correct(rows: Sequence[Row]) -> None:
    """Holm's correction over every gain of the table: what is called clear is clear among so many looks."""
    gains = [s["gain"] for row in rows for s in row["statistics"].values() if s["gain"] is not None]
    for gain, p in zip(gains, holm([g["p"] for g in gains]), strict=True):
        gain["p_holm"], gain["clear"] = float(p), bool(p < LEVEL)


def hardest(row: Row) -> Row:
    """The last group's column."""
    return list(row["statistics"].values())[-1]


def _ranking(rows: Sequence[Row], key: str) -> list[Row]:
    """Methods or backbones by their mean gain on the hardest group, over everything they ran on."""
    compared = [row for row in rows if hardest(row)["gain"] is not None]
    ranked = []
    for name in dict.fromkeys(row[key] for row in compared):
        gains = [hardest(row)["gain"] for row in compared if row[key] == name]
        ranked.append(
            {
                "name": name,
                "gain": sum(g["mean"] for g in gains) / len(gains),
                "runs": len(gains),
                "clearly_better": sum(g["clear"] and g["mean"] > 0 for g in gains),
                "clearly_worse": sum(g["clear"] and g["mean"] < 0 for g in gains),
            }
        )
    return sorted(ranked, key=lambda r: -r["gain"])


def _remarks(rows: Sequence[Row]) -> list[str]:
    said = []
    if any(row["seeds"] == 1 for row in rows):
        said.append("one seed only: the intervals come from the test images alone")
    if rows and not any(hardest(row)["gain"] for row in rows):
        said.append("only the reference was run: name another method to see gains")
    return said


def of_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Runs that exist, each against the first one, image by image; groups are the first one's."""
    if len(folders) < 2:
        raise UserError("name at least two runs to compare; the first is the reference")
    results = [runs.read_result(folder) for folder in folders]
    recipes = [build(result["recipe"]) for result in results]
    predictions = [_predictions(folder) for folder in folders]
    outcomes = [p.outcome(r.label) for p, r in zip(predictions, recipes, strict=True)]
    for folder, p, o in zip(folders, predictions, outcomes, strict=True):
        for what, same in (
            ("classes", p.class_names == predictions[0].class_names),
            ("test images", p.ids == predictions[0].ids),
            ("numbers of seeds", len(o.hits) == len(outcomes[0].hits)),
        ):
            if not same:
                raise UserError(
                    f"{folder} and {folders[0]} have different {what}, so they cannot be compared"
                )
    names = predictions[0].class_names
    where = {name: k for k, name in enumerate(names)}
    groups = {g: [where[n] for n in block["classes"]] for g, block in results[0]["test"]["groups"].items()}
    bench = Bench(predictions[0].labels, names, groups)
    judged = [judge(outcome, bench) for outcome in outcomes]
    rows = []
    for i, (folder, recipe) in enumerate(zip(folders, recipes, strict=True)):
        block: dict[str, Any] = {"test": judged[i], "seeds": outcomes[i].hits}
        if i > 0:
            block |= {"reference": judged[0], "versus": versus(outcomes[i], outcomes[0], bench)}
        rows.append(_row(recipe, folder, block, reused=True))
    return _assemble(rows, folders[0].name)


def _predictions(folder: Path) -> elsewhere.Foreign:
    path = folder / "predictions.parquet"
    if not path.is_file():
        raise UserError(f"{folder} has no predictions.parquet, which a comparison needs; run it again")
    sums.check(path)
    return elsewhere.read(path)


def save(comparison: Mapping[str, Any], folder: Path) -> Path:
    """Write the comparison as JSON, CSV, Markdown, LaTeX and a page."""
    from probe.files import staged_folder, write_atomic
    from probe.report import comparison_page, exports

    writers: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "comparison.json": lambda c: json.dumps(c, indent=2, allow_nan=False),
        "comparison.csv": exports.csv,
        "comparison.md": exports.markdown,
        "comparison.tex": exports.latex,
        "comparison.html": comparison_page.render,
    }
    with staged_folder(folder) as staged:
        for name, write in writers.items():
            write_atomic(staged / name, write(comparison))
    return folder


def command(
    words: Sequence[str],
    *,
    backbones: Sequence[str],
    data: Sequence[str],
    methods: Sequence[str],
    seeds: int | None,
    cache: Path | None,
    out: Path,
) -> tuple[dict[str, Any], Path]:
    """What `probe compare` does: run folders as they are, or a grid; saved under a name of its own."""
    folders = [Path(w) for w in words if "=" not in w]
    settings = [w for w in words if "=" in w] + ([f"seeds={seeds}"] if seeds else [])
    grid = Grid(_names(backbones), _names(data), _names(methods), settings)
    if folders:
        if settings or grid.backbones or grid.data or grid.methods:
            raise UserError(
                "give either runs to compare or a grid (--backbones, --data, --methods), not both"
            )
        comparison, key = of_runs(folders), [str(f) for f in folders]
    else:
        key = [recipe.slug for recipe in grid.recipes()]
        comparison = table(fill(grid, cache=cache, out=out))
    digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:8]
    return comparison, save(comparison, out / f"compare-{digest}")


def _names(values: Sequence[str]) -> list[str]:
    """`("a b", "c")` as a, b, c; quotes keep a path with spaces together."""
    return [word for value in values for word in shlex.split(value)]
