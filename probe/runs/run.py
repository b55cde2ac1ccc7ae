"""A run: from a recipe to a folder with everything that was fitted, measured and decided.

The order is the path of the data: load and extract, fit, rank the classes, evaluate, write.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from probe.data import Dataset
from probe.data.summary import opening
from probe.errors import UserError
from probe.evaluation.groups import Ranking
from probe.evaluation.predictions import Predictions
from probe.probing import watching
from probe.probing.sharing import rows_shared
from probe.recipe import Recipe
from probe.recipe.errors import check_all
from probe.report.html import page, thumbnails
from probe.report.text import data as data_text
from probe.runs import (
    attribute_groups,
    class_ranking,
    common_ground,
    draws,
    look_first,
    reference,
    results,
    training_curves,
    unused_settings,
)
from probe.runs.common_ground import LastGround
from probe.runs.experiment import Experiment
from probe.runs.folder import RunFolder
from probe.runs.inputs import RunInputs, gather, load_data
from probe.runs.reference import SAME, TrainedRun
from probe.runs.strategy import Strategy, choose
from probe.system.allocator import keep_freed_memory, return_freed_memory
from probe.system.safe_text import printable
from probe.system.world import rank as rank_of_process


@dataclass(frozen=True)
class Run:
    """Where a run was written, and what its result.json says."""

    folder: Path
    result: dict[str, Any]
    predictions: Sequence[Predictions] = ()  # of the recipe's own method, one per seed


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
        """Every stage, and the total since the clock was made."""
        return {**self.stages, "total": time.perf_counter() - self._start}


def run(
    recipe: Recipe, *, cache: Path | None = None, out: Path = Path("runs"), last: LastGround | None = None
) -> Run:
    """Do what the recipe says and write `out/<slug>/`.

    Training keeps its checkpoints in `out/.<slug>/` until the run is written, so that the same call resumes
    after a kill. On several processes all train, or share the rows of exact solves, and process 0 writes.
    Runs that are given the same `last`, one after the other, share what is not their method's.
    """
    strategy = choose(recipe)
    check(strategy)
    keep_freed_memory()  # for the next solve, or step
    try:
        with nullcontext() if recipe.trains else rows_shared(), watching.shown():
            return _run(strategy, cache, out, last)
    finally:
        return_freed_memory()


def _run(strategy: Strategy, cache: Path | None, out: Path, last: LastGround | None) -> Run:
    recipe = strategy.recipe
    clock, folder = Clock(), RunFolder.of(recipe, out)
    folder.check_owner()

    with clock("data"):
        data = load_data(recipe, cache)
        tell(data)
    inputs = gather(recipe, cache=cache, data=data, stage=clock)  # load and extract
    further = [gather(drawn, cache=cache, stage=clock) for drawn in draws.further(recipe)]
    fetch = partial(reference.fetch, ids=inputs.features["test"].ids, cache=cache, out=out)

    trained = None
    if reference.how(recipe) == SAME:
        with clock("reference"):
            trained = fetch(recipe.plain, "to compare with")
    with clock("probe"):
        experiment = fit(strategy, inputs, trained, folder.work, further, last)

    with clock("groups"):
        ranking_run = None
        if (needed := class_ranking.training_needed(recipe)) is not None:
            ranking_run = fetch(needed, "to rank the classes by images held out from it")
        ranking = class_ranking.rank(experiment, ranking_run)
    with clock("evaluation"):
        result = results.evaluate(experiment, ranking)
    with clock("diagnostics"):
        result["diagnostics"] = results.diagnostics(experiment, ranking.groups, result["margins"])
    with clock("look first"):
        result["diagnostics"]["look_first"] = look_first.block(experiment, ranking, cache)
    if recipe.trains:
        from probe.runs import seeds

        result["curves"] = training_curves.of_log(seeds.log(folder.work, len(experiment.fitted.fits)))
    results.check_finite(result)
    result = json.loads(json.dumps({**result, "timing": clock.table()}, allow_nan=False))

    if rank_of_process() == 0:
        with clock("report"):
            small = thumbnails.of_diagnostics(inputs.data.by_name, result["diagnostics"])
            drawn = page.render(result, thumbnails=small, keep=cache)
        result["timing"] = clock.table()
        write(folder, experiment, ranking, result, drawn, small)
    return Run(folder.path, result, experiment.own_predictions)


def tell(data: Dataset) -> None:
    """Say what was found before minutes are spent on it: to a person at a terminal, not into a log."""
    if rank_of_process() == 0 and sys.stderr.isatty():
        for line in data_text.opening(opening(data)):
            print(printable(line), file=sys.stderr, flush=True)


def check(strategy: Strategy) -> None:
    """Refuse, all at once, what could only fail or change nothing after minutes of extraction."""
    recipe = strategy.recipe
    check_all(
        [
            partial(reference.check, recipe),
            strategy.check,
            partial(one_backbone, recipe),
            partial(attribute_groups.check, recipe),
            partial(unused_settings.check, recipe),
        ]
    )


def one_backbone(recipe: Recipe) -> None:
    """Refuse several backbones, or taps, where only one network can be meant."""
    what = "--finetune trains" if recipe.finetune else "zero-shot has the text encoder of"
    if recipe.backbone.also and (recipe.finetune or recipe.solver.name == "zeroshot"):
        raise UserError(f"{what} one backbone, not {recipe.backbone.title}; name one, and one tap")


def fit(
    strategy: Strategy,
    inputs: RunInputs,
    trained: TrainedRun | None,
    work: Path,
    further: Sequence[RunInputs] = (),
    last: LastGround | None = None,
) -> Experiment:
    """The recipe's method with every seed, after the plain probe if that is what it is compared with.

    `further` is what each seed after the first learns from, where that is not the same for all; `last` may
    have the plain probe already.
    """
    recipe = strategy.recipe
    ground = (last or LastGround()).of(strategy, [inputs, *further])
    if common_ground.is_plain(recipe):
        assert ground.plain is not None
        fitted = ground.plain
    else:
        fits = []
        for own in (posed.for_method() for posed in ground.posed):
            fits.append(strategy.fit(own.problem, own.inputs, own.holdouts, work, own.selectors, own.first))
        fitted = draws.joined(fits)
    return Experiment(strategy, inputs, ground, fitted, reference.how(recipe), trained, further)


def write(
    folder: RunFolder,
    e: Experiment,
    ranking: Ranking,
    result: dict[str, Any],
    drawn: str,
    small: dict[str, str],
) -> None:
    """Every file of the run, with the `drawn` page and its `small` pictures.

    The folder replaces an older one of the same recipe, whole.
    """
    with folder.replaced() as new:
        new.write_recipe(e.recipe)
        new.write_result(result)
        for seed, fit in enumerate(e.fitted.fits):
            new.of_seed(seed).write_head(fit.head, about_head(e, seed))
        for seed, tuned in enumerate(e.fitted.tuned):
            new.of_seed(seed).copy_file(tuned.weights)
        if e.inputs.first is not None and e.inputs.first.tuned:  # which has one seed
            new.copy_file(e.inputs.first.folder.weights)
        new.write_predictions(e.predictions, e.test)
        new.write_training_images(e.learnt_from)
        if ranking.crossfitted is not None:
            new.write_crossfitted(ranking.crossfitted, e.inputs.training_ids, e.problem.class_names)
        e.strategy.write_log(e.fitted, folder.work, new)
        new.write_thumbnails(small)
        new.write_page(drawn)
    folder.remove_work()


def about_head(e: Experiment, seed: int) -> dict[str, Any]:
    """What `probe predict` needs besides the head of one seed itself."""
    first, *others = e.recipe.backbone.parts
    tuned = e.fitted.tuned[seed] if e.fitted.tuned else None
    prints = [b.fingerprint for b in e.inputs.backbones]
    return {
        "class_names": list(e.test.class_names),
        "seed": seed,
        "backbone": first.model_dump(),
        "fingerprint": prints[0] if tuned is None else tuned.backbone.digest(),
        "also": [
            {"backbone": part.model_dump(), "fingerprint": fingerprint}
            for part, fingerprint in zip(others, prints[1:], strict=True)
        ],
        "tuned": tuned is not None or (e.inputs.first is not None and e.inputs.first.tuned),
        "dim": sum(e.inputs.widths),
        "views": [view.name for view in e.inputs.averaged_views],
    }
