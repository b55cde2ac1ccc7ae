"""Test images with several right answers, such as ImageNet-ReaL (Beyer et al. 2020).

A prediction is right if it is one of an image's labels. Images without any are left out: nobody could say
what they show. Classes and groups stay those of the original labels.

real.json is a list: its i-th entry has the labels of ILSVRC2012_val_<i, from 1>. For other data sets the file
is a mapping of sample ids, or file names, to labels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones import reading
from probe.errors import UserError
from probe.evaluation.predictions import Predictions
from probe.evaluation.summary import EvaluationSet, MethodOutcome, gain_over, summarise

NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
FORM = "a list of lists of class numbers (real.json), or a mapping of ids to such lists"


@dataclass(frozen=True)
class SeveralLabels:
    """The labels of each image, by its number in ImageNet's validation set or by its id."""

    path: str
    sha256: str
    by_id: Mapping[str | int, Sequence[int]]

    def accepted(self, ids: Sequence[str], num_classes: int) -> NDArray[np.bool_]:
        """N x K: is this class a right answer for this image? A row without any is an image to leave out."""
        found = np.zeros((len(ids), num_classes), dtype=bool)
        for row, sample in enumerate(ids):
            number = NUMBER.search(sample)
            keys = (sample, sample.rpartition("/")[2], int(number[1]) if number else -1)
            key = next((key for key in keys if key in self.by_id), None)
            if key is None:
                raise UserError(
                    f'{self.path} has no labels of the test image "{sample}"; {_wanted(self.by_id)}'
                )
            labels = self.by_id[key]
            if any(not 0 <= label < num_classes for label in labels):
                raise UserError(f"{self.path}: the labels of {sample} are not numbers below {num_classes}")
            found[row, list(labels)] = True
        if not found.any():
            raise UserError(f"{self.path} has no label for any test image")
        return found


def _wanted(by_id: Mapping[str | int, Any]) -> str:
    by_number = isinstance(next(iter(by_id), ""), int)
    return (
        "its images are called ILSVRC2012_val_..." if by_number else "its keys are sample ids or file names"
    )


def read(path: Path) -> SeveralLabels:
    """The labels of a file; one that is of another form is refused in one line."""
    try:
        text = reading.text(path)
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read labels from {path}: {error}; give {FORM}") from error
    by_id: dict[Any, Any] = content if isinstance(content, dict) else {}
    if isinstance(content, list):
        by_id = dict(enumerate(content, 1))
    if not by_id or not all(map(_is_labels, by_id.values())):
        raise UserError(f"{path} is not {FORM}")
    return SeveralLabels(str(path), hashlib.sha256(text.encode()).hexdigest(), by_id)


def _is_labels(value: Any) -> bool:
    return isinstance(value, list) and all(type(label) is int for label in value)


def outcome(predictions: Sequence[Predictions], accepted: NDArray[np.bool_], method: str) -> MethodOutcome:
    """Which images that have a label the method got right, one row per seed."""
    mine, kept = [p for p in predictions if p.method == method], accepted.any(axis=1)
    rows = np.flatnonzero(kept)
    return MethodOutcome(
        method,
        correct=np.stack([accepted[rows, p.prediction[rows]] for p in mine]),
        correct_top5=np.stack([accepted[rows[:, None], p.top5[rows]].any(axis=1) for p in mine]),
        confidence=np.stack([p.probability[rows] for p in mine]),
    )


def evaluate(
    labels: SeveralLabels,
    accepted: NDArray[np.bool_],
    predictions: Sequence[Predictions],
    eval_set: EvaluationSet,
    methods: Sequence[str],
) -> dict[str, Any]:
    """The `real` block of a result: accuracies of the first method and, where there is one, its gain over the
    second, with several right answers."""
    kept = accepted.any(axis=1)
    few = replace(eval_set, labels=eval_set.labels[kept])
    found = [outcome(predictions, accepted, name) for name in methods]
    return {
        "file": labels.path,
        "sha256": labels.sha256,
        "images": int(kept.sum()),
        "left_out": int((~kept).sum()),
        "test": summarise(found[0], few),
        "versus": gain_over(found[0], found[1], few) if len(found) > 1 else None,
    }


def remark(block: Mapping[str, Any]) -> str:
    """What people are told of it."""
    low, high = (100 * value for value in block["test"]["ci"])
    left = f", {block['left_out']:,} without a label left out" if block["left_out"] else ""
    return (
        f"by several right answers ({Path(block['file']).name}): {100 * block['test']['top1']:.1f} % "
        f"({low:.1f} to {high:.1f}) of {block['images']:,} test images{left}"
    )
