"""Second stages that solve for a new head, in which some images count more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from probe.evaluation.groups import folds
from probe.heads.fitted import FittedHead
from probe.probing import exact
from probe.probing.problem import Fit
from probe.probing.select_l2 import ROUGH
from probe.probing.stage import Images, SecondStage

FOLDS = 5  # of cross-fitted errors


class Refit(SecondStage, ABC):
    """A new head of the same loss, where some images count more."""

    @abstractmethod
    def weights(self, images: Images) -> NDArray[np.float64]:
        """n numbers, of which those of `images` are used and come from these images alone."""

    def choose(self) -> None:
        given = self.solver.l2 is not None
        problem = self.problem if given else self.problem.weighted(self.weights(self.kept))
        self.record = self.l2_of(problem)

    def head(self, images: Images) -> FittedHead:
        weighted = self.problem.weighted(self.weights(images))
        return exact.linear_head(self.problem, self.solved(weighted, images, self.record["l2"]))


class CRT(Refit):
    """Classifier re-training (Kang et al. 2020): cross-entropy weighted by 1 / n_k, on the same features."""

    def weights(self, images: Images) -> NDArray[np.float64]:
        return self.balanced(images)

    def remarks(self) -> tuple[str, ...]:
        first = self.settings.first
        if first is None or not first.saw_holdout or self.solver.l2 is not None:
            return ()
        return (
            f"l2 was chosen by images that {first.run} had learnt from, so it may be too weak; give it with "
            "--l2, or train the first stage with train.keep=best",
        )


class JTT(Refit):
    """Just train twice (Liu et al. 2021): an error of the first head counts as `up` images."""

    def choose(self) -> None:
        self.first = self.l2_of(self.problem)["l2"]
        super().choose()
        self.record["first"] = {"l2": self.first}

    def weights(self, images: Images) -> NDArray[np.float64]:
        labels, parts = self.problem.labels, [(images, images)]
        if self.settings.params["errors"] == "crossfit":
            fold = folds(labels[images], FOLDS, 0)
            parts = [(images[fold != part], images[fold == part]) for part in range(FOLDS)]
        weight = np.ones(len(labels))
        for learnt, judged in parts:
            if len(judged):
                solution = self.solved(self.problem, learnt, self.first, max(self.solver.tol, ROUGH**2))
                wrong = self.problem.logits(solution, judged).argmax(dim=1).numpy() != labels[judged]
                weight[judged[wrong]] = self.settings.params["up"]
        self.errors = int((weight != 1).sum()) if self.settings.params["up"] != 1 else 0
        return weight

    def fit(self) -> Fit:
        made = super().fit()
        made.record["first"]["errors"] = self.errors
        return replace(made, remarks=self.remarks())

    def remarks(self) -> tuple[str, ...]:
        if self.errors or self.settings.params["up"] == 1:
            return ()
        return ("the first stage makes no error, so jtt is plain training; use errors=crossfit",)
