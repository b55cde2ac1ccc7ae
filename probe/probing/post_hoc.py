"""Second stages that change the scores of a finished head: a factor and a shift for each class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.row_share import RowShare
from probe.core.scaling import BLOCK
from probe.errors import UserError
from probe.evaluation import metrics
from probe.heads.fitted import FittedHead, OnScaled
from probe.probing import exact
from probe.probing.problem import Fit, take_rows
from probe.probing.stage import Images, SecondStage
from probe.solve import post_hoc as solve

TAUS = tuple(round(0.1 * i, 1) for i in range(21))  # as the authors' release scans them


class OnHead(SecondStage, ABC):
    """The first head's scores, times a factor for each class and shifted."""

    def choose(self) -> None:
        self._solved: dict[int, FittedHead] = {}  # by the number of images: all, or all but the holdout
        if self.settings.first is None:
            self.record = self.l2_of(self.problem)

    def first(self, images: Images) -> FittedHead:
        """The stored first head, or the solution of these images."""
        if self.settings.first is not None:
            return self.settings.first.head
        if len(images) not in self._solved:
            solution = self.solved(self.problem, images, self.record["l2"])
            self._solved[len(images)] = exact.linear_head(self.problem, solution)
        return self._solved[len(images)]

    def base(self, images: Images) -> FittedHead:
        """The head whose scores are changed."""
        return self.first(images)

    @abstractmethod
    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        """Factor and shift, for the head of these images."""

    def head(self, images: Images) -> FittedHead:
        return self.base(images).adjusted(*self.change(images))

    def fit(self) -> Fit:
        return replace(super().fit(), first=self.first(self.everything))

    def held_out(self, head: FittedHead) -> tuple[Tensor, Tensor]:
        """m x K scores of the holdout, and its m labels."""
        if len(self.holdout) == 0:
            raise UserError(f"no image is left to choose {self.choice} by: add training images")
        scores = self.problem.logits(OnScaled(head), self.holdout)
        return scores, torch.from_numpy(self.problem.labels[self.holdout])


class TauNorm(OnHead):
    """w_k / |w_k|^tau without a bias (Kang et al. 2020): tau 0 keeps the weights, 1 gives them unit length.

    With `centre` the features are taken from the mean of the class means: pooled features of a network share
    a large direction, and a free bias balances it. As published (centre false), a probe without its bias is
    near chance. A class without training images has no weights; it keeps the bias that never predicts it.
    """

    choice, way_out = "tau", "give method.tau, or "

    @classmethod
    def chooses(cls, params: Mapping[str, Any]) -> bool:
        return params["tau"] is None

    def choose(self) -> None:
        super().choose()
        self.tau = self.settings.params["tau"]
        if self.tau is None:
            scores, labels = self.held_out(self.base(self.kept))
            norm, problem = self._norm(self.kept).to(scores), self.problem
            tried = [
                metrics.score(
                    (scores / norm**tau).argmax(dim=1).numpy(),
                    labels.numpy(),
                    problem.num_classes,
                    problem.metric,
                )
                for tau in TAUS
            ]
            self.tau = TAUS[int(np.argmax(tried))]  # of equal ones the first, which changes least
            self.record["tau_validation"] = [list(row) for row in zip(TAUS, tried, strict=True)]
        self.record["tau"] = self.tau

    def remarks(self) -> tuple[str, ...]:
        given = self.settings.params["tau"] is not None
        return () if given else (f"tau {self.tau:g} was chosen by held-out images",)

    def _norm(self, images: Images) -> Tensor:
        norm = self.first(images).tensors["weight"].double().norm(dim=1)
        return torch.where(norm > 0, norm, 1.0)

    def base(self, images: Images) -> FittedHead:
        head = self.first(images)
        if head.kind != "linear":
            raise UserError(
                f"tau-norm changes the lengths of a linear head's weights; this head is {head.kind}"
            )
        weight, bias = head.tensors["weight"], head.tensors["bias"]
        none, new = (weight == 0).all(dim=1), torch.zeros_like(bias)
        if self.settings.params["centre"]:
            new = -(weight @ self._centre(images).to(weight))
        return replace(head, tensors={"weight": weight, "bias": torch.where(none, bias, new)})

    def _centre(self, images: Images) -> Tensor:
        """The mean of the means of these images' classes, as the head sees features."""
        rows = self.problem.rows(images)
        means = self.problem.class_stats(self.problem.X, rows).mean
        assert means is not None
        present = np.unique(self.problem.y[rows])
        return means[torch.from_numpy(present)].mean(dim=0)

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        return self._norm(images) ** -self.tau, 0.0


class LWS(OnHead):
    """Learnable weight scaling (Kang et al. 2020): one scale for each class's score, bias included."""

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        problem, rows = self.problem, self.problem.rows(images)
        share = RowShare.of(len(rows))
        rows = share.mine(rows)
        weight = self.balanced(images)[rows % problem.images] / problem.views
        scorer = OnScaled(self.first(images))

        def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for start in range(0, len(rows), BLOCK):
                part = rows[start : start + BLOCK]
                labels = torch.from_numpy(problem.y[part])
                scores = scorer.logits(take_rows(problem.X, part))
                yield scores, labels, torch.from_numpy(weight[start : start + BLOCK])

        pull = self.settings.params["pull"]
        scales = solve.class_scales(blocks, problem.num_classes, pull=pull, share=share)
        if len(images) == len(self.everything):
            self.record["scales"] = [float(f"{scale:.6g}") for scale in scales]
        return scales, 0.0


class PostHocLA(OnHead):
    """z - tau log pi (Menon et al. 2021): the prior is taken out of a trained head's scores."""

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        counts = np.bincount(self.problem.labels[images], minlength=self.problem.num_classes)
        prior = torch.from_numpy(np.maximum(counts, 1) / np.maximum(counts, 1).sum())
        return 1.0, -self.settings.params["tau"] * prior.log()


class Temperature(OnHead):
    """z / T, with the T of the smallest cross-entropy on the holdout (Guo et al. 2017).

    Its classes count the same unless they are to be `sized`: a head is less sure of rare classes, of which
    the holdout of a long tail shows less than balanced test images do.
    """

    choice = "the temperature"

    @classmethod
    def chooses(cls, params: Mapping[str, Any]) -> bool:
        return True

    def choose(self) -> None:
        super().choose()
        scores, labels = self.held_out(self.base(self.kept))
        sizes = torch.bincount(labels, minlength=self.problem.num_classes)
        equal = self.settings.params["classes"] == "equal"
        t = solve.temperature(scores, labels, 1 / sizes[labels].double() if equal else None)
        self.record["temperature"] = t
        before, after = calibration(scores, labels), calibration(scores / t, labels)
        self.record["held_out"] = {"before": before, "after": after}

    def remarks(self) -> tuple[str, ...]:
        before, after = (100 * self.record["held_out"][when]["ece"] for when in ("before", "after"))
        return (
            f"temperature {self.record['temperature']:.3g}: calibration error of held-out images "
            f"{before:.1f} % before, {after:.1f} % after",
        )

    def change(self, images: Images) -> tuple[Tensor | float, Tensor | float]:
        return 1 / self.record["temperature"], 0.0


def calibration(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Expected calibration error and mean cross-entropy of n x K scores."""
    log_p = F.log_softmax(scores.double(), dim=1)
    confidence, predicted = log_p.exp().max(dim=1)
    error = metrics.calibration_error(confidence.numpy(), (predicted == labels).numpy())
    return {"ece": error, "nll": float(F.nll_loss(log_p, labels))}
