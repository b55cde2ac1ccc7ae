"""Terms on the distribution of the model's outputs, next to cross-entropy: CMIC and CSR.

Both need the joined batch: on several processes the logits are gathered, with gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.core.class_stats import Groups
from probe.core.ema import blend
from probe.losses.base import ClassInfo, Loss


class CMIC(Loss):
    """CE + lam * mean KL(p || Q_y) - beta * Gamma (Yang et al. 2025)

    Q_k is the mean output of class k, constant within a step: an average over batches with memory `ema`,
    moved before it is used, in training mode. Gamma is the mean cross-entropy between outputs of samples with
    different labels. Class sums give it in O(N K): the sum over all pairs minus that over same-class pairs.
    Gamma has no upper bound; it counts up to `cap`, where one is given. With `ramp` both terms grow over that
    part of a training.
    """

    centroids: Tensor
    known: Tensor

    def __init__(
        self,
        classes: ClassInfo,
        *,
        lam: float = 0.5,
        beta: float = 0.1,
        ema: float = 0.9,
        cap: float | None = None,
        ramp: float = 0.0,
    ) -> None:
        super().__init__(classes)
        self.lam, self.beta, self.ema, self.cap = lam, beta, ema, cap
        self.ramp, self.ramps = ramp, ramp > 0
        k = classes.num_classes
        self.register_buffer("centroids", torch.zeros(k, k))
        self.register_buffer("known", torch.zeros(k, dtype=torch.bool))

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        logits, targets = collectives.gather(logits, targets)
        log_p = F.log_softmax(logits, dim=1)
        groups = Groups.of(targets)
        if self.training:
            self._move(groups, log_p.detach().exp())
        apart = separation(log_p, groups)
        apart = apart if self.cap is None else apart.clamp(max=self.cap)
        terms = self.lam * self.concentration(log_p, targets) - self.beta * apart
        return F.nll_loss(log_p, targets) + self.strength * terms

    @torch.no_grad()
    def _move(self, groups: Groups, p: Tensor) -> None:
        self.follow(p.dtype)
        blend(self.centroids, self.known, groups.classes, groups.means(p), self.ema)
        self.known[groups.classes] = True

    def concentration(self, log_p: Tensor, targets: Tensor) -> Tensor:
        """mean KL(p || Q_y); a class without a centroid contributes 0."""
        q = self.centroids.to(log_p)[targets].clamp(min=torch.finfo(log_p.dtype).tiny)
        divergence = (log_p.exp() * (log_p - q.log())).sum(1)
        return torch.where(self.known[targets], divergence, 0).mean()


def separation(log_p: Tensor, groups: Groups) -> Tensor:
    """Mean of -sum_c p_i(c) log p_j(c) over ordered pairs i, j of different classes; 0 if there is none."""
    p_sums, log_sums = groups.sums(log_p.exp()), groups.sums(log_p)
    everyone = -(p_sums.sum(0) * log_sums.sum(0)).sum()
    same = -(p_sums * log_sums).sum()
    pairs = len(log_p) ** 2 - groups.sizes.square().sum()
    return (everyone - same) / pairs.clamp(min=1)


class CSR(Loss):
    """CE + weight * the largest singular value of the batch's soft confusion matrix (after Jin et al. 2025).

    C_ij = mean over samples of class j of p_i, 0 on the diagonal; classes the batch lacks are zero columns.
    With `ramp` the weight grows over that part of a training: the matrix of a model that knows nothing yet
    says nothing about which classes it confuses.
    """

    def __init__(self, classes: ClassInfo, *, weight: float = 1.0, ramp: float = 0.0) -> None:
        super().__init__(classes)
        self.weight, self.ramp, self.ramps = weight, ramp, ramp > 0

    def compute(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        logits, targets = collectives.gather(logits, targets)
        loss = F.cross_entropy(logits, targets)
        norm = spectral_norm(confusion(logits.softmax(1), Groups.of(targets)))
        return loss + self.weight * self.strength * norm


def confusion(p: Tensor, groups: Groups) -> Tensor:
    """The soft confusion matrix's columns of the C classes present: K x C, zero where i is the class."""
    columns = groups.means(p).T
    rows = torch.arange(len(columns), device=p.device).unsqueeze(1)
    return columns.masked_fill(rows == groups.classes, 0)


def spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value, by the top eigenvector v of the small Gram matrix (C x C).

    sigma = u^T M v with u, v held constant has the right gradient, u v^T, also where sigma is repeated
    (one subgradient) or 0 (zero); no full decomposition is differentiated.
    """
    with torch.no_grad():
        v: Tensor = torch.linalg.eigh(matrix.T @ matrix).eigenvectors[:, -1]
        image = matrix @ v
        u: Tensor = image / image.norm().clamp(min=torch.finfo(image.dtype).tiny)
    return u @ matrix @ v
