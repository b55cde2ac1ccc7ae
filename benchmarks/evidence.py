"""What helps hard classes, where, and how sure are we? Every study of recipes/evidence, as one command.

    make evidence ARGS="--pets FOLDER --cifar100 FOLDER --only frozen --minutes 30"

Runs are those of `probe compare --recipes evidence/frozen`: what is finished is reused, no run is begun after
the minutes, and the same command goes on with the rest. Everything gets two seeds first, then as many as its
table says. Written in the end, from all runs that exist:

    results/<part>.csv      accuracy, gain over erm of the same settings, interval and p, by group
    results/forecast.csv    rank correlations of difficulty, known before training, with erm's errors
    results/left-out.csv    what was not run, and why
    docs/evidence.svg       gain on Hard against change overall

Gains are corrected together (Holm), all of one part. `--minutes 0` only writes the files. Parts that are not
asked for and studies without a finished row keep their lines, from another day or another machine, each with
the number of comparisons that it was corrected among, and the figure shows all of them.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import UserError
from probe.evaluation.diagnostics.forecast import rank_correlation
from probe.recipe import library
from probe.recipe.tables import Row
from probe.report.charts import static
from probe.report.charts.base import LIGHT, Chart
from probe.report.text import format
from probe.runs.compare import Cell, fill
from probe.runs.recipe_rows import Planned, RecipeRows, judged
from probe.runs.table import correct, count_statistics, statistics
from probe.system.atomic import write_atomic

PARTS = (
    "frozen",
    "margins",
    "finetune",
    "scratch",
    "long-tail",
)  # in this order; a table in recipes/evidence
FIRST = 2  # seeds of everything, before the rest
FOLDERS = {"pets": "Oxford-IIIT Pets", "cifar100": "CIFAR-100"}  # data that is not in the package
COUNTED = "many/medium/few"
LINEAR = 3.0  # points around zero up to which the figure's axes are nearly linear; logarithmic beyond
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 30, 50)
COLOURS = [LIGHT["series"][at] for at in (0, 3, 2)]  # three, with eight shapes, tell 24 data sets apart
NAMED = 2.0  # points of gain on Hard from which on a dot has its method's name in the figure
HEADINGS = (
    "part", "study", "data", "backbone", "method", "selection", "seeds", "classes", "accuracy",
    "gain", "low", "high", "low_alone", "high_alone", "p", "p_holm", "verdict",
    "comparisons", "seconds", "run",
)  # fmt: skip
SIGN_HEADINGS = ("study", "data", "sign", "classes", "rank_correlation_with_error")
LEFT = ("part", "study", "rows", "why")


@dataclass(frozen=True)
class Study:
    """The rows of one variant of a table: one data set, one backbone."""

    part: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """`pets-lt99`."""
        return self.rows[0].variant or self.part

    @property
    def data(self) -> str:
        """The catalogue's name of its data set."""
        found = self.rows[0].content.get("data", "digits")
        return str(found["name"] if isinstance(found, Mapping) else found)


@dataclass(frozen=True)
class Line:
    """A finished row: its result, grouped and compared, and what the tables show of it."""

    study: Study
    planned: Planned
    result: Mapping[str, Any]
    statistics: dict[str, Any]
    run: str

    def cells(self, comparisons: int) -> list[list[Any]]:
        """The lines of the CSV, one for each group of classes; percent and points."""
        recipe, seeds = self.planned.recipe, len(self.result["seeds"])
        assert recipe is not None
        about: list[Any] = [self.study.part, self.study.name, self.planned.row.about, recipe.backbone.title]
        about += [self.planned.row.title, recipe.select.name, seeds]
        seconds = round(self.result["timing"]["total"])
        return [
            [*about, name, _points(s["accuracy"]), *_gain(s["gain"]), comparisons, seconds, self.run]
            for name, s in self.statistics.items()
        ]


def _points(fraction: float) -> float:
    return round(100 * fraction, 2)


def _gain(gain: Mapping[str, Any] | None) -> list[Any]:
    if gain is None:
        return [""] * 8
    alone = gain.get("ci_alone", gain["ci"])  # before the correction
    numbers = [_points(v) for v in (gain["mean"], *gain["ci"], *alone)]
    return [*numbers, *(f"{gain[key]:.4g}" for key in ("p", "p_holm")), format.verdict(gain)]


def studies(part: str) -> list[Study]:
    """The variants of a part's table, in its order."""
    rows: dict[str | None, list[Row]] = {}
    for row in library.rows(f"evidence/{part}"):
        rows.setdefault(row.variant, []).append(row)
    return [Study(part, tuple(found)) for found in rows.values()]


