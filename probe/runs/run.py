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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe import methods
from probe.errors import UserError
from probe.evaluation import predictions
from probe.evaluation.diagnostics.diagnose import LabelledFeatures, Model, diagnose
from probe.evaluation.predictions import Predictions
from probe.evaluation.summary import Bench, Groups, gain_over, judge
from probe.heads import fitted
from probe.probing import exact
from probe.probing.exact import PLAIN, Fit, ProbeProblem
from probe.recipe import Recipe
from probe.report.html import page, thumbnails
from probe.runs import reference, unused_settings
from probe.runs.groups import Ranker
from probe.runs.inputs import RunInputs, from_scratch, gather
from probe.runs.metadata import describe, remarks_and_margins
from probe.runs.reference import PROBE, SAME, Trained
from probe.system import checksums
from probe.system.atomic import staged_folder, write_atomic
from probe.system.cache_dir import OTHER_RUN, check_owner
from probe.system.world import rank as rank_of_process

if TYPE_CHECKING:
    from probe.train import FinetunedModel

REFERENCE = reference.ERM
DRAWN_AGAIN = {"report.html", thumbnails.FILE}  # by `probe report`, so their bytes may change


@dataclass(frozen=True)
class Run:
    """Where a run was written, and what its result.json says."""

    folder: Path
    result: dict[str, Any]
    guesses: Sequence[Predictions] = ()  # of the recipe's own method, seed by seed


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
class SeedResults:
    """One method's heads, seed by seed, and their scores on the test split."""

    name: str
    fits: list[Fit]
    scores: list[Tensor]
    tuned: FinetunedModel | None = None  # the first seed's backbone, where it was trained too
    held: Sequence[Tensor | None] = ()  # scores of each seed's held-out rows, where they taught nothing
    starts: tuple[Tensor, ...] = ()  # scores at step 0, where a fine-tuning began with a head worth comparing

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
    check_owner(out / recipe.slug, work, way_out=OTHER_RUN)
    material = gather(recipe, cache=cache, stage=clock)
    test = material.features["test"]
    fetch = partial(reference.fetch, ids=test.ids, cache=cache, out=out)
    rival = None
    if reference.how(recipe) == SAME:
        with clock("reference"):
            rival = fetch(recipe.plain, "to compare with")
    with clock("probe"):
        problem = exact.pose(recipe, material)
        cuts = [
            material.held(seed, recipe.data.val_fraction)
            for seed in range(seeds_that_differ(recipe, material))
        ]
        learnt = list(learn(recipe, problem, material, cuts, work))
        mine = learnt[0]
        guesses = [g for part in learnt for g in part.guesses(test.y)]
        guesses += [] if rival is None else rival.guesses_as(REFERENCE)
    with clock("groups"):
        ranking = Ranker(recipe, problem, material, cuts, learnt, guesses, rival)(fetch)
    with clock("evaluation"):
        said = (reference.remark(recipe, rival), ranking.remark)
        result = {
            **describe(recipe, material, cuts, mine.fits),
            **ranking.origin,
            **remarks_and_margins(recipe, problem, material, mine.fits, said),
            **assess(recipe, material, guesses, ranking.groups, rival),
        }
        if recipe.finetune:
            from probe.runs.training_summary import course

            result["training"], worth_saying = course(
                bench_of(material, ranking.groups),
                mine.fits,
                guesses,
                end=mine.name,
                probe=REFERENCE if reference.how(recipe) == PROBE else None,
                starts=mine.starts,
            )
            result["remarks"] += worth_saying
    with clock("diagnostics"):
        result["diagnostics"] = examine(recipe, problem, material, learnt, ranking.groups, result["margins"])
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
    return Run(out / recipe.slug, result, [g for g in guesses if g.method == mine.name])


def learn(
    recipe: Recipe, problem: ProbeProblem, material: RunInputs, cuts: Sequence[NDArray[np.int64]], work: Path
) -> Iterator[SeedResults]:
    """The recipe's method first; then the plain probe, fitted in the same way, if that is the reference."""
    plans = {recipe.label: (recipe.method, recipe.solver)}
    if reference.how(recipe) == PROBE:
        plans[REFERENCE] = (PLAIN, exact.exactly(recipe.solver))
    test = material.features["test"].X
    if recipe.trains:
        from probe.runs import seeds

        name = recipe.label
        del plans[name]
        if recipe.finetune:
            tuned = list(seeds.tunings(recipe, problem, material, cuts, work))
            fits = [Fit(t.head, t.record, t.loss) for t in tuned]
            starts = tuple(t.start.scores(test) for t in tuned if t.start is not None)
            held = [t.held for t in tuned]
            yield SeedResults(name, fits, [t.scores for t in tuned], tuned[0], held, starts)
        else:
            fits = list(seeds.probes(recipe, problem, cuts, work))
            yield SeedResults(name, fits, [fit.head.scores(test) for fit in fits])
    for name, (method, solver) in plans.items():
        fits = [exact.fit(problem, method, solver, held) for held in cuts]
        yield SeedResults(name, fits, [fit.head.scores(test) for fit in fits])


