"""Methods that act on groups of training images that are not the classes, solved exactly.

A class is what the head tells apart, and the solver adjusts by it. Any other group can only weight images:

    cb    v_i = w_g, the effective-number weights of the groups' sizes
    dro   v_i = q_g N / n_g at the saddle point of  N/t log( 1/G sum_g exp(t L_g) ) + l2/2 |W|²,

which `probe.probing.robust` explains, with groups g in the place of classes. l2 is chosen with the weights
that a method starts from.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from probe.losses.base import Loss, WorstClass
from probe.probing.crossfit import PLAIN
from probe.probing.problem import ProbeProblem
from probe.probing.robust import INNER, TOL, Round, saddle
from probe.probing.select_l2 import LogisticPath, select_l2
from probe.probing.settings import LossSettings, SolverSettings
from probe.solve import logistic
from probe.solve.solution import LinearSolution


def fit(
    problem: ProbeProblem, method: LossSettings, solver: SolverSettings, holdout: NDArray[np.int64]
) -> tuple[LinearSolution, dict[str, Any], Loss]:
    """Choose l2 on the `holdout` images where none is given, then fit all: solution, record and loss."""
    loss = problem.loss(method)
    worst = loss.worst_class()
    weighted = problem.weighted(_balanced(problem) if worst is not None else _by_group(problem, loss))
    path = LogisticPath(weighted, lambda rows: weighted.loss(PLAIN, rows))
    record = select_l2(weighted, solver, holdout, path)
    if worst is None:
        solution = _solve(weighted, record["l2"], solver.tol, path.solved.get(record["l2"]))
    else:
        settled = _settled(problem, loss, worst, record["l2"])
        solution = _solve(
            problem.weighted(_weights(problem, settled.log_q)), record["l2"], solver.tol, settled.solution
        )
        q = settled.log_q.exp()
        worst.set_weights(q, _sizes(problem))
        assert problem.groups is not None
        record["groups"] = dict(zip(problem.groups.names, q.tolist(), strict=True))
    record |= {"objective": solution.objective, "iterations": solution.iterations, "status": solution.status}
    return solution, record, loss


def _sizes(problem: ProbeProblem) -> Tensor:
    assert problem.groups is not None
    return torch.bincount(torch.from_numpy(problem.groups.of), minlength=len(problem.groups.names)).double()


def _balanced(problem: ProbeProblem) -> NDArray[np.float64]:
    """n weights under which all groups weigh the same, and all images together n."""
    sizes = _sizes(problem).numpy()
    assert problem.groups is not None
    return np.asarray((len(problem.groups.of) / len(sizes) / sizes)[problem.groups.of])


def _by_group(problem: ProbeProblem, loss: Loss) -> NDArray[np.float64]:
    assert problem.groups is not None
    assert isinstance(loss.weight, Tensor)
    return np.asarray(loss.weight.double().numpy()[problem.groups.of])


def _solve(problem: ProbeProblem, l2: float, tol: float, init: LinearSolution | None) -> LinearSolution:
    return logistic.fit(
        problem.X,
        problem.y,
        problem.num_classes,
        l2=l2,
        tol=tol,
        sample_weight=problem.weights(),
        basis=problem.basis,
        init=init,
    )


def _settled(problem: ProbeProblem, loss: Loss, worst: WorstClass, l2: float) -> Round:
    """The saddle point, certified as that of the classes is."""
    assert problem.groups is not None
    of, sizes = torch.from_numpy(problem.groups.of), _sizes(problem)
    rows = of.repeat(problem.views)  # an image's views share its loss
    y = torch.from_numpy(problem.y)

    def at(log_q: Tensor, init: LinearSolution | None) -> Round:
        solution = _solve(problem.weighted(_weights(problem, log_q)), l2, TOL * INNER, init)
        own = F.cross_entropy(solution.logits(problem.X).double(), y, reduction="none")
        plain = torch.bincount(rows, weights=own, minlength=len(sizes)) / (sizes * problem.views)
        return Round.of(log_q, plain, float(sizes.sum()), worst, solution)

    return saddle(at, torch.full_like(sizes, -math.log(len(sizes))), loss, worst)


def _weights(problem: ProbeProblem, log_q: Tensor) -> NDArray[np.float64]:
    """n weights under which group g weighs q_g of all, and all images together n."""
    assert problem.groups is not None
    sizes = _sizes(problem)
    return np.asarray((log_q.exp() * sizes.sum() / sizes).numpy()[problem.groups.of])
