"""The published tables: accuracies and gains by group, forecasts, and what was left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence import figure, pages, power
from benchmarks.evidence.outcomes import Published, RowOutcome, StudyOutcomes, outcome_of
from benchmarks.evidence.studies import PARTS, PASSING, Missing, Study, reference, studies
from probe.evaluation.diagnostics.forecast import rank_correlation
from probe.evaluation.summary import gain_over, summarise
from probe.report.charts import static
from probe.report.text import format
from probe.runs.table import correct, count_statistics, statistics
from probe.system.atomic import write_atomic

COUNTED = "many/medium/few"
HEADINGS = (
    "part", "study", "data", "backbone", "method", "selection", "seeds", "classes", "accuracy",
    "gain", "low", "high", "low_alone", "high_alone", "p", "p_holm", "verdict", "smallest_gain",
    "comparisons", "seconds", "run", "commit", "recipe",
)  # fmt: skip
SIGN_HEADINGS = ("study", "data", "sign", "classes", "rank_correlation_with_error")
LEFT = ("part", "study", "rows", "seeds", "planned", "why")
# Signs of difficulty that are known before the judged head: the method whose row says them, and as what.
SIGNS = {
    "forecast": ("erm", "forecast"),
    "spread": ("mr2", "spread2"),
    "gamma of mr2": ("mr2", "gamma"),
    "gamma of mr2-paper": ("mr2-paper", "gamma"),
}
NOT_YET = "not run yet"


@dataclass(frozen=True)
class Line:
    """A published row, grouped and compared, and what the tables show of it."""

    found: StudyOutcomes
    row: RowOutcome
    seeds: int  # that it and what it is compared with both have
    statistics: dict[str, Any]

    @classmethod
    def of(cls, found: StudyOutcomes, row: RowOutcome, other: RowOutcome | None, *, counted: bool) -> Line:
        """In the groups of the row that it is compared with; `counted`: by the number of training images."""
        seeds = len(row.correct) if other is None else min(len(row.correct), len(other.correct))
        eval_set, own = found.eval_set((other or row).groups), outcome_of(row, seeds)
        result: dict[str, Any] = {"test": summarise(own, eval_set), "versus": None}
        if other is not None:
            erm = outcome_of(other, seeds)
            result |= {"reference": summarise(erm, eval_set), "versus": gain_over(own, erm, eval_set)}
        shown = statistics(result)
        if counted:
            shown = {"overall": shown["overall"], **count_statistics(result).get(COUNTED, {})}
        return cls(found, row, seeds, shown)

    def cells(self, comparisons: int, planned: int) -> list[list[Any]]:
        """The lines of the CSV, one for each group of classes; percent and points."""
        about: list[Any] = [self.found.part, self.found.study, self.found.title, self.found.backbone]
        about += [self.row.method, self.row.selection, self.seeds]
        runs = self.row.runs
        seconds = sum(run.seconds for run in runs)
        where = [comparisons, seconds, " ".join(run.run for run in runs)]
        where += [" ".join(dict.fromkeys(run.commit for run in runs if run.commit)), self.row.recipe]
        return [
            [*about, name, _points(s["accuracy"]), *_gain(s["gain"], planned), *where]
            for name, s in self.statistics.items()
        ]


def _points(fraction: float) -> float:
    return round(100 * fraction, 2) + 0.0  # no minus before 0


def _gain(gain: Mapping[str, Any] | None, planned: int) -> list[Any]:
    """What the tables show of a gain; `planned` seeds tell what its design could see."""
    if gain is None:
        return [""] * 9
    alone = gain.get("ci_alone", gain["ci"])  # before the correction
    numbers = [_points(v) for v in (gain["mean"], *gain["ci"], *alone)]
    seen = gain.get("parts") and (gain["parts"]["seeds"] > 1 or planned == 1)  # one knows nothing of others
    smallest = _points(power.smallest_gain(gain, planned)) if seen else ""
    return [*numbers, *(f"{gain[key]:.4g}" for key in ("p", "p_holm")), format.verdict(gain), smallest]


def of_study(study: Study, found: StudyOutcomes | None) -> list[Line]:
    """The published rows of a study as its table says them now, in its order."""
    if found is None:
        return []
    now = {
        row.name: own
        for row in study.rows
        if (own := found.rows.get(row.name)) is not None and own.settings == study.settings(row)
    }
    counted = "few" in study.rows[0].columns
    others = {row.name: now.get(reference(study, row) or "") for row in study.rows}
    return [Line.of(found, row, others[name], counted=counted) for name, row in now.items()]


def correct_together(lines: Sequence[Line]) -> int:
    """Correct all gains, in place; their number."""
    correct([{"statistics": line.statistics} for line in lines])
    return sum(s["gain"] is not None for line in lines for s in line.statistics.values())


def forecasts(lines: Sequence[Line]) -> list[list[Any]]:
    """Spearman's correlation of each sign with erm's error on test images, for one study."""
    by_method: dict[str, Line] = {}
    for line in lines:
        by_method.setdefault(line.row.method, line)
    if "erm" not in by_method:
        return []
    found = by_method["erm"].found
    right = by_method["erm"].row.correct.mean(axis=0)
    error = 1 - np.bincount(found.labels, right) / np.maximum(found.tested, 1)
    rows = []
    for title, (method, sign) in SIGNS.items():
        if method not in by_method or sign not in by_method[method].row.signs:
            continue
        values = by_method[method].row.signs[sign]
        known = [k for k, value in enumerate(values) if value is not None and found.tested[k]]
        value = rank_correlation(np.array([values[k] for k in known]), error[known])
        rows.append([found.study, found.title, title, len(known), "" if value is None else round(value, 3)])
    return rows


def lines_of(results: Path) -> list[dict[str, str]]:
    """The lines of all tables in a folder of results."""
    return [line for part in PARTS for line in _read(results / f"{part}.csv")]


def write(published: Published, missing: Missing, picture: Path, page: Path) -> list[str]:
    """Every table and the figure, from what is published, and the page's own tables; what to say of it."""
    results = published.results
    tables: dict[str, tuple[Sequence[str], list[list[Any]]]] = {"left-out": (LEFT, [])}
    signs: dict[str, list[list[Any]]] = _by_study(_read(results / "forecast.csv"), SIGN_HEADINGS)
    for part in PARTS:
        by_study = _earlier(results, part)
        planned = studies(part)
        lines = {study.name: of_study(study, published.of(part, study.name)) for study in planned}
        comparisons = correct_together([line for own in lines.values() for line in own])
        for study in planned:
            if own := lines[study.name]:
                seeds = {row.name: study.seeds(row) for row in study.rows}
                cells = [c for line in own for c in line.cells(comparisons, seeds[line.row.recipe])]
                by_study[study.name] = _with_earlier(study, cells, by_study.get(study.name, ()))
                if part == "frozen" and (found := forecasts(own)):
                    signs[study.name] = found
            why = {row: text for row, text in missing.get(study.title, {}).items() if text not in PASSING}
            asked = {(line.row.method, line.row.selection): line.row.seeds for line in lines[study.name]}
            have = _seeds(by_study.get(study.name, []))
            have |= {row: max(seeds, have.get(row, 0)) for row, seeds in asked.items()}
            tables["left-out"][1].extend(_left_out(study, have, why))
        if by_study:
            order = [study.name for study in planned if study.name in by_study]
            tables[part] = (HEADINGS, [cells for name in order for cells in by_study[name]])
    order = [study.name for study in studies("frozen") if study.name in signs]
    tables["forecast"] = (SIGN_HEADINGS, [row for name in order for row in signs[name]])
    for name, (headings, rows) in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([headings, *rows])
        write_atomic(results / f"{name}.csv", text.getvalue())
    chart = figure.of(lines_of(results))
    if chart.rows:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(picture, static.engine().vegalite_to_svg(chart.whole()))
    shown = {part: pages.gains(_read(results / f"{part}.csv")) for part in tables if part in PARTS}
    shown["summary"] = pages.summary(lines_of(results))
    shown["clear"] = pages.clear(lines_of(results))
    shown["forecast"] = pages.forecasts(_read(results / "forecast.csv"))
    shown["left-out"] = pages.left_out(_read(results / "left-out.csv"))
    pages.write(page, shown)
    written = sum(len(rows) for part, (_, rows) in tables.items() if part in PARTS)
    said = [f"{written} lines written to {results}, the figure to {picture}"]
    return said + [
        f"left out: {part} {study}, {rows} rows have {seeds} of {planned} seeds: {why}"
        for part, study, rows, seeds, planned, why in tables["left-out"][1]
        if f"{part} {study}" in missing
    ]


