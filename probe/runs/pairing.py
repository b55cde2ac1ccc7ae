"""Runs side by side, image by image: their predictions on the same test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probe.errors import UserError
from probe.evaluation import external
from probe.evaluation.summary import MethodOutcome
from probe.runs.folder import RunFolder


@dataclass(frozen=True)
class Paired:
    """The own methods of several runs on the same test images."""

    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    outcomes: list[MethodOutcome]  # one per run


def paired(folders: Sequence[Path]) -> Paired:
    """Runs image by image; where their numbers of seeds differ, as many as all have."""
    predictions = [predictions_of(folder) for folder in folders]
    seeds = min(len(next(iter(p.prediction.values()))) for p in predictions)
    outcomes = own_outcomes(folders, [p.first(seeds) for p in predictions])
    return Paired(predictions[0].labels, predictions[0].class_names, outcomes)


def own_outcomes(
    folders: Sequence[Path], predictions: Sequence[external.ExternalPredictions]
) -> list[MethodOutcome]:
    """Each run's own method, which comes first in its file, on the same images."""
    outcomes = [p.outcome(next(iter(p.prediction))) for p in predictions]
    for folder, p, o in zip(folders, predictions, outcomes, strict=True):
        for what, same in (
            ("classes", p.class_names == predictions[0].class_names),
            ("test images", p.ids == predictions[0].ids),
            ("numbers of seeds", len(o.correct) == len(outcomes[0].correct)),
        ):
            if not same:
                raise UserError(
                    f"{folder} and {folders[0]} have different {what}, so they cannot be compared"
                )
    return outcomes


def predictions_of(folder: Path) -> external.ExternalPredictions:
    """The checked predictions of a run folder."""
    return external.read(RunFolder(folder).checked_predictions())
