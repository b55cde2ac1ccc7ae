"""Results side by side: the papers' table as plain data, with its corrections, rankings and remarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation import external
from probe.evaluation.significance import holm
from probe.evaluation.summary import EvaluationSet, Groups, corrected, gain_over, summarise
from probe.recipe import COUNT_GROUPS, Recipe, build, group_source
from probe.report.text import format
from probe.runs import groups as grouping
from probe.runs.folder import read_result
from probe.runs.naming import label
from probe.runs.pairing import Paired, own_outcomes, paired, predictions_of
from probe.runs.reference import SAME
from probe.runs.which_backbone import Entry, which_backbone

SCHEMA = 1
Row = dict[str, Any]


def assemble(
    rows: list[Row],
    reference: str,
    failed: Sequence[Row] = (),
    said: Sequence[str] = (),
    how: str | None = None,
) -> dict[str, Any]:
    """The comparison of `rows`, each already against `reference`; `said` are further remarks.

    `how` says what kind of erm the reference is, where it is one (`probe.runs.reference`).
    """
    correct(rows)
    by_count = [row.get("count_statistics") or {} for row in rows]
    schemes = dict.fromkeys(scheme for tables in by_count for scheme in tables)
    for scheme in schemes:  # a table of its own
        correct([{"statistics": tables.get(scheme, {})} for tables in by_count])
    return {
        "schema": SCHEMA,
        "count_groups": {
            scheme: list(dict.fromkeys(name for tables in by_count for name in tables.get(scheme, {})))
            for scheme in schemes
        },
        "reference": reference,
        "how": how,
        "groups": list(dict.fromkeys(n for row in rows for n in row["statistics"] if n != "overall")),
        "rows": rows,
        "ranking": {key: _ranking(rows, key) for key in ("method", "backbone")},
        "failed": list(failed),
        "remarks": [*_remarks(rows), *said],
    }


def row_of(recipe: Recipe, folder: Path, result: Mapping[str, Any], *, reused: bool) -> Row:
    """One row of the table: a run and its statistics."""
    return {
        "data": recipe.data.name,
        "backbone": recipe.backbone.title,
        "method": label(recipe),
        "seeds": len(result["seeds"]),
        "groups_by": format.groups(result),
        "run": folder.name,
        "reused": reused,
        "statistics": statistics(result),
        "count_statistics": count_statistics(result),
    }


def statistics(result: Mapping[str, Any]) -> Row:
    """Accuracy, interval and gain of each column of the table."""
    test, reference = result["test"], result.get("reference")
    gains = (result.get("versus") or {}).get("gain") or {}
    whole = {"accuracy": test["top1"], "ci": test["ci"]}
    overall = _entry(whole, gains.get("overall"), reference and reference["top1"])
    return {"overall": overall, **_columns(test["groups"], gains, reference and reference["groups"])}


def count_statistics(result: Mapping[str, Any]) -> dict[str, Row]:
    """The same for the groups by training images, for each scheme that tells the classes apart."""
    before = ((result.get("reference") or {}).get("count_groups")) or {}
    return {
        scheme: _columns(
            {n: g for n, g in groups.items() if g["accuracy"] is not None}, gains, before.get(scheme)
        )
        for scheme, (groups, gains) in format.count_groups(result).items()
    }


def _columns(groups: Mapping[str, Row], gains: Mapping[str, Any], before: Mapping[str, Row] | None) -> Row:
    return {
        name: _entry(group, gains.get(name), before[name]["accuracy"] if before else None)
        for name, group in groups.items()
    }


def _entry(group: Mapping[str, Any], gained: Mapping[str, Any] | None, before: float | None) -> Row:
    gain = dict(gained) if gained else None
    relative = None if gain is None or not before else gain["mean"] / before
    return {"accuracy": group["accuracy"], "ci": group["ci"], "gain": gain, "relative": relative}


def correct(rows: Sequence[Row]) -> None:
    """Holm's correction over every gain of the table: a clear gain is clear among so many comparisons."""
    columns = [s for row in rows for s in row["statistics"].values() if s["gain"] is not None]
    for column, p in zip(columns, holm([s["gain"]["p"] for s in columns]), strict=True):
        column["gain"] = corrected(column["gain"], float(p))


def hardest(row: Row) -> Row:
    """The last group's column."""
    return list(row["statistics"].values())[-1]


def _ranking(rows: Sequence[Row], key: str) -> list[Row]:
    """Methods by their mean gain on the hardest group, backbones by their accuracy: never the worse first."""
    ranked = _gains_by(rows, key)
    if key == "method":
        return sorted(ranked, key=lambda r: -r["gain"])
    gains = {row["name"]: row for row in ranked}
    names = dict.fromkeys(row["backbone"] for row in rows)
    none = {"gain": None, "runs": 0, "clearly_better": 0, "clearly_worse": 0}
    found = [{"name": n, "accuracy": _mean_accuracy(rows, n), **none, **gains.get(n, {})} for n in names]
    return sorted(found, key=lambda r: -r["accuracy"])


def _mean_accuracy(rows: Sequence[Row], backbone: str) -> float:
    """Over the data sets and methods that every backbone ran, where there are such; else over its own."""
    ran: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        ran.setdefault((row["data"], row["method"]), set()).add(row["backbone"])
    every = set().union(*ran.values())
    own = [row for row in rows if row["backbone"] == backbone]
    used = [row for row in own if ran[row["data"], row["method"]] == every] or own
    return float(np.mean([row["statistics"]["overall"]["accuracy"] for row in used]))


