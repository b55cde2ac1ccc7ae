"""Judge the head, or the tuned network, that a run saved, on other images of its classes.

The result is that of a run's test split, and `shift` says how far it is from the run's own test: paired where
these are the same images (by id, with the same labels: a corrupted copy), else as the difference of two sets
of images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe import features
from probe.data import attribute, judged
from probe.data.dataset import Dataset, Split
from probe.data.judged import Judged
from probe.errors import UserError
from probe.evaluation import attribute_values, external, predictions, significance
from probe.evaluation.attribute_values import AttributeSet
from probe.evaluation.diagnostics.diagnose import Model, diagnose
from probe.evaluation.external import ExternalPredictions
from probe.evaluation.predictions import Predictions
from probe.evaluation.significance import GAIN
from probe.evaluation.summary import EvaluationSet, gain, summarise
from probe.features import FeatureSet, side_by_side
from probe.features.views import CENTER, View
from probe.report.html import page, thumbnails
from probe.report.text.evaluation import shift_lines
from probe.runs.folder import RunFolder, understood
from probe.runs.naming import WORD
from probe.runs.predict import load_backbone_of
from probe.runs.run import Run
from probe.system import devices

AMONG = ("auto", "all", "present")


@dataclass(frozen=True)
class Scored:
    """What a run's network says about other images, seed by seed."""

    run: RunFolder
    result: dict[str, Any]  # of the run
    data: Judged
    test: FeatureSet  # its features, with the head's class numbers as labels
    scores: dict[int, Tensor]  # by seed, N x K
    among_present: bool

    @cached_property
    def predicted(self) -> list[Predictions]:
        """One class of those that are judged among, for each image; one per seed."""
        method = str(self.result["method"])
        return [
            predictions.from_scores(self._judged(scores), self.test.y, method, seed)
            for seed, scores in self.scores.items()
        ]

    def _judged(self, scores: Tensor) -> Tensor:
        if not self.among_present:
            return scores
        absent = np.setdiff1d(np.arange(scores.shape[1]), self.data.present)
        return scores.index_fill(1, torch.from_numpy(absent), -torch.inf)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """S x N."""
        return np.stack([p.prediction == self.test.y for p in self.predicted])


def evaluate(
    run: Path,
    data: str,
    *,
    root: str | None = None,
    among: str = "auto",
    by: str | None = None,
    seed: int | None = None,
    skip_bad_images: bool = False,
    device: str = "auto",
    cache: Path | None = None,
    out: Path = Path("runs"),
) -> Run:
    """Judge all seeds of a run on `data` and write `out/<run>-on-<data>/`.

    among  "all": a prediction is one of all classes; "present": of those that the data has; "auto": all, but
           present for ImageNet-R and -A, as their authors do it
    by     a column that groups the images, as `data.attribute` of a recipe
    seed   one of the run's seeds instead of all
    device where the images are encoded, as `device` of a recipe
    """
    folder = RunFolder(run)
    stored = folder.result()
    about = folder.head(seed or 0)[1]
    if "backbone" not in about:
        raise UserError(f"{run} holds a head but no backbone; give a run folder, as `probe run` writes it")
    found = judged.read(data, about["class_names"], root=root, cache=cache)
    present = among == "present" or (among == "auto" and found.among_present)
    seeds = folder.seeds if seed is None else [seed]
    test, scores = _scores(folder, seeds, found.split, cache, skip_bad_images, device)
    scored = Scored(folder, stored, found, test, scores, present)
    with understood(run):
        result = _result(scored, by)
    small = thumbnails.of_diagnostics({"test": found.split}, result["diagnostics"])
    result = json.loads(json.dumps(result, allow_nan=False))
    target = RunFolder(out / f"{folder.path.resolve().name}-on-{_safe(found.name)}")
    target.check_owner()
    with target.replaced() as new:
        new.write_result(result)
        new.write_predictions(scored.predicted, scored.test)
        new.write_thumbnails(small)
        new.write_page(page.render(result, thumbnails=small, keep=cache))
    return Run(target.path, result, scored.predicted)


def _scores(
    folder: RunFolder,
    seeds: Sequence[int],
    split: Split,
    cache: Path | None,
    skip_bad_images: bool,
    device: str,
) -> tuple[FeatureSet, dict[int, Tensor]]:
    """The features of the images, and the scores of every seed's head; tuned networks have their own."""
    where = str(devices.chosen(device, devices.FOR_ENCODING))
    sets: list[FeatureSet] = []
    scores = {}
    for seed in seeds:
        head, about = folder.head(seed)
        tuned = folder.of_seed(seed) if about.get("tuned") else None
        if tuned is not None or not sets:
            encoders = [load_backbone_of(part, tuned, where) for part in (about, *about.get("also", []))]
            sets = [
                side_by_side(
                    [
                        features.extract(
                            b, split, cache=cache, view=View(name), skip_bad_images=skip_bad_images
                        )
                        for b in encoders
                    ]
                )
                for name in about.get("views", [CENTER.name])
            ]
        scores[seed] = head.scores_over([f.X for f in sets])
    return sets[0], scores


