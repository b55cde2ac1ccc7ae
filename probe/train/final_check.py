"""Did SGD converge? Its end is compared with its start and, where the problem is convex, with the exact
optimum, which costs a small part of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core import collectives
from probe.core.adjustment import ClassAdjustment
from probe.core.scaling import FeatureMatrix
from probe.solve import logistic
from probe.solve.basis import Basis
from probe.solve.inputs import FeatureRows
from probe.solve.solution import LinearSolution
from probe.train.inputs.loaders import SampleLoader
from probe.train.seeding import derive_seed
from probe.train.step import Diverged, Objective

NOISE = 0.01  # of the start's objective: an end above it by more has diverged
BLOCK = 16_384  # rows scored at a time
CLOSE = 1e-4  # certified relative excess of the optimum that a gap is measured from
FAR = 0.01  # gaps above it are worth a remark


def check(
    objective: Objective,
    start: Mapping[str, Tensor],
    data: SampleLoader,
    *,
    size: int,
    seed: int,
    decay: float,
) -> None:
    """Raise where the trained `objective` is worse than with the weights it began with.

    Both are judged by the loss that was minimised, on the same batches of `size` samples, each as often as
    the last stage showed it. `decay`/2 |W|^2 counts too; leave it out where the start is not at zero, since a
    penalty that fell would hide a loss that rose.
    """
    end = objective.network.snapshot()
    repeats = objective.method.repeats()
    rows = np.repeat(np.arange(len(data.labels)), 1 if repeats is None else repeats)
    order = np.random.default_rng(derive_seed(seed, "outcome")).permutation(rows)
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    after = _mean_loss(objective, data, batches) + decay / 2 * _squares(objective)
    objective.network.take(dict(start))
    before = _mean_loss(objective, data, batches) + decay / 2 * _squares(objective)
    objective.network.take(end)
    if not after <= before + NOISE * abs(before):
        raise Diverged(
            f"training made the head worse: its objective is {after:.4g}, and {before:.4g} where it began, "
            "so nothing was saved. Try a smaller train.lr, a weaker penalty, train.clip=1 or more epochs"
        )


@torch.no_grad()
def _mean_loss(objective: Objective, data: SampleLoader, batches: list[NDArray[np.int64]]) -> float:
    objective.eval()
    with collectives.apart():  # every process has all weights and rows, and judges by itself
        total = sum(len(batch) * float(objective(batch)) for batch in data.eval_batches(batches))
    return total / sum(map(len, batches))


def _squares(objective: Objective) -> float:
    return float(sum(p.square().sum() for p in objective.network.head.parameters() if p.ndim > 1))


def remark(gaps: Sequence[float]) -> str | None:
    """One line for reports about the certified gaps of a run's seeds."""
    if max(gaps, default=0.0) <= FAR:
        return None
    worst = max(gaps)
    where = f"up to {100 * worst:.2g} % above" if worst < 1 else f"at up to {1 + worst:.3g} times"
    return (
        f"SGD ended {where} the optimum of its objective: more train.epochs come closer, "
        "--solver lbfgs is there"
    )


def gap(
    X: Tensor | FeatureMatrix,
    y: NDArray[np.int64],
    num_classes: int,
    adjustment: ClassAdjustment,
    head: tuple[Tensor, Tensor],
    *,
    l2: float,
    basis: Basis,
) -> float:
    """An upper bound, certified, of (objective / optimum - 1) of a linear head (K x D weight, K bias)."""
    weight, bias = (t.double() for t in head)
    here = LinearSolution(weight, bias, l2, 0.0, 0.0, 0, "trained")
    solver = logistic.LogisticSolver(X, y, num_classes, adjustment=adjustment, basis=basis)
    best = solver.solve([l2], init=here, tol=CLOSE, max_iter=logistic.MAX_ITER)[0]
    least = best.objective - best.gap
    total, targets = l2 / 2 * float(weight.square().sum()), torch.as_tensor(np.asarray(y))
    for first, block in FeatureRows(X).blocks(BLOCK, torch.float64, weight.device):
        logits, labels = torch.addmm(bias, block, weight.T), targets[first : first + len(block)]
        losses, weights = adjustment.losses(logits, labels)
        total += float((losses if weights is None else weights * losses).sum())
    return max(0.0, total / least - 1)