def seeds_that_differ(recipe: Recipe, material: RunInputs) -> int:
    """How many seeds give different heads: an exact solver only sees one through the validation cut."""
    cut_matters = recipe.solver.name in ("lbfgs", "ridge") and recipe.solver.l2 is None
    same = not recipe.trains and ("val" in material.features or not cut_matters)
    return 1 if same else recipe.seeds


def check(recipe: Recipe) -> None:
    """Refuse at once what could only fail, or change nothing, after minutes of extraction."""
    reference.check(recipe)
    if recipe.trains:
        from probe.train.build import check_recipe

        check_recipe(recipe, from_scratch=from_scratch(recipe))
    else:
        method = methods.info(recipe.method.name)
        if methods.catalogue.wraps(method.name):
            raise UserError(f"{method.name} is trained: use --solver sgd, or --finetune")
        exact.check(recipe.method, recipe.solver)
    unused_settings.check(recipe)


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


def bench_of(material: RunInputs, ranking: Groups) -> Bench:
    test = material.features["test"]
    counts = np.bincount(material.y, minlength=len(test.class_names))
    return Bench(test.y, tuple(test.class_names), ranking, counts)


def assess(
    recipe: Recipe,
    material: RunInputs,
    guesses: Sequence[Predictions],
    ranking: Groups,
    rival: Trained | None,
) -> dict[str, Any]:
    """The `test`, `reference` and `versus` blocks."""
    test, bench = material.features["test"], bench_of(material, ranking)
    mine = predictions.outcome(guesses, test.y, recipe.label)
    block: dict[str, Any] = {"test": judge(mine, bench), "reference": None, "versus": None}
    how = reference.how(recipe)
    if how is not None:
        other = predictions.outcome(guesses, test.y, REFERENCE)
        gain = gain_over(mine, other, bench)
        gain |= {"how": how, "run": None if rival is None else rival.name}
        block |= {"reference": judge(other, bench), "versus": gain}
    return block


def examine(
    recipe: Recipe,
    problem: ProbeProblem,
    material: RunInputs,
    learnt: Sequence[SeedResults],
    ranking: Groups,
    margins: dict[str, Any] | None,
) -> dict[str, Any]:
    """The `diagnostics` block, of the first seed; what a net was before its training is not looked at."""
    test = material.features["test"]
    train, seen = (
        LabelledFeatures(problem.X, problem.y),
        LabelledFeatures(problem.scaling.lazily(test.X), test.y),
    )
    worth = not from_scratch(recipe)
    return diagnose(
        {
            part.name: Model(part.scores[0].numpy(), _array(part.fits[0].head.tensors.get("weight")))
            for part in learnt
        },
        labels=test.y,
        ids=test.ids,
        class_names=problem.class_names,
        groups=ranking,
        margins=None if margins is None else margins["by_class"],
        train=train if worth else None,
        test=seen if worth else None,
    )


def _array(tensor: Tensor | None) -> NDArray[np.floating] | None:
    return None if tensor is None else tensor.numpy()


def write(
    recipe: Recipe,
    out: Path,
    result: dict[str, Any],
    mine: SeedResults,
    material: RunInputs,
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
    if recipe.trains:
        from probe.runs import seeds

        log = seeds.log(work, len(mine.fits))
    with staged_folder(folder) as staged:
        if recipe.trains:
            seeds.keep_tracking(work, len(mine.fits), staged)
        write_atomic(staged / "recipe.yaml", recipe.to_yaml())
        write_atomic(staged / "result.json", json.dumps(result, indent=2, allow_nan=False))
        fitted.save(mine.fits[0].head, staged, about)
        if mine.tuned is not None:
            write_atomic(staged / mine.tuned.weights.name, mine.tuned.weights.read_bytes())
        predictions.write(staged / predictions.FILE, guesses, test.ids, test.y, test.class_names)
        write_atomic(staged / "log.jsonl", log)
        for name, content in pages.items():
            write_atomic(staged / name, content)
        checksums.record(staged, {path.name for path in staged.iterdir() if path.is_file()} - DRAWN_AGAIN)
    return folder
