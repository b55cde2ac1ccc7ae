"""Margins on the angle to the true class, for cosine heads.

Each loss answers one question: how does the true class's cosine change? Everything else is shared:
CE of scale x (cosines with the true one replaced by psi). Nothing takes an arccosine of what it
differentiates, so values are exact and gradients finite at cosines of exactly -1 and 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.losses.adjusted import ldam_margins
from probe.losses.base import ClassInfo, MeanLoss, effective_weights


class Angular(MeanLoss, ABC):
    """CE of scale x (cosines, with the true one replaced by psi)."""

    gives_logits = True

    def __init__(self, classes: ClassInfo, *, scale: float) -> None:
        super().__init__(classes)
        self.scale = scale

    @abstractmethod
    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        """What the true class's cosine (N) becomes."""

    def margin_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """N x K logits of N x K cosines."""
        cosines = logits
        true = targets.unsqueeze(1)
        psi = self.psi(cosines.gather(1, true).squeeze(1), targets, cosines)
        return self.scale * cosines.scatter(1, true, psi.unsqueeze(1))

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.cross_entropy(self.margin_logits(logits, targets), targets, reduction="none"), None


class CosFace(Angular):
    """cos(theta) - m."""

    def __init__(self, classes: ClassInfo, *, margin: float = 0.35, scale: float = 30.0) -> None:
        super().__init__(classes, scale=scale)
        self.margin = margin

    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        return cosine - self.margin


class LDAM(Angular):
    """CosFace with margins n_k^(-1/4); the margin comes off the cosine before the scale (released form)."""

    class_margins: Tensor

    def __init__(self, classes: ClassInfo, *, max_margin: float = 0.5, scale: float = 30.0) -> None:
        super().__init__(classes, scale=scale)
        margins = ldam_margins(classes.required_counts, max_margin)
        self.register_buffer("class_margins", margins, persistent=False)

    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        return cosine - self.class_margins.to(cosine)[targets]


class ArcFace(Angular):
    """cos(theta + m). Past theta = pi - m it rises again; `guard` uses cos - m sin m there, as is usual."""

    def __init__(
        self, classes: ClassInfo, *, margin: float = 0.5, scale: float = 30.0, guard: bool = False
    ) -> None:
        super().__init__(classes, scale=scale)
        self.margin, self.guard = margin, guard

    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        psi = turned(cosine, torch.full_like(cosine, self.margin))
        if not self.guard:
            return psi
        return torch.where(cosine < -math.cos(self.margin), cosine - self.margin * math.sin(self.margin), psi)


class SphereFace(Angular):
    """(-1)^k cos(m theta) - 2k on theta in [k pi/m, (k+1) pi/m]: falls over the whole half circle.

    cos(m theta) is the Chebyshev polynomial T_m of the cosine, so its derivative is finite everywhere. With
    `blend` b it is mixed with the plain cosine, (psi + b cos) / (1 + b): the lambda that the paper's training
    lowers to 5, without which the term is too steep to follow. In a training b comes down over the warm-up.
    """

    ramps = True

    def __init__(
        self, classes: ClassInfo, *, margin: int = 4, scale: float = 30.0, blend: float = 0.0
    ) -> None:
        super().__init__(classes, scale=scale)
        self.margin, self.blend = int(margin), blend

    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        m = self.margin
        before, chebyshev = torch.ones_like(cosine), cosine
        for _ in range(m - 1):
            before, chebyshev = chebyshev, 2 * cosine * chebyshev - before
        angle = cosine.detach().clamp(-1, 1).acos()
        k = torch.floor(m * angle / math.pi).clamp(max=m - 1)
        psi = (1 - 2 * (k % 2)) * chebyshev - 2 * k
        return cosine + self.strength / (1 + self.blend) * (psi - cosine)


class DBM(Angular):
    """cos(theta + m_C + [misclassified] m_I), m_C = margin (n_y/n_min)^-tau, m_I = m_C (1 - cos)/2.

    (Son et al., eq. 6 to 9.) The reference is the smallest class, wherever it is in the order. Gradients flow
    through the difficulty (1 - cos)/2, not through the decision which samples are misclassified.
    """

    class_margins: Tensor
    weights: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        classes: ClassInfo,
        *,
        margin: float = 0.1,
        tau: float = 1.0,
        scale: float = 32.0,
        base: str = "ce",
        positives: str = "hard",
        beta: float = 0.9999,
    ) -> None:
        super().__init__(classes, scale=scale)
        counts = classes.required_counts
        self.positives = positives
        self.gives_logits = base == "ce"  # weights and priors are more than a margin
        self.register_buffer("class_margins", margin * (counts / counts.min()).pow(-tau), persistent=False)
        weights = effective_weights(counts, beta) if base == "cb" else None
        shift = classes.prior.log() if base == "bs" else None
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def psi(self, cosine: Tensor, targets: Tensor, cosines: Tensor) -> Tensor:
        class_margin = self.class_margins.to(cosine)[targets]
        if self.positives == "none":
            return turned(cosine, class_margin)
        instance_margin = class_margin * (1 - cosine) / 2
        if self.positives == "hard":
            hard = cosines.detach().amax(1) > cosine.detach()
            instance_margin = instance_margin * hard
        return turned(cosine, class_margin + instance_margin)

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.margin_logits(logits, targets)
        if self.shift is not None:
            logits = logits + self.shift.to(logits)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return losses, None if self.weights is None else self.weights.to(losses)[targets]


class DotRegression(MeanLoss):
    """weight (cos_y - 1)^2: features turn to their class's vector of a fixed simplex (Yang et al. 2022).

    It only attracts, so it is for class vectors that are not trained.
    """

    def __init__(self, classes: ClassInfo, *, weight: float = 0.5) -> None:
        super().__init__(classes)
        self.weight = weight

    def losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.weight * (logits.gather(1, targets.unsqueeze(1)).squeeze(1) - 1).square(), None


def turned(cosine: Tensor, margin: Tensor) -> Tensor:
    """cos(theta + margin) without theta: cos cos m - sin sin m."""
    return cosine * margin.cos() - sine(cosine) * margin.sin()


def sine(cosine: Tensor) -> Tensor:
    """sqrt(1 - c^2), with value 0 and slope 0 at |c| = 1, where the true slope is infinite."""
    square = (1 - cosine) * (1 + cosine)
    inside = square > 0
    return torch.where(inside, torch.where(inside, square, 1).sqrt(), 0)
