"""Is judging a run cheap enough to do every time?

python -m benchmarks.evaluation [--images 50000] [--classes 1000] [--json]

summarise    every metric, interval and class test of a method against its reference
page         the page of that result
comparison   a grid of 40 runs that all exist: read, check that neither the data nor any of the 8 backbones
             has changed, correct, and write CSV, JSON, Markdown, LaTeX, HTML
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.evaluation import groups
from probe.evaluation.summary import EvaluationSet, MethodOutcome, gain_over, summarise
from probe.recipe import Recipe
from probe.report.html import page
from probe.runs import compare
from probe.runs.naming import slug
from probe.runs.staleness import Present

SUMMARY_SECONDS, COMPARISON_SECONDS = 5.0, 10.0  # wanted: at most
METHODS = ("erm", "mr2", "la", "cb", "bs")
BACKBONES = (
    *("effnet-lite0", "effnet-lite1", "effnet-lite2", "wrn-22-10"),
    *("cifar-resnet20", "cifar-resnet32", "cifar-preact20", "cifar-preact32"),
)


def simulated(images: int, classes: int, seeds: int = 1) -> dict[str, Any]:
    """A method two points better than its reference, on classes from easy to hard."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    level = np.linspace(0.98, 0.35, classes)
    correct = [rng.random((seeds, images)) < level[labels] + gain for gain in (0.0, 0.02)]
    names = tuple(f"class {k}" for k in range(classes))
    eval_set = EvaluationSet(labels, names, groups.thirds(level), np.full(classes, 500))
    before, after = (
        MethodOutcome(name, right, right | (rng.random(right.shape) < 0.5), rng.random(right.shape))
        for name, right in zip(("erm", "mr2"), correct, strict=True)
    )
    return {
        "schema": 1,
        "seeds": [{"seed": s} for s in range(seeds)],
        "data": {
            "name": "simulated",
            "metric": "accuracy",
            "sizes": {"test": images},
            "fingerprints": {"test": "0"},
        },
        "backbone": {"name": "simulated"},
        "test": summarise(after, eval_set),
        "reference": summarise(before, eval_set),
        "versus": gain_over(after, before, eval_set),
    }


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The fastest of some repeats, and what it gave."""
    best, result = float("inf"), None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return best, result


def store(result: dict[str, Any], recipes: Sequence[Recipe], out: Path) -> None:
    """Run folders as a finished grid leaves them (the predictions are not read by a grid)."""
    present = Present()
    for recipe in recipes:
        data = present.data(recipe)
        folder = out / slug(recipe)
        folder.mkdir(parents=True)
        mine = {**result, "recipe": recipe.model_dump(), "groups_by": "crossfit"}
        mine["data"] = {**result["data"], "fingerprints": {s: data[s].fingerprint for s in data.splits}}
        mine["backbone"] = {"name": recipe.backbone.name, "fingerprint": present.weights(recipe)}
        if recipe.method.name == "erm":
            mine |= {"versus": None, "reference": None}
        (folder / "result.json").write_text(json.dumps(mine))
        (folder / "predictions.parquet").touch()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)

    summarised, result = timed(lambda: simulated(given.images, given.classes), given.repeats)
    page.library()  # put together once a version, then kept
    drawn, written = timed(lambda: page.render(result), given.repeats)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        grid = compare.Grid(BACKBONES, ["digits"], METHODS)
        store(result, grid.recipes(), out)

        def compared() -> Path:
            cells = compare.fill(grid, out=out)
            assert all(cell.reused for cell in cells)
            return compare.save(compare.table(cells), out / "compare")

        together, _ = timed(compared, given.repeats)
    report = {
        "images": given.images,
        "classes": given.classes,
        "summary_seconds": round(summarised, 2),
        "page_seconds": round(drawn, 2),
        "page_megabytes": round(len(written.encode()) / 1e6, 2),
        "comparison_runs": len(grid.recipes()),
        "comparison_seconds": round(together, 2),
        "ok": summarised <= SUMMARY_SECONDS and together <= COMPARISON_SECONDS,
    }
    if given.json:
        print(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        print(f"{name:20} {value}")
    print(f"wanted: summarise <= {SUMMARY_SECONDS:g} s, comparison <= {COMPARISON_SECONDS:g} s")


if __name__ == "__main__":
    main(sys.argv[1:])
