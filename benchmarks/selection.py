"""Choosing for hard classes by cross-fitting, against one default choice of l2 on a holdout.

    python -m benchmarks.selection                             # features made here, shaped like a backbone's
    python -m benchmarks.selection --features FILE.safetensors # real ones: tensors X (N x D) and y (N)
    python -m benchmarks.selection --pets FOLDER               # extracted here

The default solves the plain probe along the l2 path on four fifths of the images. The selection solves four
values of a parameter x the l2 path, five-fold, after the plain probe that ranks the classes. Both count
everything, the eigendecomposition too. Times are medians of interleaved repeats, on the clock and, in
brackets, of the processor. At most 8 x is the promise for features of pets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from torch import Tensor

from benchmarks.solver import features, threads
from probe.data.holdout import stratified_holdout
from probe.evaluation.groups import folds
from probe.evaluation.judging import Objective
from probe.probing.candidates import CrossFit, crossfit_candidates
from probe.probing.crossfit import PLAIN
from probe.probing.problem import ProbeProblem
from probe.probing.select_l2 import LogisticPath, select_l2
from probe.probing.settings import ExactSolver, LossChoice

PROMISED = 8.0
VALUES = (0.1, 0.3, 0.6, 1.0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--features", help="a safetensors file with X and y")
    source.add_argument("--pets", help="a folder of the pets data; features of effnet-lite0 are extracted")
    parser.add_argument("--method", default="ldam-linear", help="an exact method")
    parser.add_argument("--parameter", default="max_margin", help="its parameter that has a range")
    parser.add_argument("--values", type=float, nargs="+", default=VALUES)
    parser.add_argument("--objective", default="hard")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(argv)
    X, y = features(given.features, given.pets)
    methods = [LossChoice(given.method, {given.parameter: value}) for value in given.values]
    print(f"{X.shape[0]:,} x {X.shape[1]:,} features, {int(y.max()) + 1} classes, {given.threads} threads")
    sides: dict[str, Callable[[], str]] = {
        "default": lambda: _default(X, y),
        "selection": lambda: _selection(X, y, methods, Objective(given.objective)),
    }
    seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    with threads(given.threads):
        for _ in range(given.repeats):
            for side, run in sides.items():
                start, begun = time.perf_counter(), time.process_time()
                said = run()
                seconds[side].append((time.perf_counter() - start, time.process_time() - begun))
                print(f"  {side:10s} {seconds[side][-1][0]:7.2f} s   {said}", flush=True)
    (clock, cpu), (longer, cpu_longer) = (
        np.array([median(t) for t in zip(*s, strict=True)]) for s in seconds.values()
    )
    ratio = longer / clock
    print(
        f"default {clock:.2f} s   selection {longer:.2f} s   {ratio:.1f} x ({cpu_longer / cpu:.1f} x)"
        f"{'' if ratio <= PROMISED else '  MORE THAN PROMISED'}"
    )


def _problem(X: Tensor, y: Tensor) -> ProbeProblem:
    return ProbeProblem(X, y.numpy(), tuple(map(str, range(int(y.max()) + 1))), metric="mean_per_class")


def _default(X: Tensor, y: Tensor) -> str:
    problem = _problem(X, y)
    _, holdout = stratified_holdout(problem.y, 0.2, 0)
    path = LogisticPath(problem, lambda rows: problem.loss(PLAIN, rows))
    chosen = select_l2(problem, ExactSolver(), holdout, path)
    return f"l2 {chosen['l2']:.3g}, {len(chosen['validation'])} tried"


def _selection(X: Tensor, y: Tensor, methods: Sequence[LossChoice], objective: Objective) -> str:
    problem = _problem(X, y)
    crossfit = CrossFit(problem, folds(problem.labels, 5, 0))
    found = crossfit_candidates(crossfit, methods, ExactSolver(), objective)
    return f"{dict(found.chosen.method.params)}, l2 {found.chosen.l2:.3g}, {len(found.candidates)} tried"


if __name__ == "__main__":
    main()