@dataclass
class Evidence:
    """What has been found so far, and what was left out."""

    folders: Mapping[str, str | None]
    cache: Path | None
    out: Path
    until: float  # of the monotonic clock
    without: Sequence[str] = ()  # methods whose rows are not run

    def finished(self, study: Study, seeds: int | None) -> tuple[dict[str, Line], dict[str, str]]:
        """Run what is missing of a study while there is time: lines by row, and why others are missing."""
        folder = self.folders.get(study.data)
        if study.data in FOLDERS and folder is None:
            return {}, dict.fromkeys((row.name for row in study.rows), f"no --{study.data} was given")
        left_out = {row.name: "left out by --without" for row in study.rows if row.title in self.without}
        chosen = [row.name for row in study.rows if row.name not in left_out]
        settings = [f"data.root={folder}"] if folder else []
        settings += [f"seeds={seeds}"] if seeds else []
        try:
            plan = RecipeRows.named(chosen, settings, self.out)
        except UserError as error:
            return {}, dict.fromkeys(chosen, str(error)) | left_out
        left = max(self.until - time.monotonic(), 0) / 60
        minutes = None if math.isinf(left) else left
        found = {c.recipe.digest: c for c in fill(plan, cache=self.cache, out=self.out, minutes=minutes)}
        lines, missing = {}, left_out
        for planned in plan.planned:
            why = planned.why_not or _missing(planned, found)
            if why:
                missing[planned.row.name] = why
            else:
                lines[planned.row.name] = _line(study, planned, found)
        return lines, missing

    def gather(self, chosen: Sequence[Study]) -> tuple[list[Line], list[tuple[str, str, int, str]]]:
        """Studies, first with few seeds, then with all of their table; the most seeds of a row count."""
        lines: dict[str, Line] = {}
        missing: dict[str, dict[str, str]] = {}
        for seeds in (FIRST, None):
            for study in chosen:
                print(f"{study.part} {study.name}, {seeds or 'all'} seeds ...", flush=True)
                found, not_found = self.finished(study, _seeds(study, seeds))
                lines |= found
                why = missing.setdefault(f"{study.part} {study.name}", {})
                for name in found:
                    why.pop(name, None)
                asked = f"{seeds or 'all'} seeds: "
                why |= {name: asked + text for name, text in not_found.items()}
                print(f"{study.part} {study.name}, {seeds or 'all'} seeds: {len(found)} rows", flush=True)
        ordered = [lines[row.name] for study in chosen for row in study.rows if row.name in lines]
        return ordered, _grouped(missing)


def _seeds(study: Study, seeds: int | None) -> int | None:
    """At most as many as the table says."""
    most = int(study.rows[0].content.get("seeds", 1))
    return min(seeds, most) if seeds else None


def _missing(planned: Planned, found: Mapping[str, Cell]) -> str | None:
    """Why a row has no result, or nothing to compare it with."""
    errors = (found[r.digest].error for r in planned.runs if found[r.digest].result is None)
    return next((error or "it failed" for error in errors), None)


def _line(study: Study, planned: Planned, found: Mapping[str, Cell]) -> Line:
    result = judged(planned, found)
    shown = statistics(result)
    if "few" in planned.row.columns:
        shown = {"overall": shown["overall"], **count_statistics(result).get(COUNTED, {})}
    assert planned.recipe is not None
    return Line(study, planned, result, shown, found[planned.recipe.digest].folder.name)


def _grouped(missing: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, int, str]]:
    """Part, study, number of rows and reason."""
    found: dict[tuple[str, str, str], int] = {}
    for where, rows in missing.items():
        part, study = where.split(" ", 1)
        for why in rows.values():
            found[part, study, why] = found.get((part, study, why), 0) + 1
    return [(part, study, count, why) for (part, study, why), count in found.items()]


def judge(lines: Sequence[Line]) -> dict[str, int]:
    """Correct all gains of a part together, in place; the number of comparisons of each part."""
    numbers = {}
    for part in dict.fromkeys(line.study.part for line in lines):
        own = [{"statistics": line.statistics} for line in lines if line.study.part == part]
        correct(own)
        numbers[part] = sum(s["gain"] is not None for row in own for s in row["statistics"].values())
    return numbers


# Signs of difficulty that are known before the judged head, larger for harder classes: the row that has them,
# and K numbers by class.
SIGNS = {
    "forecast": ("erm", lambda result: _by_forecast(result)),
    "spread": ("mr2", lambda result: _by_margins(result, "spread2")),
    "gamma of mr2": ("mr2", lambda result: _by_margins(result, "gamma")),
    "gamma of mr2-paper": ("mr2-paper", lambda result: _by_margins(result, "gamma")),
}


