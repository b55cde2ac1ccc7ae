"""A grid of runs, or existing runs, as one table: what is missing is run, what exists is reused.

A run is reused when its folder (named by the recipe's hash) holds a readable result of exactly that recipe,
on data, weights and groups that are still the same. A failure is noted and the grid continues.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from probe import methods
from probe.core import collectives
from probe.data import duplicates
from probe.errors import UserError
from probe.methods import ranges
from probe.probing import sharing
from probe.recipe import BackboneConfig, Recipe, build, grammar, override
from probe.runs import first_stage, staleness
from probe.runs import groups as grouping
from probe.runs.common_ground import LastGround
from probe.runs.folder import PLOTS, RunFolder, understood
from probe.runs.naming import label, slug
from probe.runs.reference import ERM, PROBE, SAME
from probe.runs.staleness import Present
from probe.runs.table import against, assemble, in_groups, of_runs, row_of
from probe.runs.which_backbone import Entry, which_backbone
from probe.system import world
from probe.system.progress import bar

Result = Mapping[str, Any]  # of a run, as result.json has it


class Plan(Protocol):
    """What is to be compared."""

    def recipes(self) -> list[Recipe]:
        """In the order in which they are run."""
        ...


@dataclass(frozen=True)
class Grid:
    """Every backbone on every data set with every method."""

    backbones: Sequence[str]
    data: Sequence[str]
    methods: Sequence[str]
    settings: Sequence[str] = ()  # KEY=VALUE words that override every recipe, e.g. seeds=5

    def recipes(self) -> list[Recipe]:
        """Ordered so that runs which share features follow each other, each training after its erm."""
        empty = [
            word
            for word, given in (
                ("backbone", self.backbones),
                ("data set", self.data),
                ("method", self.methods),
            )
            if not given
        ]
        if empty:
            raise UserError(f"the grid is empty: name at least one {' and one '.join(empty)}")
        cells = ((b, d, m) for d in self.data for b in self.backbones for m in self.methods)
        named = ({"backbone": {"name": b}, "data": {"name": d}, "method": m} for b, d, m in cells)
        recipes = [_able(override(content, self.settings)) for content in named]
        check_versus(recipes)
        pairs = [_with_erm(r) if r.trains and not _refused(r) else (r,) for r in recipes]
        return list({slug(r): r for pair in pairs for r in pair}.values())  # a name given twice counts once


def _able(content: dict[str, Any]) -> Recipe:
    """The recipe, by SGD where its method has no exact solver and nothing says how it is to be solved."""
    recipe = build(content)
    points = ranges.points(recipe.method)
    for point in points:  # bad parameters of one method are told before any run of another
        methods.catalogue.resolve(point.name, point.params)
    if recipe.trains or "solver" in content or first_stage.is_exact(recipe.method):
        return recipe
    specs = methods.info(recipe.method.name), methods.inner(recipe.method.name, points[0].params)
    if any(spec.frozen == "sgd" for spec in specs) and all(spec.frozen != "no effect" for spec in specs):
        return build({**content, "solver": {"name": "sgd"}})
    return recipe


def check_versus(recipes: Iterable[Recipe]) -> None:
    """Refuse recipes that say what they are compared with: here the table does."""
    if any(recipe.versus != "auto" for recipe in recipes):
        raise UserError("a comparison is always with erm of the same settings; leave versus out")


def _refused(recipe: Recipe) -> bool:
    """Can it not be run at all, so that training its erm would be in vain?"""
    from probe.runs import run, strategy

    try:
        run.check(strategy.choose(recipe))
    except UserError:
        return True
    return False


def _with_erm(recipe: Recipe) -> tuple[Recipe, ...]:
    """A training after the erm that it is compared with, which may be itself."""
    return (recipe.plain,) if recipe.method.name == ERM else (recipe.plain, recipe)


@dataclass(frozen=True)
class Cell:
    """One run of the grid: its result, or why there is none."""

    recipe: Recipe
    folder: Path
    result: Result | None
    error: str | None = None
    reused: bool = False


NO_TIME = "not run: the minutes were over; the same command goes on from here"


def fill(
    plan: Plan,
    finished: Callable[[Cell], None] = lambda cell: None,
    *,
    cache: Path | None = None,
    out: Path = Path("runs"),
    minutes: float | None = None,
) -> list[Cell]:
    """Run what is missing, reuse what exists; one bar for all of it. Several processes do every run alike.

    `finished` is told of each cell as soon as it is known.
    After so many minutes no further run is begun; one that has begun is finished, and what exists is reused.
    """
    recipes, present, begin, last = plan.recipes(), Present(cache), time.monotonic(), LastGround()
    if world.size() > 1:
        sharing.join()
    cells = []
    with bar("comparing", len(recipes), "runs") as advance:
        for recipe in recipes:
            late = minutes is not None and time.monotonic() - begin >= 60 * minutes
            cells.append(_cell(recipe, present, out, last, late=late))
            finished(cells[-1])
            advance(1)
    return cells


def _cell(recipe: Recipe, present: Present, out: Path, last: LastGround, *, late: bool) -> Cell:
    folder = RunFolder.of(recipe, out)
    late = _any_of_all(late)  # all stop at the same run; and wait until process 0 has written the one before
    found = staleness.current(recipe, folder, present)
    _wait_for_all()  # before it writes the next
    if found is not None:
        return Cell(recipe, folder.path, found, reused=True)
    if late:
        return Cell(recipe, folder.path, None, error=NO_TIME)
    from probe.runs.run import run

    try:
        return Cell(recipe, folder.path, run(recipe, cache=present.cache, out=out, last=last).result)
    except Exception as error:  # whatever broke one run must not cost the others
        if collectives.peer_lost(error):
            raise
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return Cell(recipe, folder.path, None, error=said.splitlines()[0] if said else type(error).__name__)


def _wait_for_all() -> None:
    _any_of_all(False)


def _any_of_all(said: bool) -> bool:
    """Does any process say so? Waits for all of them."""
    return bool(collectives.largest(int(said), device=torch.device("cpu"))[0])


def table(
    cells: Iterable[Cell],
    compared: Callable[[Cell, Sequence[Cell]], Result] | None = None,
    called: Callable[[Recipe], str] = label,
) -> dict[str, Any]:
    """The comparison as plain data: rows in the papers' layout, rankings and failures.

    `compared` gives the result of a cell against its reference (default: against erm), `called` the name of
    its row.
    """
    cells = list(cells)
    done = [c for c in cells if c.result is not None]
    _check_same_data(done)
    if compared is None:
        done, shared = _in_shared_groups(done)
    else:
        shared = {}
    judged = [(c, (compared or _compared)(c, done)) for c in done]
    rows = [
        {**row_of(c.recipe, c.folder, result, reused=c.reused), "method": called(c.recipe)}
        for c, result in judged
    ]
    failed = [
        {
            "backbone": c.recipe.backbone.title,
            "data": c.recipe.data.name,
            "method": called(c.recipe),
            "error": c.error,
        }
        for c in cells
        if c.error is not None
    ]
    said = [*_groups_that_differ(judged), *_without_reference(judged), *_identical_images(done)]
    how = SAME if any(c.recipe.trains for c in cells) else PROBE
    entries = [Entry(c.folder, row) for c, row in zip(done, rows, strict=True)]
    comparison = assemble(rows, ERM, failed, said=said, how=how)
    return {**comparison, "backbones": which_backbone(entries, ERM), "shared_groups": shared}


def _in_shared_groups(done: Sequence[Cell]) -> tuple[list[Cell], dict[str, str]]:
    """The runs of a data set in the groups of its first backbone, if each ranked the classes for itself.

    Otherwise "hard" would be other classes for every backbone. Also what to say about it, by data set.
    """
    cells, shared = [], {}
    first = {c.recipe.data.name: c for c in reversed(done)}
    several = {
        d for d in first if len({c.recipe.backbone.title for c in done if c.recipe.data.name == d}) > 1
    }
    for cell in done:
        data, giver = cell.recipe.data.name, first[cell.recipe.data.name]
        own = cell.recipe.groups == giver.recipe.groups == "crossfit"
        if data in several and own and cell.result is not None and giver.result is not None:
            name = giver.recipe.backbone.title
            shared[data] = f"groups of {name}, cross-fitted on training images, for every backbone"
            if _members(cell.result) != _members(giver.result):
                groups = grouping.of_result(giver.result, _classes(cell.result))
                cell = replace(cell, result=in_groups(cell.result, cell.folder, groups, name))
        cells.append(cell)
    return cells, shared


def _members(result: Result) -> dict[str, list[str]]:
    return {name: sorted(g["classes"]) for name, g in result["test"]["groups"].items()}


def _identical_images(done: Sequence[Cell]) -> list[str]:
    """What each data set's runs say about images that occur more than once."""
    found = {
        c.recipe.data.name: duplicates.remark(c.result["data"].get("duplicates")) for c in done if c.result
    }
    return [f"{name}: {said}" for name, said in found.items() if said]


