"""Effective frequencies (`ef`) of a training: how sure a model is of each class's own held-out images.

On pretrained weights they come from plain probes, cross-fitted on the frozen features, before the first step.
Where images are held out from the training, they are measured on those once, by the network itself, when the
warm-up is over; a network from scratch starts with equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from probe import methods
from probe.errors import UserError
from probe.evaluation.groups import class_mean
from probe.losses.spec import HELD_OUT_FREQUENCY
from probe.recipe import MethodConfig, Recipe
from probe.recipe.grammar import INNER

if TYPE_CHECKING:
    from probe.probing.problem import ProbeProblem
    from probe.probing.settings import SolverSettings
    from probe.train.loop import Training
    from probe.train.stage import Stage


def is_open(method: MethodConfig) -> bool:
    """Has the loss inside effective frequencies that are not given?"""
    spec = methods.inner(method.name, method.params)
    return (
        spec.unfilled(HELD_OUT_FREQUENCY, methods.catalogue.resolve(method.name, method.params)[1][1])
        is not None
    )


def check(recipe: Recipe) -> None:
    """Refuse a training in which nothing could measure them."""
    if recipe.from_scratch and is_open(recipe.method) and not recipe.train.selects:
        raise UserError(
            f"{recipe.method.name} measures frequencies on held-out images, and this net from scratch learns "
            "from all: use train.keep=best, or give method.frequency"
        )


def equal(method: MethodConfig, num_classes: int) -> MethodConfig:
    """The method with one frequency for all classes: cross-entropy, until they are measured."""
    loss, params = methods.catalogue.given_to(method.name, method.params)[1]
    wanted = methods.inner(method.name, method.params).parameter_for(HELD_OUT_FREQUENCY)
    return _with_loss(method, loss, {**params, str(wanted): [1.0] * num_classes})


def crossfitted(
    problem: ProbeProblem,
    method: MethodConfig,
    solver: SolverSettings,
    held: NDArray[np.int64],
    trained: NDArray[np.int64] | None = None,
) -> MethodConfig:
    """The method with the frequencies of plain probes filled in, where its loss has such and they are open.

    `held` images choose the probes' l2; only the `trained` ones (None: all) say how sure they are.
    """
    from probe.probing.exact import with_frequency
    from probe.probing.select_l2 import LogisticPath, select_l2
    from probe.probing.settings import ExactSolver, LossChoice

    if not is_open(method):
        return method
    loss = LossChoice(*methods.catalogue.given_to(method.name, method.params)[1])
    if trained is not None and len(trained) < problem.images:
        path = LogisticPath(problem, lambda rows: problem.loss(LossChoice(), rows))
        solver = ExactSolver(l2=select_l2(problem, solver, held, path)["l2"])
        problem = problem.only(trained)
    return _with_loss(method, loss.name, with_frequency(problem, loss, solver, held).params)


def _with_loss(method: MethodConfig, name: str, params: object) -> MethodConfig:
    """The same method with these parameters of its loss."""
    assert isinstance(params, dict)
    if name == method.name:
        return MethodConfig(name=name, groups=method.groups, **params)
    return MethodConfig(
        name=method.name, groups=method.groups, **{**method.params, INNER: {"name": name, **params}}
    )


def measure(training: Training, stage: Stage, epoch: int) -> None:
    """After the epoch in which the warm-up ends: from the held-out images, where the loss wants it."""
    from probe.probing.crossfit import RAREST

    loss, held = training.method.loss, training.task.validation
    begins, ends = epoch * stage.steps, (epoch + 1) * stage.steps
    if not loss.measures_frequency or held is None or not begins < max(1, stage.schedule.warmup) <= ends:
        return
    with training.state.averaged():
        scores = training.evaluate(held)
    labels = np.asarray(held.labels)
    own = F.softmax(scores.double(), dim=1).numpy()[np.arange(len(labels)), labels]
    found = np.maximum(class_mean(own, labels, training.task.num_classes), RAREST)
    seen = np.bincount(labels, minlength=training.task.num_classes) > 0
    found[~seen] = found[seen].mean()  # nothing is known of a class without held-out images
    loss.take_frequency(torch.from_numpy(found))
    training.log.write({"step": training.state.position.steps, "frequency": found.round(6).tolist()})