def _gains_by(rows: Sequence[Row], key: str) -> list[Row]:
    """The mean gain on the hardest group of each method or backbone, over everything it ran on."""
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
    return ranked


def _remarks(rows: Sequence[Row]) -> list[str]:
    said = []
    said += [format.FEW_SEEDS[n] for n in sorted({row["seeds"] for row in rows} & set(format.FEW_SEEDS))]
    one_backbone = len({row["backbone"] for row in rows}) == 1
    if one_backbone and not any(hardest(row)["gain"] for row in rows):
        said.append("only the reference was run: name another method to see gains")
    return said


def of_runs(folders: Sequence[Path], groups: str | None = None) -> dict[str, Any]:
    """Existing runs, each against the first, image by image; groups are given, or those of the first."""
    if len(folders) < 2:
        raise UserError("name at least two runs to compare; the first is the reference")
    results = [read_result(folder) for folder in folders]
    recipes = [build(result["recipe"]) for result in results]
    for folder, recipe in zip(folders, recipes, strict=True):
        if recipe.first_seed != recipes[0].first_seed:
            raise UserError(
                f"{folder} and {folders[0]} begin with different seeds ({recipe.first_seed} and "
                f"{recipes[0].first_seed}), so they cannot be compared seed by seed"
            )
    predictions = [predictions_of(folder) for folder in folders]
    outcomes = own_outcomes(folders, predictions)
    names = predictions[0].class_names
    eval_set = _eval_set(results[0], predictions[0], _groups(groups, results[0], names))
    origin = results[0] if groups is None else grouping.origin(group_source(groups))
    origin = {key: origin.get(key) for key in ("groups_by", "groups_from")}
    summaries = [summarise(outcome, eval_set) for outcome in outcomes]
    rows = []
    for i, (folder, recipe) in enumerate(zip(folders, recipes, strict=True)):
        block: dict[str, Any] = {"test": summaries[i], "seeds": outcomes[i].correct, **origin}
        if i > 0:
            block |= {"reference": summaries[0], "versus": gain_over(outcomes[i], outcomes[0], eval_set)}
        rows.append(row_of(recipe, folder, block, reused=True))
    entries = [Entry(folder, row) for folder, row in zip(folders, rows, strict=True)]
    return {
        **assemble(rows, folders[0].name),
        "backbones": which_backbone(entries, rows[0]["method"]),
        "shared_groups": {
            rows[0]["data"]: format.groups(origin | {"groups_by": origin["groups_by"] or "none"})
        },
    }


def against(result: Mapping[str, Any], folder: Path, plain: Path) -> Row:
    """A run's result, compared with the run `plain` instead, image by image and seed by seed.

    Where their numbers of seeds differ, as many as both have: a second stage has the first seed's network.
    """
    both = paired([folder, plain])
    own, erm = both.outcomes
    eval_set = _eval_set(result, both)
    gain = {**gain_over(own, erm, eval_set), "how": SAME, "run": plain.name}
    return {**result, "reference": summarise(erm, eval_set), "versus": gain}


def in_groups(result: Mapping[str, Any], folder: Path, groups: Groups, given_by: str) -> Row:
    """A run's result with its classes in the groups that another one, `given_by`, has.

    Gains are computed again where the folder has the predictions of what they are over: a probe's has.
    """
    predicted = predictions_of(folder)
    (own,) = own_outcomes([folder], [predicted])
    eval_set, versus = _eval_set(result, predicted, groups), result.get("versus")
    block: Row = {**result, "test": summarise(own, eval_set), "groups_from": given_by}
    if versus and versus["method"] in predicted.prediction and versus["method"] != own.method:
        other = predicted.outcome(versus["method"])
        about = {key: versus.get(key) for key in ("how", "run")}
        gain = {**gain_over(own, other, eval_set), **about}
        return {**block, "reference": summarise(other, eval_set), "versus": gain}
    return {**block, "reference": None, "versus": None}


def regrouped(result: Mapping[str, Any], folder: Path, groups: Groups) -> Row:
    """A run's result with its classes in these groups, and compared with nothing."""
    predicted = predictions_of(folder)
    (own,) = own_outcomes([folder], [predicted])
    test = summarise(own, _eval_set(result, predicted, groups))
    return {**result, "test": test, "reference": None, "versus": None}


def _eval_set(
    result: Mapping[str, Any],
    predicted: Paired | external.ExternalPredictions,
    groups: Groups | None = None,
) -> EvaluationSet:
    """The test images of a result, with its own groups or others, and with its training counts."""
    names = predicted.class_names
    own = groups or grouping.of_result(result, names)
    return EvaluationSet(predicted.labels, names, own, _train_counts(result, names))


def _train_counts(result: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.int64] | None:
    """K: the training images of each class, where the result says them."""
    rows = {row["name"]: row for row in result["test"]["by_class"]}
    counts = [rows[name].get("train_n") for name in names]
    return None if None in counts else np.array(counts, dtype=np.int64)


def _groups(source: str | None, result: Mapping[str, Any], names: Sequence[str]) -> Groups:
    """The groups of a file or a reference run; else those that `result` was evaluated with."""
    if source is None:
        return grouping.of_result(result, names)
    counts = _train_counts(result, names)
    if source in COUNT_GROUPS and counts is not None:
        return grouping.by_train_count(source, counts)
    given = grouping.given(group_source(source), names)
    if given is None:
        raise UserError(f'existing runs are not ranked again by "{source}"; name a run folder or a JSON file')
    return given
