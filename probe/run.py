"""A run: from a recipe to a folder with everything that was learnt, seen and decided.

The order is the path of the data: images, features (cached), heads (one a method and seed), judgement, files.
The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe import fitted, losses, methods, probing, sums
from probe.describe import describe, remarks_and_margins
from probe.errors import UserError
from probe.evaluate import groups, metrics, predictions
from probe.evaluate.diagnostics.diagnose import Features, Model, diagnose
from probe.evaluate.judge import Bench, Groups, judge, versus
from probe.evaluate.predictions import Predictions
from probe.files import staged_folder, write_atomic
from probe.location import OTHER_RUN, refuse_strangers
from probe.material import Material, gather
from probe.probing import PLAIN, Fit, Problem
from probe.recipe import Recipe, Solver
from probe.report import page, thumbnails
from probe.world import rank as rank_of_process

if TYPE_CHECKING:
    from probe.train import Tuned

REFERENCE = "erm"
EXACT = Solver(name="lbfgs")
DRAWN_AGAIN = {"report.html", thumbnails.FILE}  # by `probe report`, so their bytes may change


@dataclass(frozen=True)
class Run:
    """Where a run was written, and what its result.json says."""

    folder: Path
    result: dict[str, Any]


class Clock:
    """Seconds by stage, in the order the stages were first entered."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.stages[stage] = self.stages.get(stage, 0) + time.perf_counter() - begin

    def table(self) -> dict[str, float]:
        return {**self.stages, "total": time.perf_counter() - self._start}


@dataclass(frozen=True)
class Learnt:
    """One method's heads, seed by seed, and their scores on the test split."""

    name: str
    fits: list[Fit]
    scores: list[Tensor]
    tuned: Tuned | None = None  # the first seed's backbone, where it was trained too

    def guesses(self, labels: NDArray[np.int64]) -> list[Predictions]:
        return [predictions.from_scores(s, labels, self.name, seed) for seed, s in enumerate(self.scores)]


def run(recipe: Recipe, *, cache: Path | None = None, out: Path = Path("runs")) -> Run:
    """Do what the recipe says and write `out/<slug>/`.

    Training keeps its checkpoints in `out/.<slug>/` until the run is written, so that the same call goes on
    after a kill. On several processes all train and process 0 writes.
    """
    check(recipe)
    clock = Clock()
    work = out / f".{recipe.slug}"
    refuse_strangers(out / recipe.slug, work, way_out=OTHER_RUN)
    material = gather(recipe, cache=cache, stage=clock)
    with clock("probe"):
        problem = probing.pose(recipe, material)
        cuts = [
            material.held(seed, recipe.data.val_fraction)
            for seed in range(seeds_that_differ(recipe, material))
        ]
        learnt = list(learn(recipe, problem, material, cuts, work))
        mine, reference = learnt[0], learnt[-1]
        guesses = [g for part in learnt for g in part.guesses(material.features["test"].y)]
    with clock("groups"):
        ranking = rank(recipe, problem, material, reference, guesses)
    with clock("evaluation"):
        result = {
            **describe(recipe, material, cuts, mine.fits),
            **remarks_and_margins(recipe, problem, material, mine.fits),
            **assess(material, guesses, ranking, mine.name),
        }
    with clock("diagnostics"):
        result["diagnostics"] = examine(problem, material, learnt, ranking, result["margins"])
    check_numbers(result)
    result = json.loads(json.dumps({**result, "timing": clock.table()}, allow_nan=False))
    if rank_of_process() == 0:
        with clock("report"):
            small = thumbnails.of_confusions(material.data["test"], result["diagnostics"])
            pages = {
                thumbnails.FILE: json.dumps(small),
                "report.html": page.render(result, thumbnails=small, keep=cache),
            }
        result["timing"] = clock.table()
        write(recipe, out, result, mine, material, guesses, work, pages)
        shutil.rmtree(work, ignore_errors=True)
    return Run(out / recipe.slug, result)


def learn(
    recipe: Recipe, problem: Problem, material: Material, cuts: Sequence[NDArray[np.int64]], work: Path
) -> Iterator[Learnt]:
    """The recipe's method first, the plain probe last: chosen and fitted in the same way, to compare with."""
    exact = recipe.solver if recipe.solver.name == "lbfgs" else EXACT
    plans = {recipe.label: (recipe.method, recipe.solver), REFERENCE: (PLAIN, exact)}
    test = material.features["test"].X
    if trains(recipe):
        from probe.train import learning

        name = recipe.label
        del plans[name]
        if recipe.finetune:
            tuned = list(learning.tunings(recipe, problem, material, cuts, work))
            fits = [Fit(t.head, t.record, t.loss) for t in tuned]
            yield Learnt(name, fits, [t.scores for t in tuned], tuned[0])
        else:
            fits = list(learning.probes(recipe, problem, cuts, work))
            yield Learnt(name, fits, [fit.head.scores(test) for fit in fits])
    for name, (method, solver) in plans.items():
        fits = [probing.fit(problem, method, solver, held) for held in cuts]
        yield Learnt(name, fits, [fit.head.scores(test) for fit in fits])


