"""A recipe trained with each of its seeds: what `probe run` calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backbones import reading
from probe.recipe import Recipe
from probe.train.finetuning import FinetunedModel, finetune
from probe.train.parallel.accelerator import TRACKING
from probe.train.sgd import probe_sgd

if TYPE_CHECKING:
    from probe.probing.exact import Fit, ProbeProblem
    from probe.runs.inputs import RunInputs

Cuts = Sequence[NDArray[np.int64]]


def place(work: Path, seed: int) -> Path:
    """Where the training with one seed keeps its checkpoints, its log and its weights."""
    return work / f"seed-{seed}"


def probes(recipe: Recipe, problem: ProbeProblem, cuts: Cuts, work: Path) -> Iterator[Fit]:
    """Heads trained by SGD on cached features."""
    for seed, held in enumerate(cuts):
        yield probe_sgd(
            problem,
            recipe.method,
            recipe.solver,
            held,
            settings=recipe.train,
            seed=seed,
            folder=place(work, seed),
        )


def tunings(
    recipe: Recipe, problem: ProbeProblem, material: RunInputs, cuts: Cuts, work: Path
) -> Iterator[FinetunedModel]:
    """Fine-tuned backbones with their heads."""
    usable = {split: features.ids for split, features in material.features.items()}
    for seed, held in enumerate(cuts):
        yield finetune(
            recipe,
            material.data,
            held,
            folder=place(work, seed),
            seed=seed,
            pose=lambda backbone: problem,  # pretrained: the same backbone for every seed
            ids=usable,
        )


def log(work: Path, seeds: int) -> str:
    """Every seed's log as one: a line a step and a line an epoch."""
    lines = []
    for seed in range(seeds):
        path = place(work, seed) / "log.jsonl"
        for line in reading.text(path, reading.LOG).splitlines() if path.exists() else ():
            lines.append(json.dumps({"seed": seed, **json.loads(line)}) + "\n")
    return "".join(lines)


def keep_tracking(work: Path, seeds: int, folder: Path) -> None:
    """Copy what trackers wrote beside the training into the run folder, a folder a seed."""
    for seed in range(seeds):
        tracks = place(work, seed) / TRACKING
        if tracks.is_dir():
            shutil.copytree(tracks, folder / TRACKING / f"seed-{seed}")
