"""What runs that differ in their method alone have in common: features, holdouts, the plain probe.

It comes first, and nothing of a method reaches it: a method works on copies of all that remembers what was
solved. So a run has the same bits by itself and in a comparison, which keeps the ground of one run for the
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probe.evaluation import groups as ranked
from probe.evaluation.crossfitted import Crossfitted
from probe.probing import exact
from probe.probing.crossfit import PLAIN, held_out_probabilities
from probe.probing.problem import Fit, ProbeProblem
from probe.probing.selection import Selector
from probe.recipe import MethodConfig, Recipe
from probe.runs import draws, reference, selecting
from probe.runs.inputs import RunInputs
from probe.runs.posing import pose
from probe.runs.reference import ERM, PROBE
from probe.runs.strategy import FittedMethod, Strategy, scored, solve


@dataclass(frozen=True)
class Posed:
    """What seeds learn from: one for all of them or, where each has its own draw, one for each."""

    inputs: RunInputs
    problem: ProbeProblem
    first: int  # of the run's seeds
    holdouts: Sequence[NDArray[np.int64]]  # the rows that validate, one array per seed
    selectors: Sequence[Selector]  # one per seed; none where l2 is chosen on the holdout
    plain: list[Fit]  # erm, solved exactly, one per seed; none where nothing asks for it

    def for_method(self) -> Posed:
        """The same for a method to solve, which leaves no trace here."""
        selectors = [selector.copied() for selector in self.selectors]
        return replace(self, problem=self.problem.copied(), selectors=selectors)


@dataclass(frozen=True)
class CommonGround:
    """Everything of a run that is not its method's."""

    recipe: Recipe
    posed: tuple[Posed, ...]

    @cached_property
    def plain(self) -> FittedMethod | None:
        """Erm, solved exactly, with its scores on the test split; None where nothing asks for it."""
        parts = [scored(ERM, own.plain, own.inputs) for own in self.posed if own.plain]
        return draws.joined(parts) if parts else None

    @property
    def problem(self) -> ProbeProblem:
        """Of the first seed."""
        return self.posed[0].problem

    @property
    def holdouts(self) -> list[NDArray[np.int64]]:
        """The rows that validate, one array per seed."""
        return [holdout for posed in self.posed for holdout in posed.holdouts]

    @cached_property
    def crossfitted(self) -> tuple[dict[str, list[int]], Crossfitted]:
        """Classes ranked by what plain probes say of images that they have not seen, and what they said.

        They have the l2 of the plain probe, which a run that is compared with a training has for this alone.
        """
        problem = self.problem
        if plain := self.posed[0].plain:
            fit = plain[0]
        else:
            fit = exact.fit(problem, PLAIN, exact.exactly(self.recipe.solver), self.holdouts[0])
        held_out = held_out_probabilities(problem, fit.record["l2"], fit.solution)
        said = Crossfitted.empty(problem.labels, problem.num_classes)
        found = ranked.crossfit(problem.labels, problem.num_classes, held_out, keep=said.keep)
        return ranked.thirds(*found), said


def lay(strategy: Strategy, inputs: Sequence[RunInputs]) -> CommonGround:
    """The ground of a recipe, whose seeds learn from these inputs: all from one, or each from its own."""
    recipe = strategy.recipe
    seeds = strategy.seeds(inputs[0]) if len(inputs) == 1 else 1  # of each
    posed = []
    for first, own in enumerate(inputs):
        problem = pose(recipe, own)
        seed = recipe.first_seed + first
        holdouts = [own.holdout(s, recipe.data.val_fraction) for s in range(seed, seed + seeds)]
        selectors = selecting.selectors(recipe, problem, holdouts, seed)
        exactly = exact.exactly(recipe.solver)
        plain = solve(problem, holdouts, [PLAIN], exactly, selectors) if _has_plain(recipe) else []
        posed.append(Posed(own, problem, first, holdouts, selectors, plain))
    return CommonGround(recipe, tuple(posed))


def is_plain(recipe: Recipe) -> bool:
    """Is the recipe's own head the exact one that others are compared with?"""
    return not recipe.trains and reference.how(recipe) is None


def _has_plain(recipe: Recipe) -> bool:
    return is_plain(recipe) or reference.how(recipe) == PROBE


class LastGround:
    """The ground of the latest run, for the next one if only its method differs."""

    def __init__(self) -> None:
        self._about: object = None
        self._ground: CommonGround | None = None

    def of(self, strategy: Strategy, inputs: Sequence[RunInputs]) -> CommonGround:
        """That of the run before, or a new one."""
        about = _about(strategy, inputs)
        if self._ground is None or about is None or about != self._about:
            self._ground = None  # before another is laid: two sets of features may fill the memory
            self._ground, self._about = lay(strategy, inputs), about
        return self._ground


def _about(strategy: Strategy, inputs: Sequence[RunInputs]) -> object:
    """All that a ground depends on; None where a method has changed it, so that it serves no other."""
    recipe = strategy.recipe
    if recipe.method.groups != "class" or inputs[0].first is not None:
        return None
    plain = recipe.model_copy(update={"method": MethodConfig(name=ERM), "versus": "auto"})
    features = [f.key for own in inputs for view in own.by_view for f in own.training_of(view)]
    images = [own.data[split].fingerprint for own in inputs for split in own.features]
    settings = (plain.digest, recipe.device, recipe.solver.tf32, _has_plain(recipe))
    return *settings, selecting.acts(recipe), strategy.seeds(inputs[0]), *features, *images
