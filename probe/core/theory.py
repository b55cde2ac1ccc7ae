"""MR²'s bound (Theorem 1) and the margins that minimise it (Corollary 1), for any class statistics.

With second moments m_k = |mu_k|^2 + |s_k|^2, margins gamma_k, N samples, K classes and classifier rows of
norm at most Lambda, the class-sensitive term of the bound is

    4 sqrt(2) Lambda K / sqrt(N) * sqrt( sum_k m_k / gamma_k^2 ).

At a fixed mean margin it is smallest where gamma_k is proportional to m_k^(1/3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probe.core.class_stats import ClassStats
from probe.errors import UserError


def optimal_margins(moments: Tensor, *, mean_margin: float = 1.0) -> Tensor:
    """Corollary 1: the K margins of the given mean that minimise the bound for K second moments.

    >>> optimal_margins(torch.tensor([1.0, 8.0]))
    tensor([0.6667, 1.3333])
    """
    roots = moments.clamp(min=0).pow(1 / 3)
    level = roots.mean()
    # All features zero: no class differs from another, so no margin may either.
    return mean_margin * torch.where(level > 0, roots / level, 1)


def class_terms(stats: ClassStats, margins: Tensor) -> Tensor:
    """m_k / gamma_k^2 for every class (K numbers): which classes the bound suffers from."""
    moments = stats.second_moment
    margins = torch.as_tensor(margins, dtype=moments.dtype, device=moments.device)
    if margins.shape != moments.shape:
        raise UserError(f"margins must be {len(moments)} numbers, one per class, not {tuple(margins.shape)}")
    if not bool((margins > 0).all()):
        raise UserError("margins must be positive: the bound divides by them")
    return moments / margins.square()


def complexity(stats: ClassStats, margins: Tensor, *, weight_norm: float = 1.0) -> float:
    """Theorem 1's class-sensitive complexity term for these margins.

    `weight_norm` is Lambda, the largest norm of a classifier row. Compare margins of equal mean: the bound
    can be made small by growing all of them, at the price of the training loss.

    >>> complexity(stats, optimal_margins(stats.second_moment)) <= complexity(stats, torch.ones(37))
    True
    """
    total = float(class_terms(stats, margins).sum())
    samples = float(stats.count.sum())
    return 4 * math.sqrt(2) * weight_norm * len(stats.count) / math.sqrt(samples) * math.sqrt(total)
