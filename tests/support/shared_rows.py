"""Run on every process of a small world: solves problems with shared rows, and saves what it found."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from probe.cli.errors import plain_errors
from probe.core import bfloat16, collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.scaling import standard
from probe.evaluation.groups import folds
from probe.evaluation.judging import Objective
from probe.features.matrix import Matrix
from probe.probing import exact, robust, second_stage
from probe.probing.candidates import CrossFit
from probe.probing.problem import ProbeProblem
from probe.probing.selection import Selector
from probe.probing.settings import ExactSolver, LossChoice
from probe.probing.sharing import rows_shared
from probe.probing.stage import StageSettings
from probe.solve import basis, knn, logistic
from probe.solve.class_blocks import ClassBlocks
from probe.solve.inputs import FeatureRows
from probe.solve.ridge import Ridge
from probe.system.world import rank
from tests.support.solver_problems import blobs

EXACT = 1e-24  # as far as float64 goes
MARGINS = ClassAdjustment(scale=torch.tensor([0.6, 1.3, 0.9, 1.2]), weight=torch.tensor([1.0, 2.0, 0.5, 1.0]))


class Doubles(Matrix):
    """A matrix of float64, so that results can be compared to the last digits."""

    dtype = torch.float64


# of second stages, as their rows have them by default
PARAMS = {
    "lws": {"pull": 0.1},
    "tau-norm": {"tau": None, "centre": True},
    "temperature": {"classes": "equal"},
}


def stored(X: Tensor) -> Matrix:
    """The features as a cache has them, in shards of unequal length."""
    return Doubles(X.split([50, 30, len(X) - 80]), X.shape[1])


def heads(name: str, *solutions: object) -> dict[str, Tensor]:
    return {
        f"{name} {i} {part}": getattr(s, part).double()
        for i, s in enumerate(solutions)
        for part in ("weight", "bias")
    }


def solver() -> dict[str, Tensor]:
    X, y = blobs(counts=[60, 30, 20, 10], dim=6)
    wide, labels = blobs(n=24, dim=60)
    weight = torch.linspace(0.5, 2, len(y))
    l2s = [30.0, 3.0, 0.3]
    small = basis.Basis(stored(X), budget=0)  # streamed
    found = heads("resident", logistic.fit(X, y, 4, l2=1.0, sample_weight=weight, tol=EXACT))
    found |= heads("streamed", logistic.fit(stored(X), y, 4, l2=1.0, basis=small, tol=EXACT))
    found |= heads("adjusted", logistic.fit(stored(X), y, 4, l2=1.0, adjustment=MARGINS, tol=EXACT))
    found |= heads("few rows", logistic.fit(wide, labels, 4, l2=1.0, tol=EXACT))
    found |= heads("fewer than processes", logistic.fit(X[58:61], y[58:61], 4, l2=1.0, tol=EXACT))
    found |= heads("path", *logistic.path(stored(X), y, 4, l2s, tol=EXACT))
    found |= heads("shared path", *logistic.path(stored(X), y, 4, l2s, basis=small, block=3, tol=EXACT))
    found["blocks"] = blocks(X, y)
    found |= heads("ridge", *Ridge(stored(X), y, 4, sample_weight=weight).path(l2s))
    found["scores"] = logistic.fit(X, y, 4, l2=1.0, tol=EXACT).logits(stored(X)).double()
    twice = torch.cat([X, X[:40]])
    for weighted in (True, False):
        votes = knn.votes(twice, torch.cat([y, y[:40]]), X[::3], num_classes=4, k=7, weighted=weighted)
        found[f"knn {weighted}"] = votes
    return found


def blocks(X: Tensor, y: Tensor) -> Tensor:
    """A preconditioned direction; rows of every process are among the heaviest."""
    made = logistic.LogisticSolver(stored(X), y, 4, adjustment=MARGINS)
    g = torch.Generator().manual_seed(0)
    head, direction = (
        made.basis.to_rotated(torch.randn(4, 6, generator=g), torch.randn(4, generator=g)) for _ in range(2)
    )
    fast = made._evaluator(1)
    variances = torch.cat([made.basis.spectrum, made.basis.spectrum.new_ones(1)])
    found = ClassBlocks.of(fast.hessian(fast.logits(head[None])[0], 0.5), variances, 40)
    return made.basis.from_rotated(found.solve(direction))[0]


def large_and_sampled() -> dict[str, Tensor]:
    """Streamed in float32 after a tenth of the rows: as good as alone, by the certificate."""
    X, y = blobs(n=12_000, dim=96, classes=5)
    matrix = Matrix([part.half() for part in X.float().split(5_000)], 96)
    few = basis.Basis(matrix, budget=2 << 20)
    solution = logistic.fit(matrix, y, 5, l2=1.0, basis=few, tol=1e-9)
    return {
        "large objective": torch.tensor([solution.objective]).double(),
        "large gap": torch.tensor([solution.gap / solution.objective]).double(),
    }


def large_and_rounded() -> dict[str, Tensor]:
    """Held in float32, with Hessians in bfloat16; and where only the first process is said to be fast at it:
    all do the same, or they would wait for each other for ever."""
    X, y = blobs(n=6_000, dim=200, classes=40, spread=4.0)
    found = {}
    for name, native in (("rounded", lambda device: True), ("mixed", lambda device: rank() == 0)):
        with patch.object(bfloat16, "is_native", native):
            solution = logistic.fit(X.float(), y, 40, l2=0.1, tol=1e-9)
        found[f"{name} objective"] = torch.tensor([solution.objective]).double()
        found[f"{name} gap"] = torch.tensor([solution.gap / solution.objective]).double()
    return found


def problem() -> ProbeProblem:
    X, y = blobs(counts=[60, 30, 20, 10], dim=6)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    matrix = stored(X[order])
    return ProbeProblem(matrix, y[order].numpy(), ("a", "b", "c", "d"), scaling=standard(matrix))


def probing() -> dict[str, Tensor]:
    p, found = problem(), {}
    holdout = np.arange(0, p.images, 5)
    for method in ("erm", "mr2", "la", "cb", "ef", "dro"):
        made = exact.fit(p, LossChoice(method), ExactSolver(l2=1.0, tol=EXACT), holdout)
        found |= {f"{method} {k}": t.double() for k, t in made.head.tensors.items()}
    for stats in ({"robust": False}, {"robust": True}, {"p": 3.0}):
        made = p.class_stats(p.X, None, **stats)
        found |= {f"stats {stats} {k}": getattr(made, k) for k in ("count", "mean", "mean_norm2", "spread2")}
    crossfit = CrossFit(p, folds(p.labels, 5, seed=0))
    found["cross-fit"] = torch.from_numpy(crossfit.candidate(LossChoice("mr2"), 1.0, EXACT).confidence)
    choice = Selector(p, holdout, Objective("mean-per-class")).choose([LossChoice("erm")], ExactSolver())
    found["chosen l2"] = torch.tensor([choice.l2]).double()
    for stage in ("crt", *PARAMS):
        params = PARAMS.get(stage, {})
        made = second_stage.fit(p, StageSettings(stage, params), ExactSolver(l2=1.0, tol=EXACT), holdout)
        found |= {f"{stage} {k}": t.double() for k, t in made.head.tensors.items()}
    loss = p.loss(LossChoice("dro"))
    robust.settle(loss, p.X, p.y, l2=1.0, basis=p.basis)
    found["saddle"] = loss.adjustment().weight.double()
    return found


def everything() -> dict[str, Tensor]:
    with rows_shared():
        found = {**solver(), **large_and_sampled(), **large_and_rounded(), **probing()}
        found["rows read"] = torch.tensor([sum(len(b) for _, b in _blocks())])
        found["processes"] = torch.tensor([collectives.sharing()])
    return {name: t.contiguous() for name, t in found.items()}


def _blocks():
    X, _ = blobs()
    return FeatureRows(stored(X)).blocks(16, torch.float64, torch.device("cpu"))


def endless() -> None:
    """Solve until this process is killed, or another one is gone."""
    X, y = blobs()
    with plain_errors(), rows_shared():
        while True:
            logistic.fit(stored(X), y, 4, l2=1.0)
            print("solved", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "endless":
        endless()
    save_file(everything(), Path(sys.argv[1]) / f"{rank()}.safetensors")