def _with_earlier(study: Study, lines: Sequence[list[Any]], before: Sequence[list[Any]]) -> list[list[Any]]:
    """The lines of a study in the order of its rows; of rows whose outcomes were not kept, the earlier ones,
    until there are outcomes of as many seeds."""
    then, now = _seeds(before), _seeds(lines)
    kept = {row for row in then if then[row] > now.get(row, 0)}
    found = [cells for cells in before if _row(cells) in kept]
    found += [cells for cells in lines if _row(cells) not in kept]
    order = {(row.title, _selection(row.content)): at for at, row in enumerate(study.rows)}
    return sorted(found, key=lambda cells: order.get(_row(cells), len(order)))


def _earlier(results: Path, part: str) -> dict[str, list[list[Any]]]:
    """The lines of rows whose outcomes were not kept, by study: only those name no recipe."""
    lines = [line for line in _read(results / f"{part}.csv") if not line.get("recipe")]
    return _by_study(lines, HEADINGS)


def earlier_seeds(results: Path, study: Study) -> dict[str, int]:
    """How many seeds the tables have of each row whose outcomes were not kept, by its name."""
    seeds = _seeds(_earlier(results, study.part).get(study.name, []))
    return {row.name: seeds.get((row.title, _selection(row.content)), 0) for row in study.rows}


