"""`probe improve`: what helps the hard classes, found on training images and told by test images.

It starts from the plain probe and tries levers (`probe.runs.levers`) in rounds, on top of those that were
kept (`probe.runs.lever_search`). The best of a round is kept if hard classes gain by it on held-out training
images (`probe.runs.judgement`) and the mean per class stays within the budget of the plain probe's. Test
images are read once, at the end, for the plain probe and for what was chosen: their gain is the claim,
whatever the search believed.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbones import catalogue
from probe.errors import UserError
from probe.evaluation.summary import EvaluationSet, gain_over, summarise
from probe.recipe import Recipe, SelectConfig
from probe.report.html import improvement as page
from probe.report.text import format
from probe.runs import groups, lever_shares, levers, pairing
from probe.runs.folder import PAGE, RECIPE, RunFolder
from probe.runs.judgement import FOLDS, TrainingImages
from probe.runs.lever_search import Memory, Search, Step
from probe.runs.naming import slug
from probe.runs.run import Run, check, run
from probe.runs.strategy import choose
from probe.system import checksums
from probe.system.atomic import staged_folder, write_atomic
from probe.system.cache_dir import OTHER_RUN, check_owner
from probe.system.safe_text import one_line

SCHEMA = 1
FILE = "improve.json"
MINUTES = 20.0
PLAIN = "plain probe"


@dataclass(frozen=True)
class Improvement:
    """Where it was written, and what improve.json says."""

    folder: Path
    report: dict[str, Any]


def improve(
    recipe: Recipe,
    *,
    minutes: float = MINUTES,
    backbones: Sequence[str] | None = None,
    cache: Path | None = None,
    out: Path = Path("runs"),
) -> Improvement:
    """Search, read the test images once, and write `out/<slug>/`.

    The budget is `recipe.select.budget`. `backbones` may be added to the recipe's own, by default those
    whose weights an installed package has brought. Killed and called again, it goes on with the levers
    that are left.
    """
    if not (math.isfinite(minutes) and minutes > 0):
        raise UserError(f"minutes must be a finite number above 0, not {minutes:g}")
    plain, budget = start(recipe), recipe.select.budget
    check(choose(plain))
    further = levers.installed() if backbones is None else list(backbones)
    folder = out / _name(plain, budget, further)
    work = folder.with_name(f".{folder.name}")
    check_owner(folder, work, way_out=OTHER_RUN)

    images = TrainingImages(plain, cache)
    prints = [images.data[name].fingerprint for name in images.data.splits]
    memory = Memory(work, digest=hashlib.sha256(" ".join([folder.name, *prints]).encode()).hexdigest())
    search = Search(images, memory, budget=budget, seconds=60 * minutes, backbones=further, tell=_tell)
    steps = search.run()

    runs = [
        run(chosen, cache=cache, out=out) for chosen in {r.digest: r for r in (plain, search.best)}.values()
    ]
    report = {
        "schema": SCHEMA,
        "backbone": plain.backbone.title,
        "data": plain.data.name,
        "budget": budget,
        "minutes": minutes,
        **_tested(runs),
        "levers": [_row(step) for step in steps],
        "look_first": runs[0].result["diagnostics"].get("look_first"),
        "judged": {"images": len(images.fold), "folds": FOLDS, "plain": search.base},
        "seconds": memory.seconds,
    }
    report["chosen"] |= {"recipe": str(folder / RECIPE), "yaml": search.best.to_yaml()}
    report["shares"] = lever_shares.shares(report["levers"])
    report |= {"sentence": lever_shares.sentence(report), "remarks": _remarks(report, runs)}
    report = json.loads(json.dumps(report, allow_nan=False))
    write(folder, report, search.best, cache, RunFolder(runs[0].folder).thumbnails())
    shutil.rmtree(work, ignore_errors=True)
    return Improvement(folder, report)


def names(given: Sequence[str]) -> list[str] | None:
    """`("a b", "c")` as a, b, c, each a known backbone; `("",)` is none of them, and None where not given."""
    found = [name for words in given for name in words.split()]
    for name in found:
        catalogue.find(name)
    return found if given else None


def start(recipe: Recipe) -> Recipe:
    """The plain probe of a recipe, which the search starts from."""
    if recipe.trains or recipe.solver.name != "lbfgs":
        raise UserError("improve starts from the plain probe: leave --finetune and --solver out")
    if recipe.groups != "crossfit" or recipe.select.name not in ("auto", "budget"):
        raise UserError("improve ranks classes and chooses by itself: leave --groups and --select out")
    return recipe.plain.model_copy(update={"select": SelectConfig()})


def _name(plain: Recipe, budget: float, further: Sequence[str]) -> str:
    """The folder's name: readable, and unique to what is searched for and with."""
    words = slug(plain).rsplit("-", 2)[0]
    key = " ".join([plain.digest, f"{budget:g}", *further])
    return f"{words}-improve-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _tell(step: Step) -> None:
    said = "kept" if step.kept else step.why or "helps"
    if step.gain is not None:
        hard = step.gain["hard"]
        said = f"{format.gained(hard)} points on hard classes ({format.gain_interval(hard['ci'])}): {said}"
    print(one_line(f"{step.name}: {said}"), file=sys.stderr)


def _row(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": step.kind,
        "kept": step.kept,
        "gain": step.gain,
        "over_plain": step.over_plain,
        "accuracy": step.accuracy,
        "seconds": step.seconds,
        "chosen": "" if step.judgement is None else step.judgement.chosen,
        "why": step.why,
    }


def _tested(runs: Sequence[Run]) -> dict[str, Any]:
    """What test images say of the plain probe and of what was chosen, by the plain probe's groups."""
    first = runs[0].result
    block = {"groups_by": first["groups_by"], "baseline": first["test"]}
    if len(runs) == 1:
        return {
            **block,
            "chosen": {"run": runs[0].folder.name, "test": first["test"]},
            "gain": None,
            "versus": None,
        }
    found = pairing.paired([r.folder for r in runs])
    names = found.class_names
    eval_set = EvaluationSet(found.labels, names, groups.of_result(first, names))
    base, chosen = found.outcomes
    versus = {**gain_over(chosen, base, eval_set), "method": PLAIN, "how": None, "run": runs[0].folder.name}
    return {
        **block,
        "chosen": {"run": runs[1].folder.name, "test": summarise(chosen, eval_set)},
        "gain": versus["gain"],
        "versus": versus,
    }


def _remarks(report: dict[str, Any], runs: Sequence[Run]) -> list[str]:
    """What to keep in mind: of what was kept, and all that the run of the chosen recipe says about itself."""
    said = [*lever_shares.remarks(report), *format.remarks(runs[-1].result)]
    if len(runs) > 1:
        said.append(
            "hard classes are those of the plain probe's run; the run of the chosen recipe ranks its own"
        )
    return said


def write(
    folder: Path,
    report: dict[str, Any],
    chosen: Recipe,
    cache: Path | None,
    small: Mapping[str, str],
) -> None:
    """The folder, whole or not at all: improve.json, the chosen recipe and the page with `small` pictures."""
    with staged_folder(folder) as staged:
        write_atomic(staged / FILE, json.dumps(report, indent=2, allow_nan=False))
        write_atomic(staged / RECIPE, chosen.to_yaml())
        checksums.record(staged, {FILE, RECIPE})
        write_atomic(staged / PAGE, page.render(report, thumbnails=small, keep=cache))