def _erm_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The erm training of the same settings, if it is there."""
    return next((c for c in cells if c.recipe.digest == cell.recipe.plain.digest), None)


def _compared(cell: Cell, cells: Sequence[Cell]) -> Result:
    """The cell's result against erm: a probe's as it is; a training's computed against the trained erm."""
    assert cell.result is not None
    if not cell.recipe.trains:
        return cell.result
    plain = _erm_of(cell, cells)
    if plain is None or plain.recipe.digest == cell.recipe.digest:
        return {**cell.result, "reference": None, "versus": None}
    return against(cell.result, cell.folder, plain.folder)


def _without_reference(judged: Iterable[tuple[Cell, Result]]) -> Iterator[str]:
    for cell, result in judged:
        itself = cell.recipe.digest == cell.recipe.plain.digest
        if cell.recipe.trains and not itself and not result.get("versus"):
            yield f"{cell.folder.name} is compared with nothing: its erm has failed"


def _check_same_data(cells: Sequence[Cell]) -> None:
    """Runs on one data set must have the same test images and classes."""
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


def _groups_that_differ(judged: Iterable[tuple[Cell, Result]]) -> Iterator[str]:
    """Every backbone ranks the classes of a data set in its own way, unless all are given the same groups."""
    groups: dict[str, set[str]] = {}
    for cell, result in judged:
        groups.setdefault(cell.recipe.data.name, set()).add(json.dumps(_members(result)))
    if any(len(different) > 1 for different in groups.values()):
        yield (
            "easy, medium and hard are each backbone's own classes; "
            "--groups with a run or a file gives all of them the same"
        )


