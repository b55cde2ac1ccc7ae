"""Which backbone is best on each data set: accuracies of one method, and paired tests on the same images.

Every pair of backbones is compared image by image and seed by seed (`probe.evaluation.significance`), and
Holm's correction is over all pairs of the comparison, so that the best of many is not the luckiest of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from probe.evaluation.significance import holm
from probe.evaluation.summary import EvaluationSet, corrected, overall_gain
from probe.runs.pairing import paired

Row = dict[str, Any]  # of the table


@dataclass(frozen=True)
class Entry:
    """A run of the comparison: its folder, and its row in the table."""

    folder: Path
    row: Row


def which_backbone(entries: Sequence[Entry], reference: str) -> list[Row]:
    """A block for each data set that several backbones ran on with one method, best backbone first.

    The method is `reference` where all of them ran it, else the first that all of them did.
    """
    blocks = []
    for data in dict.fromkeys(entry.row["data"] for entry in entries):
        here = [entry for entry in entries if entry.row["data"] == data]
        method = _shared_method(here, reference)
        if method is not None:
            chosen = {e.row["backbone"]: e for e in here if e.row["method"] == method}
            blocks.append({"data": data, "method": method, **_block(list(chosen.values()))})
    pairs = [pair for block in blocks for pair in block["pairs"]]
    for pair, p in zip(pairs, holm([pair["gain"]["p"] for pair in pairs]), strict=True):
        pair["gain"] = corrected(pair["gain"], float(p))
    return blocks


def _shared_method(entries: Sequence[Entry], reference: str) -> str | None:
    """A method that every backbone, of two or more, ran."""
    backbones = {entry.row["backbone"] for entry in entries}
    ran: dict[str, set[str]] = {}
    for entry in entries:
        ran.setdefault(entry.row["method"], set()).add(entry.row["backbone"])
    shared = [method for method, by in ran.items() if by == backbones and len(backbones) > 1]
    return next((m for m in shared if m == reference), shared[0] if shared else None)


def _block(entries: list[Entry]) -> dict[str, Any]:
    entries.sort(key=lambda entry: -entry.row["statistics"]["overall"]["accuracy"])
    both = paired([entry.folder for entry in entries])
    eval_set = EvaluationSet(both.labels, both.class_names, {})
    outcomes = [(e.row["backbone"], o) for e, o in zip(entries, both.outcomes, strict=True)]
    return {
        "backbones": [_accuracy(entry.row) for entry in entries],
        "pairs": [
            {"first": a, "second": b, "gain": overall_gain(first, second, eval_set)}
            for (a, first), (b, second) in combinations(outcomes, 2)
        ],
    }


def _accuracy(row: Row) -> dict[str, Any]:
    def short(statistic: Mapping[str, Any]) -> dict[str, Any]:
        return {"accuracy": statistic["accuracy"], "ci": statistic["ci"]}

    overall, *names = row["statistics"]  # the groups from easy to hard
    groups = {names[-1]: short(row["statistics"][names[-1]])} if len(names) > 1 else {}
    return {"name": row["backbone"], "run": row["run"], overall: short(row["statistics"][overall]), **groups}