def _row(cells: Sequence[Any]) -> tuple[str, str]:
    """What tells a study's rows apart: method and selection."""
    return str(cells[HEADINGS.index("method")]), str(cells[HEADINGS.index("selection")])


def _seeds(lines: Iterable[Sequence[Any]]) -> dict[tuple[str, str], int]:
    """How many seeds each row has, by method and selection."""
    return {_row(cells): int(cells[HEADINGS.index("seeds")]) for cells in lines}


def _left_out(study: Study, have: Mapping[tuple[str, str], int], why: Mapping[str, str]) -> list[list[Any]]:
    """Rows that are not published, or with fewer seeds than planned, together where the reason is one."""
    found: dict[tuple[int, int, str], int] = {}
    for row in study.rows:
        done, planned = have.get((row.title, _selection(row.content)), 0), study.seeds(row)
        if done < planned:
            reason = why.get(row.name) or NOT_YET
            found[done, planned, reason] = found.get((done, planned, reason), 0) + 1
    return [[study.part, study.name, rows, *about] for about, rows in found.items()]


def _selection(content: Mapping[str, Any]) -> str:
    given = content.get("select", "auto")
    return str(given["name"] if isinstance(given, Mapping) else given)


def _by_study(lines: Iterable[Mapping[str, str]], headings: Sequence[str]) -> dict[str, list[list[Any]]]:
    """The cells of each line, by study."""
    found: dict[str, list[list[Any]]] = {}
    for line in lines:
        found.setdefault(line["study"], []).append([line.get(heading, "") for heading in headings])
    return found


def _read(path: Path) -> list[dict[str, str]]:
    """The lines of a table, none where it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
