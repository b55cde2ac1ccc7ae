"""A recipe trained with each of its seeds, and what the trainings leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backbones import reading
from probe.heads.fitted import OnScaled
from probe.recipe import Recipe
from probe.runs import selecting
from probe.runs.folder import LOG, RunFolder
from probe.runs.trials import Trials
from probe.train.finetuning import FinetunedModel, finetune
from probe.train.parallel.accelerator import TRACKING
from probe.train.sgd import probe_sgd

if TYPE_CHECKING:
    from probe.probing.problem import Fit, ProbeProblem
    from probe.probing.selection import Selector
    from probe.runs.inputs import RunInputs

Holdouts = Sequence[NDArray[np.int64]]  # the rows that validate, one array per seed


def seed_folder(work: Path, seed: int) -> Path:
    """Where the training with one seed of the run keeps its checkpoints, its log and its weights."""
    return work / f"seed-{seed}"


def probes(
    recipe: Recipe,
    problem: ProbeProblem,
    holdouts: Holdouts,
    work: Path,
    selectors: Sequence[Selector] = (),
    first: int = 0,
) -> Iterator[Fit]:
    """Heads trained by SGD on cached features; with `selectors`, one per seed, these choose what is open."""
    for at, holdout in enumerate(holdouts):
        seed, selector = recipe.first_seed + first + at, selectors[at] if selectors else None
        yield _probe(recipe, problem, holdout, seed, seed_folder(work, first + at), selector)


def _probe(
    recipe: Recipe,
    problem: ProbeProblem,
    holdout: NDArray[np.int64],
    seed: int,
    folder: Path,
    selector: Selector | None,
) -> Fit:
    def train(r: Recipe, folder: Path) -> Fit:
        return probe_sgd(
            problem,
            r.method,
            r.solver,
            holdout,
            settings=r.train,
            seed=seed,
            folder=folder,
            selector=selector,
        )

    def scores(r: Recipe, folder: Path) -> Tensor:
        return problem.logits(OnScaled(train(r, folder).head), holdout)

    if selector is None or not selecting.has_ranges(recipe):
        return train(recipe, folder)
    method, record = Trials(recipe, selector, folder, scores).choose()
    fit = train(selecting.with_method(recipe, method), folder)
    own = {"select_l2" if key == "select" else key: value for key, value in fit.record.items()}
    return replace(fit, record={**own, **record})


def tunings(
    recipe: Recipe,
    problem: ProbeProblem,
    inputs: RunInputs,
    holdouts: Holdouts,
    work: Path,
    selectors: Sequence[Selector] = (),
    first: int = 0,
) -> Iterator[FinetunedModel]:
    """Fine-tuned backbones with their heads; with `selectors`, one per seed, these choose among values."""
    usable = {split: features.ids for split, features in inputs.features.items()}
    for at, holdout in enumerate(holdouts):
        train = partial(
            finetune,
            data=inputs.data,
            held=holdout,
            seed=recipe.first_seed + first + at,
            pose=lambda backbone: problem,  # pretrained: the same backbone for every seed
            ids=usable,
        )
        yield _tuning(recipe, train, seed_folder(work, first + at), selectors[at] if selectors else None)


def _tuning(
    recipe: Recipe, train: Callable[..., FinetunedModel], folder: Path, selector: Selector | None
) -> FinetunedModel:
    def scores(r: Recipe, folder: Path) -> Tensor:
        held = train(r, folder=folder, test=False).held
        assert held is not None, "a trial keeps the best epoch, so the holdout is not trained on"
        return held

    if selector is None or not selecting.has_ranges(recipe):
        return train(recipe, folder=folder)
    method, record = Trials(recipe, selector, folder, scores).choose()
    tuned = train(selecting.with_method(recipe, method), folder=folder)
    return replace(tuned, record={**tuned.record, **record})


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
