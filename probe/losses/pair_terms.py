"""Terms on similarities h.h' of pairs, next to cross-entropy: contrastive and triplet (ELM, section 3).

The papers take dot products of the features as they are; on unit vectors (`unit`), the default, neither
margin nor temperature depends on the backbone. A sample without a partner of its class, or without a sample
of another one, contributes 0 and still counts. Sums over the negatives of a pair need no third axis: a
contrastive pair sees them through one log-sum-exp, a triplet through a sorted row and its running sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.class_stats import Groups
from probe.losses.base import ClassInfo
from probe.losses.representation import WithTerm

TOGETHER = 4  # images of a class in a batch, so that there are positives where classes are many


class PairTerm(WithTerm, ABC):
    """CE + lam mean_i mean_{j in y_i, j != i} f(s_ij, {s_in: n of another class})."""

    uses_partners = True
    together = TOGETHER
    ramps = True

    def __init__(self, classes: ClassInfo, *, lam: float, unit: bool) -> None:
        super().__init__(classes, lam=lam)
        self.unit = unit

    @abstractmethod
    def pairs(self, similarity: Tensor, negative: Tensor) -> Tensor:
        """f for every pair, N x N, of similarities; `negative` says which are of different classes."""

    def term(self, features: Tensor, targets: Tensor, groups: Groups) -> Tensor:
        rows = F.normalize(features, dim=1) if self.unit else features
        same = targets.unsqueeze(0) == targets.unsqueeze(1)
        positive = same.logical_and(~torch.eye(len(same), dtype=torch.bool, device=same.device))
        if bool(same.all()):  # no class to tell apart
            return 0 * features.sum()
        values = torch.where(positive, self.pairs(rows @ rows.T, ~same), 0).sum(1)
        return (values / positive.sum(1).clamp(min=1)).mean()


class Contrastive(PairTerm):
    """log(1 + sum_n exp((s_in - s_ij) / T)): the true pair against all negatives of the batch."""

    def __init__(
        self, classes: ClassInfo, *, lam: float = 0.5, temperature: float = 0.1, unit: bool = True
    ) -> None:
        super().__init__(classes, lam=lam, unit=unit)
        self.temperature = temperature

    def pairs(self, similarity: Tensor, negative: Tensor) -> Tensor:
        scaled = similarity / self.temperature
        against = scaled.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
        return F.softplus(against - scaled, threshold=50)  # linear only where that is exact


class Triplet(PairTerm):
    """mean_n max(0, m + s_in - s_ij): every negative of the batch at least m less similar than a positive."""

    def __init__(
        self, classes: ClassInfo, *, lam: float = 1.0, margin: float = 0.2, unit: bool = True
    ) -> None:
        super().__init__(classes, lam=lam, unit=unit)
        self.margin = margin

    def pairs(self, similarity: Tensor, negative: Tensor) -> Tensor:
        # Negatives in falling order: those above s_ij - m are the first of a row, and their sum is known.
        falling = similarity.masked_fill(~negative, -torch.inf).sort(dim=1, descending=True).values
        needed = similarity - self.margin
        active = torch.searchsorted(-falling.detach(), -needed.detach())
        sums = F.pad(torch.where(falling > -torch.inf, falling, 0).cumsum(1), (1, 0)).gather(1, active)
        return (sums - active * needed) / negative.sum(1, keepdim=True).clamp(min=1)
