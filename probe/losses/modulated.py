"""Cross-entropy re-shaped by the probabilities themselves: focal and its kin, GCE, EQL, smoothed labels.

All work on log-probabilities. Where a loss is a function of the true class's log-probability alone,
probability targets mean the expected loss over the label: sum_k t_k f(log p_k).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.losses.base import ClassInfo, MeanLoss, effective_weights


class Modulated(MeanLoss, ABC):
    """The mean of f(log p_y)."""

    @abstractmethod
    def shape(self, log_p: Tensor) -> Tensor:
        """f, elementwise."""

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        log_p = F.log_softmax(logits, dim=1)
        if targets.is_floating_point():
            return (targets.to(log_p) * self.by_class(self.shape(log_p))).sum(1), None
        true = self.shape(log_p.gather(1, targets.unsqueeze(1)).squeeze(1))
        return self.by_class(true, targets), None

    def by_class(self, values: Tensor, targets: Tensor | None = None) -> Tensor:
        """Values (N of the given classes, or N x K of all) times a factor of the class; 1 here."""
        return values


class Focal(Modulated):
    """-(1 - p)^gamma log p"""

    def __init__(self, classes: ClassInfo, *, gamma: float = 2.0) -> None:
        super().__init__(classes)
        self.gamma = gamma

    def shape(self, log_p: Tensor) -> Tensor:
        # 1 - p from log p keeps its digits near p = 1; the floor keeps 0^(gamma - 1) out of the gradient.
        rest = (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).tiny)
        return -rest.pow(self.gamma) * log_p


class ClassBalancedFocal(Focal):
    """Focal loss times the class's effective-number weight, divided by N (not by the sum of weights)."""

    weights: Tensor

    def __init__(self, classes: ClassInfo, *, beta: float = 0.9999, gamma: float = 1.0) -> None:
        super().__init__(classes, gamma=gamma)
        weights = effective_weights(classes.required_counts, beta)
        self.register_buffer("weights", weights, persistent=False)

    def by_class(self, values: Tensor, targets: Tensor | None = None) -> Tensor:
        weights = self.weights.to(values)
        return values * (weights if targets is None else weights[targets])


class ClassBalancedFocalSigmoid(ClassBalancedFocal):
    """w_y sum_k -(1 - q_k)^gamma log q_k, divided by N; q_y = sigmoid(z_y), q_k = 1 - sigmoid(z_k) else.

    The original of Cui et al.: K binary problems, all weighted by the true class. It starts the last layer's
    bias at a small probability of every class; `prior` does that by a constant added to all logits.
    """

    def __init__(
        self, classes: ClassInfo, *, beta: float = 0.9999, gamma: float = 1.0, prior: float = 0.5
    ) -> None:
        super().__init__(classes, beta=beta, gamma=gamma)
        self.start = math.log(prior / (1 - prior))

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = logits + self.start
        if not targets.is_floating_point():
            targets = F.one_hot(targets, self.num_classes)
        share = self.by_class(targets.to(logits))  # of the loss with each class as the true one
        true, false = self.shape(F.logsigmoid(logits)), self.shape(F.logsigmoid(-logits))
        return (share * true + (share.sum(1, keepdim=True) - share) * false).sum(1), None


class GCE(Modulated):
    """(1 - p^q) / q

    Its gradient is p^q times that of cross-entropy: a sample that the model does not know yet hardly counts,
    so from scratch it learns late. With `ramp` a training raises q from 0, which is cross-entropy.
    """

    def __init__(self, classes: ClassInfo, *, q: float = 0.7, ramp: float = 0.0) -> None:
        super().__init__(classes)
        self.q, self.ramp, self.ramps = q, ramp, ramp > 0

    def shape(self, log_p: Tensor) -> Tensor:
        q = max(1e-6, self.q * self.strength)
        return -torch.expm1(q * log_p) / q


class LabelSmoothing(MeanLoss):
    """(1 - smoothing) CE(z, y) + smoothing mean_k CE(z, k): the label shares its mass with every class."""

    def __init__(self, classes: ClassInfo, *, smoothing: float = 0.1) -> None:
        super().__init__(classes)
        self.smoothing = smoothing

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing), None


class DualFocal(MeanLoss):
    """-(1 - p_y + p_j)^gamma log p_y, p_j the largest probability below p_y (0 if there is none).

    With `ramp` a training raises gamma from 0, which is cross-entropy.
    """

    def __init__(self, classes: ClassInfo, *, gamma: float = 5.0, ramp: float = 0.0) -> None:
        super().__init__(classes)
        self.gamma, self.ramp, self.ramps = gamma, ramp, ramp > 0

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        log_p = F.log_softmax(logits, dim=1)
        true = log_p.gather(1, targets.unsqueeze(1))
        below = log_p.masked_fill(log_p >= true, -torch.inf).amax(1).exp()
        true = true.squeeze(1)
        rest = (below - torch.expm1(true)).clamp(min=torch.finfo(log_p.dtype).tiny)
        return -rest.pow(self.gamma * self.strength) * true, None


class EQL(MeanLoss):
    """-log( e^{z_y} / sum_k w_k e^{z_k} ), w_k = 0 for a rare negative class with chance gamma, else 1.

    The mask is redrawn for every entry of the joined batch and every step, from `generator` where one is
    given.
    """

    rare: Tensor

    def __init__(
        self,
        classes: ClassInfo,
        *,
        gamma: float = 0.9,
        threshold: float = 0.005,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(classes)
        self.gamma, self.generator = gamma, generator
        self.register_buffer("rare", classes.prior < threshold, persistent=False)

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        chance = collectives.drawn(len(logits), logits.shape[1], logits.device, self.generator)
        dropped = (chance < self.gamma) & self.rare
        dropped = dropped.scatter(1, targets.unsqueeze(1), False)
        return F.cross_entropy(logits.masked_fill(dropped, -torch.inf), targets, reduction="none"), None
