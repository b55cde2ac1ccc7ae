"""A recipe that has been fitted, with everything that evaluation, ranking and writing look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probe.data import Split
from probe.evaluation.predictions import Predictions
from probe.evaluation.summary import EvaluationSet, Groups
from probe.features import FeatureSet
from probe.probing.problem import ProbeProblem
from probe.recipe import Recipe
from probe.runs.common_ground import CommonGround
from probe.runs.inputs import RunInputs
from probe.runs.reference import ERM, PROBE, TrainedRun
from probe.runs.strategy import FittedMethod, Strategy


@dataclass(frozen=True)
class Experiment:
    """The recipe's method, fitted, and the erm that it is compared with: a probe, a training, or neither."""

    strategy: Strategy
    inputs: RunInputs
    ground: CommonGround
    fitted: FittedMethod  # the recipe's own method
    versus: str | None  # what kind of erm it is compared with: `probe.runs.reference.how`
    trained: TrainedRun | None = None  # erm, trained with the same settings
    further: Sequence[RunInputs] = ()  # what seeds 1, 2, ... learnt from, where each has its own draw

    @property
    def problem(self) -> ProbeProblem:
        """What the first seed's features and labels pose to a method."""
        return self.ground.problem

    @property
    def holdouts(self) -> list[NDArray[np.int64]]:
        """The rows that validate, one array per seed."""
        return self.ground.holdouts

    @property
    def probe(self) -> FittedMethod | None:
        """Erm, solved exactly on the frozen features, if that is what the method is compared with."""
        return self.ground.plain if self.versus == PROBE else None

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""
        return self.strategy.recipe

    def inputs_of(self, seed: int) -> RunInputs:
        """What a seed learnt from."""
        return self.further[seed - 1] if seed and self.further else self.inputs

    @property
    def learnt_from(self) -> list[Split]:
        """The splits that some seed has learnt from; zero-shot has learnt from none."""
        if self.recipe.solver.name == "zeroshot":
            return []
        each = [self.inputs, *self.further]
        return [inputs.data[split] for inputs in each for split in inputs.features if split != "test"]

    @property
    def test(self) -> FeatureSet:
        """The test split."""
        return self.inputs.features["test"]

    @property
    def methods(self) -> list[FittedMethod]:
        """What was fitted here, the recipe's own method first."""
        return [self.fitted] if self.probe is None else [self.fitted, self.probe]

    @cached_property
    def own_predictions(self) -> list[Predictions]:
        """Of the recipe's own method on the test split, one per seed."""
        return self.fitted.predictions(self.test.y)

    @cached_property
    def predictions(self) -> list[Predictions]:
        """Of the recipe's own method, then of the erm that it is compared with."""
        erm: list[Predictions] = []
        if self.probe is not None:
            erm = self.probe.predictions(self.test.y)
        elif self.trained is not None:
            erm = self.trained.predictions_as(ERM)
        return [*self.own_predictions, *erm]

    def eval_set(self, groups: Groups) -> EvaluationSet:
        """What every method is evaluated on: test images, classes, these groups, and training counts."""
        counts = np.bincount(self.inputs.y, minlength=len(self.test.class_names))
        return EvaluationSet(self.test.y, tuple(self.test.class_names), groups, counts)