def _classes(result: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in result["test"]["by_class"]]


def _test_images(result: Mapping[str, Any]) -> Any:
    return (result["data"].get("fingerprints") or {}).get("test")


def save(
    comparison: Mapping[str, Any], folder: Path, *, plots: bool = False, cache: Path | None = None
) -> Path:
    """Write the comparison as JSON, CSV, Markdown, LaTeX and a page, and its charts as files."""
    from probe.report.charts import static
    from probe.report.html import comparison as comparison_page
    from probe.report.text import exports, published
    from probe.system.atomic import staged_folder, write_atomic

    writers: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "comparison.json": lambda c: json.dumps(c, indent=2, allow_nan=False),
        "comparison.csv": exports.csv,
        "comparison.md": lambda c: published.markdown(c) + exports.markdown(c),
        "comparison.tex": lambda c: published.latex(c) + exports.latex(c),
        "comparison.html": lambda c: comparison_page.render(c, keep=cache),
    }
    with staged_folder(folder) as staged:
        for name, write in writers.items():
            write_atomic(staged / name, write(comparison))
        if plots:
            static.save(comparison_page.of_comparison(comparison), staged / PLOTS)
    return folder


def command(
    words: Sequence[str],
    *,
    backbones: Sequence[str] = (),
    data: Sequence[str] = (),
    methods: Sequence[str] = (),
    recipes: Sequence[str] = (),
    seeds: int | None = None,
    groups: str | None = None,
    plots: bool = False,
    minutes: float | None = None,
    cache: Path | None,
    out: Path,
) -> tuple[dict[str, Any], Path]:
    """What `probe compare` does: run folders as they are, a grid, or recipes; saved under its own name."""
    folders = [Path(w) for w in words if "=" not in w]
    settings = [f"seeds={seeds}"] if seeds is not None else []
    settings += [f"groups={json.dumps(groups)}"] if groups and not folders else []
    settings += [w for w in words if "=" in w]  # the last one wins
    named = bool(backbones or data or methods)
    nets = _names(backbones) if backbones or not named else [BackboneConfig().name]
    grid = Grid(nets, _names(data), _names(methods, grammar.listed), settings)
    if minutes is not None and not minutes >= 0:
        raise UserError(f"--minutes {minutes:g}: give 0 (only what exists) or more")
    if sum((bool(folders), named, bool(recipes))) > 1 or (folders and settings):
        raise UserError(
            "give either runs to compare, a grid (--backbones, --data, --methods) or --recipes, not both"
        )
    if folders:
        with understood(*folders):
            comparison, key = of_runs(folders, groups), [*map(str, folders), groups or ""]
    elif recipes:
        from probe.runs.recipe_rows import RecipeRows

        rows = RecipeRows.named(_names(recipes), settings, out)
        key, cells = rows.key, fill(rows, cache=cache, out=out, minutes=minutes)
        comparison = rows.table(cells) if world.rank() == 0 else {}
    else:
        key = [slug(recipe) for recipe in grid.recipes()]
        cells = fill(grid, cache=cache, out=out, minutes=minutes)
        refuse_shared_mistake(cells)
        comparison = table(cells) if world.rank() == 0 else {}
    if world.rank() > 0:
        return comparison, out
    digest = hashlib.sha256("\n".join(key).encode(errors="surrogateescape")).hexdigest()[:8]
    return comparison, save(comparison, out / f"compare-{digest}", plots=plots, cache=cache)


def refuse_shared_mistake(cells: Sequence[Cell]) -> None:
    """A mistake that left nothing to compare, as a wrong folder is, is told once."""
    said, *others = {cell.error for cell in cells}
    if not others and said not in (None, NO_TIME):
        raise UserError(said)


def _words(values: Sequence[str]) -> list[str]:
    return [word for value in values for word in shlex.split(value)]


def _names(values: Sequence[str], split: Callable[[Sequence[str]], list[str]] = _words) -> list[str]:
    """`("a b", "c")` as a, b, c; quotes keep a path with spaces together."""
    try:
        return split(values)
    except ValueError as error:
        raise UserError(f"cannot tell the names apart in {' '.join(values)!r}: {error}") from error