def _by_forecast(result: Mapping[str, Any]) -> dict[str, float]:
    order = result["diagnostics"]["look_first"]["forecast"]["order"]  # the hardest first
    return {name: -float(rank) for rank, name in enumerate(order)}


def _by_margins(result: Mapping[str, Any], key: str) -> dict[str, float]:
    return {row["name"]: row[key] for row in result["margins"]["by_class"]}


def forecasts(lines: Sequence[Line]) -> list[list[Any]]:
    """Spearman's correlation of each sign with erm's error on test images, by study of frozen features."""
    rows: dict[str, dict[str, Line]] = {}
    for line in lines:
        if line.study.part == "frozen":
            rows.setdefault(line.study.name, {}).setdefault(line.planned.row.title, line)
    found = []
    for study, by_title in rows.items():
        if "erm" not in by_title:
            continue
        erm = by_title["erm"].result
        error = {row["name"]: 1 - row["accuracy"] for row in erm["test"]["by_class"]}
        for sign, (title, values) in SIGNS.items():
            if title in by_title:
                known = values(by_title[title].result)
                names = [name for name in error if known.get(name) is not None]
                pair = [np.array([table[name] for name in names]) for table in (known, error)]
                value = rank_correlation(pair[0], pair[1])
                about = [study, by_title["erm"].planned.row.about, sign, len(names)]
                found.append([*about, "" if value is None else round(value, 3)])
    return found


