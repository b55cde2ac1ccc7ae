"""Groups of classes that are given: by a JSON file, by the test accuracy of another run, or by counts.

The `groups` of a recipe are a source: a word of `probe.recipe.RANKINGS` or `COUNT_GROUPS`, a file, or a
`Reference`.
Groups that are yet to be ranked are made by `probe.runs.class_ranking`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation.groups import by_count, from_file, thirds
from probe.recipe import COUNT_GROUPS, RANKINGS, Reference
from probe.runs.folder import read_result


def given(source: str | Reference, class_names: Sequence[str]) -> dict[str, list[int]] | None:
    """The groups, as class indices, of a file or a reference run; None for what the data yet decides."""
    if isinstance(source, Reference):
        return from_run(Path(source.reference), class_names)
    return None if source in (*RANKINGS, *COUNT_GROUPS) else from_file(Path(source), class_names)


def by_train_count(scheme: str, counts: NDArray[np.int64]) -> dict[str, list[int]]:
    """The groups of a scheme of COUNT_GROUPS that have classes, each from the largest class on."""
    found = by_count(counts)[scheme]
    return {name: sorted(group, key=lambda k: -counts[k]) for name, group in found.items() if group}


def from_run(folder: Path, class_names: Sequence[str]) -> dict[str, list[int]]:
    """Thirds by the test accuracy of another run, the papers' reference model; class lists must agree."""
    try:
        content = read_result(folder)
    except UserError as error:
        raise UserError(f"cannot read the reference run {folder}: {error}") from error
    try:
        accuracy = {row["name"]: float(row["accuracy"] or 0) for row in content["test"]["by_class"]}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the reference run {folder} holds no result of a run; name another one") from error
    if set(accuracy) != set(class_names):
        other = sorted(set(accuracy) ^ set(class_names))[0]
        raise UserError(
            f"the reference run {folder} has {len(accuracy)} classes, this data set {len(class_names)}: "
            f'"{other}" is in only one of them; choose a run on the same classes'
        )
    return thirds(np.array([accuracy[name] for name in class_names]))


def of_result(result: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, list[int]]:
    """The groups that a result was evaluated with."""
    index = {name: k for k, name in enumerate(class_names)}
    return {g: [index[n] for n in block["classes"]] for g, block in result["test"]["groups"].items()}


def origin(source: str | Reference) -> dict[str, str | None]:
    """What a result says about its groups: by what they were made, and which file or run gave them."""
    if isinstance(source, Reference):
        return {"groups_by": "reference", "groups_from": source.reference}
    if source in (*RANKINGS, *COUNT_GROUPS):
        return {"groups_by": source, "groups_from": None}
    return {"groups_by": "file", "groups_from": source}


def remark(source: str | Reference) -> str | None:
    """What a reader must know about groups that are ranked by the test images themselves."""
    if isinstance(source, Reference):
        return (
            f"groups are ranked by the test accuracy of {source.reference}, "
            "which flatters whatever errs on other images than that run"
        )
    if source == "paper":
        return "groups are ranked by erm's own test accuracy, which flatters any rival on hard classes"
    return None


def remark_on(groups: Mapping[str, list[int]]) -> str | None:
    """What a reader must know where all classes are in one group."""
    if len(groups) != 1:
        return None
    return f'all classes are in the group "{next(iter(groups))}", which says no more than the mean per class'
