"""A recipe trained with each of its seeds, and what the trainings leave behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backbones import reading
from probe.recipe import Recipe
from probe.runs.folder import LOG, RunFolder
from probe.train.finetuning import FinetunedModel, finetune
from probe.train.parallel.accelerator import TRACKING
from probe.train.sgd import probe_sgd

if TYPE_CHECKING:
    from probe.probing.problem import Fit, ProbeProblem
    from probe.runs.inputs import RunInputs

Holdouts = Sequence[NDArray[np.int64]]  # the rows that validate, one array per seed


def seed_folder(work: Path, seed: int) -> Path:
    """Where the training with one seed keeps its checkpoints, its log and its weights."""
    return work / f"seed-{seed}"


def probes(recipe: Recipe, problem: ProbeProblem, holdouts: Holdouts, work: Path) -> Iterator[Fit]:
    """Heads trained by SGD on cached features."""
    for seed, holdout in enumerate(holdouts):
        yield probe_sgd(
            problem,
            recipe.method,
            recipe.solver,
            holdout,
            settings=recipe.train,
            seed=seed,
            folder=seed_folder(work, seed),
        )


def tunings(
    recipe: Recipe, problem: ProbeProblem, inputs: RunInputs, holdouts: Holdouts, work: Path
) -> Iterator[FinetunedModel]:
    """Fine-tuned backbones with their heads."""
    usable = {split: features.ids for split, features in inputs.features.items()}
    for seed, holdout in enumerate(holdouts):
        yield finetune(
            recipe,
            inputs.data,
            holdout,
            folder=seed_folder(work, seed),
            seed=seed,
            pose=lambda backbone: problem,  # pretrained: the same backbone for every seed
            ids=usable,
        )


def log(work: Path, seeds: int) -> str:
    """Every seed's log as one: one line per step and one per epoch, each with its seed."""
    lines = []
    for seed in range(seeds):
        path = seed_folder(work, seed) / LOG
        for line in reading.text(path, reading.LOG).splitlines() if path.exists() else ():
            lines.append(json.dumps({"seed": seed, **json.loads(line)}) + "\n")
    return "".join(lines)


def copy_tracking(work: Path, seeds: int, folder: RunFolder) -> None:
    """Copy what trackers wrote beside the training into the run folder, one folder per seed."""
    for seed in range(seeds):
        tracks = seed_folder(work, seed) / TRACKING
        if tracks.is_dir():
            folder.copy_tree(tracks, f"{TRACKING}/seed-{seed}")