def figure(published: Iterable[Mapping[str, str]]) -> Chart:
    """Gain on Hard (Few, in a long tail) against change overall, from the lines of all tables: a dot for each
    method, selection and data set, each interval by itself, because the tables have the corrected ones. Dots
    around zero, where nothing happens, have no names."""
    columns = {
        "data": "data", "method": "method", "selection": "chosen for",
        "overall": "change overall, points", "left": "from", "right": "to",
        "hard": "gain on Hard, points", "low": "from", "high": "to",
    }  # fmt: skip
    dots: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for line in published:
        if line["gain"] and line.get("low_alone"):  # tables from before have none
            dot = dots.setdefault(tuple(line[key] for key in ("data", "method", "selection")), {})
            dot[line["classes"]] = [float(line[key]) for key in ("gain", "low_alone", "high_alone")]
    rows = [
        [*about, *dot["overall"], *dot.get("hard", dot.get("few", []))]
        for about, dot in dots.items()
        if dot.keys() & {"hard", "few"}
    ]
    ends = [_around(row[at] for row in rows) for at in (3, 6)]  # of the dots: an interval may be endless
    x, y = (
        {
            **{"field": field, "type": "quantitative", "title": title},
            "scale": {"type": "symlog", "constant": LINEAR, "domain": end, "nice": False},
            "axis": {"values": [tick for tick in TICKS if end[0] <= tick <= end[1]]},
        }
        for field, title, end in (
            ("overall", "change overall, points", ends[0]),
            ("hard", "gain on Hard (Few, in a long tail), points", ends[1]),
        )
    )
    below = {"orient": "bottom", "columns": 1, "labelLimit": 600}
    named = {"condition": {"test": f"abs(datum.hard) >= {NAMED}", "field": "method"}, "value": ""}
    filled = {"condition": {"test": "datum.selection === 'budget'", "value": 0}, "value": 1}
    zero = {"type": "rule", "strokeDash": [3, 3]}
    grey = {"color": {"value": "#8a919d"}}
    rule = {"type": "rule", "opacity": 0.25, "clip": True}
    plain: dict[str, Any] = {"field": "data", "type": "nominal", "legend": None}
    coloured = {**plain, "scale": {"range": COLOURS}}
    shape = {**plain, "title": "", "legend": below}
    shown = {"x": x, "y": y, "stroke": coloured, "fill": coloured, "fillOpacity": filled, "shape": shape}
    beside = {"type": "text", "align": "left", "dx": 7, "dy": -7, "fontSize": 11}
    spec = {
        "height": 380,
        "encoding": {"color": coloured},
        "layer": [
            {"mark": zero, "encoding": {"y": {"datum": 0}, **grey}},
            {"mark": zero, "encoding": {"x": {"datum": 0}, **grey}},
            {"mark": rule, "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"mark": rule, "encoding": {"y": y, "x": {**x, "field": "left"}, "x2": {"field": "right"}}},
            {"mark": {"type": "point", "size": 60, "strokeWidth": 1.5}, "encoding": shown},
            {"mark": beside, "encoding": {"x": x, "y": y, "text": named}},
        ],
    }
    title = "Gain on Hard against change overall (hollow: chosen for Hard within a budget)"
    return Chart("evidence", title, "", columns, rows, spec)


def _around(values: Iterable[Any]) -> list[float]:
    """A range that shows all of them and zero, with a twentieth of it to spare."""
    known = [0.0, *(float(value) for value in values)]
    spare = max(max(known) - min(known), 1.0) / 20
    return [round(min(known) - spare, 2), round(max(known) + spare, 2)]


def write(
    lines: Sequence[Line],
    left: Sequence[Sequence[Any]],
    chosen: Sequence[Study],
    results: Path,
    picture: Path,
) -> None:
    """The files of the report, each whole or not at all; what others found of other parts stays."""
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {}
    for part, number in judge(lines).items():
        own = [line for line in lines if line.study.part == part]
        now = {line.study.name for line in own}
        before = [row for row in _read(results / f"{part}.csv") if row["study"] not in now]
        kept = [[row.get(heading, "") for heading in HEADINGS] for row in before]
        tables[part] = (HEADINGS, [*kept, *(row for line in own for row in line.cells(number))])
    found = forecasts(lines)
    if found:
        now = {row[0] for row in found}
        others = [list(row.values()) for row in _read(results / "forecast.csv") if row["study"] not in now]
        tables["forecast"] = (SIGN_HEADINGS, [*others, *found])
    published = {(part, row["study"]) for part in PARTS for row in _read(results / f"{part}.csv")}
    from_before = published - {(line.study.part, line.study.name) for line in lines}
    asked = {(study.part, study.name) for study in chosen} - from_before
    left = [row for row in left if (row[0], row[1]) not in from_before]
    elsewhere = [
        list(row.values())
        for row in _read(results / "left-out.csv")
        if (row["part"], row["study"]) not in asked
    ]
    tables["left-out"] = (LEFT, [*elsewhere, *left])
    results.mkdir(parents=True, exist_ok=True)
    for name, (headings, rows) in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([headings, *rows])
        write_atomic(results / f"{name}.csv", text.getvalue())
    chart = figure(line for part in PARTS for line in _read(results / f"{part}.csv"))
    if chart.rows:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(picture, static.engine().vegalite_to_svg(chart.whole()))


def _read(path: Path) -> list[dict[str, str]]:
    """The lines of a table, none where it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make evidence", description="What helps hard classes, and where?")
    for name, title in FOLDERS.items():
        parser.add_argument(f"--{name}", metavar="FOLDER", help=f"a local copy of {title}")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts; default: all")
    parser.add_argument("--studies", nargs="+", metavar="NAME", help="and of them these, in this order")
    parser.add_argument("--without", nargs="+", default=(), metavar="METHOD", help="leave their rows out")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"), help="where runs are kept")
    parser.add_argument("--cache", type=Path, help="where features are kept; default: the usual place")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where tables are written")
    parser.add_argument("--figure", type=Path, default=Path("docs/evidence.svg"))
    given = parser.parse_args(argv)
    if not given.minutes >= 0:
        parser.error(f"--minutes {given.minutes:g}: give 0 (only write the files) or more")
    given.chosen = [study for part in given.only for study in studies(part)]
    known = dict.fromkeys(study.name for study in given.chosen)
    for name in given.studies or ():
        if name not in known:
            parser.error(f"--studies {name}: known are {', '.join(known)}")
    if given.studies:
        given.chosen = [study for name in given.studies for study in given.chosen if study.name == name]
    titles = dict.fromkeys(row.title for study in given.chosen for row in study.rows)
    for name in given.without:
        if name not in titles:
            parser.error(f"--without {name}: known are {', '.join(map(repr, titles))}")
    for name in FOLDERS:
        folder = getattr(given, name)
        if folder is not None and not Path(folder).is_dir():
            parser.error(f"--{name} {folder}: there is no such folder")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    given = _arguments(argv)
    folders = {name: getattr(given, name) for name in FOLDERS}
    until = time.monotonic() + 60 * given.minutes
    evidence = Evidence(folders, given.cache, given.work, until, given.without)
    lines, left = evidence.gather(given.chosen)
    if not lines:
        print("nothing has been run yet, so nothing is written; left out:", file=sys.stderr)
    else:
        write(lines, left, given.chosen, given.results, given.figure)
        print(f"{len(lines)} rows written to {given.results} and {given.figure}")
    for part, study, count, why in left:
        print(f"left out: {part} {study}, {count} rows: {why}")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main())
