"""Where fine-tuning starts: the head at step 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from probe import losses
from probe.core.class_stats import ClassStats
from probe.core.scaling import NEUTRAL, Scaling
from probe.core.whitening import whitening
from probe.errors import UserError
from probe.heads import ETF, AngleHead, Cosine, Head, Linear
from probe.train.seeding import derive_seed

if TYPE_CHECKING:
    from backbones.backbone import Backbone
    from probe.probing.problem import ProbeProblem
    from probe.recipe import MethodConfig, SolverConfig

SPREAD = 0.01  # of a random head's weights: every class about equally likely at first


@dataclass(frozen=True)
class Start:
    """What a head may start from."""

    backbone: Backbone
    class_names: tuple[str, ...]  # as prompts call them
    templates: tuple[str, ...]
    method: MethodConfig
    solver: SolverConfig
    held: NDArray[np.int64]  # rows of the frozen problem that choose the probe's penalty
    trained: NDArray[np.int64]  # rows that may be trained on
    seed: int
    whiten: bool  # does a cosine head that starts from class means measure angles of whitened features?
    pose: Callable[[], ProbeProblem]  # the problem on the starting backbone's features; asked for when needed

    @cached_property
    def problem(self) -> ProbeProblem:
        return self.pose()


def automatic(head: Head, *, pretrained: bool) -> str:
    """What `start: auto` is. Without pretrained weights there are no features worth a probe, and a loss's own
    head starts as it is."""
    for kind, start in AUTOMATIC.items():
        if pretrained and isinstance(head.classifier, kind):
            return start
    return "random"


AUTOMATIC: dict[type[Head], str] = {Linear: "probe", Cosine: "means", ETF: "means"}


def _random(head: Head, start: Start) -> Scaling:
    inner = head.classifier
    if isinstance(inner, Linear):  # a cosine head is drawn when it is made
        generator = torch.Generator().manual_seed(derive_seed(start.seed, "head"))
        with torch.no_grad():
            inner.weight.copy_(SPREAD * torch.randn(inner.weight.shape, generator=generator))
    return NEUTRAL


def _means(head: Head, start: Start) -> Scaling:
    from probe.probing.problem import take_rows

    problem, classifier = start.problem, head.classifier
    features = take_rows(problem.raw, start.trained)
    stats = ClassStats.from_features(features, problem.y[start.trained], problem.num_classes)
    assert stats.mean is not None
    if start.whiten and isinstance(classifier, AngleHead):
        classifier.whiten(whitening(features))
    head.start_from_means(stats.mean.float())
    return NEUTRAL


def _zeroshot(head: Head, start: Start) -> Scaling:
    from probe.probing.zero_shot import text_classifier

    head.start_from_text(*text_classifier(start.backbone, start.class_names, start.templates))
    return NEUTRAL


def _probe(head: Head, start: Start) -> Scaling:
    """LP-FT (Kumar et al. 2022): the exact probe's solution, scaling included.

    Rows that will choose between start and end, or an epoch, also choose its penalty, and are not fitted.
    """
    from probe.probing import exact as probing
    from probe.recipe import MethodConfig

    inner = head.classifier
    if not isinstance(inner, Linear):
        raise UserError("start: probe is a linear solution, and this head is not linear; use start: means")
    exact = losses.is_known(start.method.name) and losses.info(start.method.name).frozen == "exact"
    method = start.method if exact else MethodConfig(name="erm")
    problem, solver = start.problem, start.solver
    fit = probing.fit(problem, method, solver, start.held)
    if len(start.trained) < len(problem.y):
        solver = solver.model_copy(update={"l2": fit.record.get("l2")})
        fit = probing.fit(problem.only(start.trained), method, solver, start.held)
    with torch.no_grad():
        inner.weight.copy_(fit.head.tensors["weight"])
        inner.bias.copy_(fit.head.tensors["bias"])  # type: ignore[union-attr]
    return fit.head.scaling


STARTS: dict[str, Callable[[Head, Start], Scaling]] = {
    "random": _random,
    "means": _means,
    "zeroshot": _zeroshot,
    "probe": _probe,
}


def set_head(kind: str, head: Head, start: Start) -> Scaling:
    """Give `head` its weights at step 0; returns the scaling of the features that they belong to."""
    return STARTS[kind](head, start)