def _safe(name: str) -> str:
    import re

    return re.sub(r"[^A-Za-z0-9.]+", "-", name)[:WORD].strip("-.") or "x"


def _result(s: Scored, by: str | None) -> dict[str, Any]:
    names = tuple(s.test.class_names)
    where = {name: k for k, name in enumerate(names)}
    groups = {
        name: [where[c] for c in group["classes"]] for name, group in s.result["test"]["groups"].items()
    }
    method = str(s.result["method"])
    outcome = predictions.outcome(s.predicted, s.test.y, method)
    block: dict[str, Any] = {
        "schema": s.result["schema"],
        "method": s.result["method"],
        "evaluates": s.run.path.resolve().name,
        "backbone": s.result.get("backbone"),
        "data": {
            "name": s.data.name,
            "sizes": {"test": len(s.test)},
            "fingerprints": {"test": s.data.split.fingerprint},
            "skipped": {"test": s.test.skipped} if s.test.skipped else {},
        },
        "seeds": [{"seed": seed} for seed in s.scores],
        "groups_by": s.result.get("groups_by"),
        "groups_from": s.run.path.resolve().name,
        "test": summarise(outcome, EvaluationSet(s.test.y, names, groups)),
        "reference": None,
        "versus": None,
        "diagnostics": diagnose(
            {method: Model(next(iter(s.scores.values())).numpy())},
            labels=s.test.y,
            ids=s.test.ids,
            class_names=names,
            groups=groups,
        ),
        "shift": (shift := _shift(s)),
        "remarks": [*_remarks(s), *(shift_lines(shift) if shift else ())],
    }
    if by is not None:
        block["attribute"] = _attribute(s, by, outcome)
    return block


def _attribute(s: Scored, by: str, outcome: Any) -> dict[str, Any]:
    alone = Dataset(s.data.name, s.data.split.class_names, "accuracy", (), {"test": s.data.split}, "")
    found = attribute.read(alone, by)
    codes = found.of("test", s.test.ids)
    values = AttributeSet(found.name, found.values, codes, s.test.y, tuple(s.test.class_names))
    return attribute_values.evaluate(values, outcome)


def _shift(s: Scored) -> dict[str, Any] | None:
    """The change from the run's own test images; None where the run keeps no predictions of them."""
    if not s.run.has_predictions:
        return None
    own = external.read(s.run.checked_predictions())
    method = str(s.result["method"])
    right = own.prediction[method][list(s.scores)] == own.labels  # S x N of its own test
    now = s.correct
    if (rows := _same(own, s)) is not None:
        m = significance.class_moments(
            now.astype(np.int8) - right[:, rows].astype(np.int8), s.test.y, s.test.num_classes, GAIN
        )
        weights = significance.weightings(m.n, {})
        found = significance.estimates(m, np.stack([weights["overall"], weights["mean_per_class"]]))
        return {
            "paired": True,
            "images": len(s.test),
            "overall": gain(found, 0),
            "mean_per_class": gain(found, 1),
        }
    both = AttributeSet(
        "data set",
        (s.data.name, "its own test"),
        np.repeat([0, 1], [len(s.test), len(own.labels)]),
        np.concatenate([s.test.y, own.labels]),
        tuple(s.test.class_names),
    )
    [gap] = attribute_values.gaps(both, np.concatenate([now, right], axis=1))
    return {
        "paired": False,
        "images": len(s.test),
        "overall": _plain(gap),
        "same_classes": gap["same_classes"],
    }


def _plain(gap: dict[str, Any]) -> dict[str, Any]:
    return {key: gap[key] for key in ("mean", "ci", "p", "clear", "parts")}


def _same(own: ExternalPredictions, s: Scored) -> NDArray[np.int64] | None:
    """The rows of the run's own test that are these images; None unless all are, with the same labels."""
    where = {sample: row for row, sample in enumerate(own.ids)}
    rows = [where.get(sample, -1) for sample in s.test.ids]
    if min(rows, default=-1) < 0 or not np.array_equal(own.labels[rows], s.test.y):
        return None
    return np.array(rows, dtype=np.int64)


def _remarks(s: Scored) -> list[str]:
    seeds = "seed " + ", ".join(map(str, s.scores)) if len(s.scores) == 1 else f"{len(s.scores)} seeds"
    said = [f"{s.run.path.resolve().name} ({seeds}), judged on {s.data.name}"]
    k, there = s.test.num_classes, len(s.data.present)
    if there < k:
        among = f"those {there}" if s.among_present else f"all {k}"
        said.append(f"{s.data.name} has {there} of the {k} classes; predictions are among {among}")
    if s.test.skipped:
        said.append(f"{len(s.test.skipped)} images could not be read and were left out")
    return said