def seeds_that_differ(recipe: Recipe, material: Material) -> int:
    """How many seeds give different heads: an exact solver only sees one through the validation cut."""
    cut_matters = recipe.solver.name in ("lbfgs", "ridge") and recipe.solver.l2 is None
    same = not trains(recipe) and ("val" in material.features or not cut_matters)
    return 1 if same else recipe.seeds


def trains(recipe: Recipe) -> bool:
    """By gradient steps, instead of by an exact solver?"""
    return recipe.finetune or recipe.solver.name == "sgd"


def check(recipe: Recipe) -> None:
    """Refuse at once what could only fail, or change nothing, after minutes of extraction."""
    if trains(recipe):
        from probe.train.building import check_recipe

        return check_recipe(recipe)
    method = methods.info(recipe.method.name)
    if method not in losses.catalogue.METHODS:
        raise UserError(f"{method.name} is trained: use --solver sgd, or --finetune")
    probing.check(recipe.method, recipe.solver)


def check_numbers(result: dict[str, Any]) -> None:
    """Refuse to write a result that holds NaN or infinity: weights can grow too large for any sum of them."""
    bad = next(_not_finite(result, ""), None)
    if bad is not None:
        raise UserError(
            f"training ended with weights so large that the result is not finite ({bad}), so nothing was "
            "written. Try a smaller train.lr, train.clip=1, or a larger solver.l2"
        )


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from _not_finite(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path


def rank(
    recipe: Recipe,
    problem: Problem,
    material: Material,
    reference: Learnt,
    guesses: Sequence[Predictions],
) -> Groups:
    """Easy, Medium and Hard, by a model that is not the one under test (or as the papers do); or as given."""
    if material.groups is not None:
        return material.groups
    if recipe.groups == "paper":
        test = material.features["test"]
        hits = predictions.outcome(guesses, test.y, REFERENCE).hits
        return groups.thirds(np.nan_to_num(metrics.count(hits, test.y, problem.num_classes).accuracy))
    plain = probing.held_out_probabilities(problem, reference.fits[0].record["l2"])
    return groups.thirds(*groups.crossfit(problem.y, problem.num_classes, plain))


def assess(material: Material, guesses: Sequence[Predictions], ranking: Groups, name: str) -> dict[str, Any]:
    """The `test`, `reference` and `versus` blocks."""
    test = material.features["test"]
    counts = np.bincount(material.y, minlength=len(test.class_names))
    bench = Bench(test.y, tuple(test.class_names), ranking, counts)
    mine = predictions.outcome(guesses, test.y, name)
    block: dict[str, Any] = {"test": judge(mine, bench), "reference": None, "versus": None}
    if name != REFERENCE:
        other = predictions.outcome(guesses, test.y, REFERENCE)
        block |= {"reference": judge(other, bench), "versus": versus(mine, other, bench)}
    return block


def examine(
    problem: Problem,
    material: Material,
    learnt: Sequence[Learnt],
    ranking: Groups,
    margins: dict[str, Any] | None,
) -> dict[str, Any]:
    """The `diagnostics` block, of the first seed."""
    test = material.features["test"]
    return diagnose(
        {
            part.name: Model(part.scores[0].numpy(), _array(part.fits[0].head.tensors.get("weight")))
            for part in learnt
        },
        labels=test.y,
        ids=test.ids,
        class_names=problem.class_names,
        groups=ranking,
        train=Features(problem.X, problem.y),
        test=Features(problem.scaling.lazily(test.X), test.y),
        margins=None if margins is None else margins["by_class"],
    )


def _array(tensor: Tensor | None) -> NDArray[np.floating] | None:
    return None if tensor is None else tensor.numpy()


def write(
    recipe: Recipe,
    out: Path,
    result: dict[str, Any],
    mine: Learnt,
    material: Material,
    guesses: Sequence[Predictions],
    work: Path,
    pages: Mapping[str, str],
) -> Path:
    """The run folder, with the `pages` by name; it replaces an older one of the same recipe, whole."""
    folder = out / recipe.slug
    test = material.features["test"]
    about = {
        "class_names": list(test.class_names),
        "backbone": recipe.backbone.model_dump(),
        "fingerprint": material.backbone.fingerprint if mine.tuned is None else mine.tuned.backbone.digest(),
        "tuned": mine.tuned is not None,
        "dim": material.backbone.dim,
    }
    log = "".join(json.dumps(row) + "\n" for row in result["seeds"])
    if trains(recipe):
        from probe.train import learning

        log = learning.log(work, len(mine.fits))
    with staged_folder(folder) as staged:
        if trains(recipe):
            learning.keep_tracking(work, len(mine.fits), staged)
        write_atomic(staged / "recipe.yaml", recipe.to_yaml())
        write_atomic(staged / "result.json", json.dumps(result, indent=2, allow_nan=False))
        fitted.save(mine.fits[0].head, staged, about)
        if mine.tuned is not None:
            write_atomic(staged / mine.tuned.weights.name, mine.tuned.weights.read_bytes())
        predictions.write(staged / "predictions.parquet", guesses, test.ids, test.y, test.class_names)
        write_atomic(staged / "log.jsonl", log)
        for name, content in pages.items():
            write_atomic(staged / name, content)
        sums.record(staged, {path.name for path in staged.iterdir() if path.is_file()} - DRAWN_AGAIN)
    return folder
