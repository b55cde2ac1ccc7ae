"""MR²'s bound (Theorem 1) and the margins that minimise it (Corollary 1), for any class statistics.

With second moments m_k = |mu_k|^2 + |s_k|^2, margins gamma_k, N samples, K classes and classifier rows of
norm at most Lambda, the class-sensitive term of the bound is

    4 sqrt(2) Lambda K / sqrt(N) * sqrt( sum_k m_k / gamma_k^2 ).

At a fixed mean margin it is smallest where gamma_k is proportional to m_k^(1/3). Other statistics and powers
make other margins of the same mean: `margins`.
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
    return margins(moments, mean_margin=mean_margin)


def margins(
    statistic: Tensor,
    *,
    power: float = 1 / 3,
    mean_margin: float = 1.0,
    cap: float | None = None,
    among: Tensor | None = None,
) -> Tensor:
    """K margins of the given mean, proportional to a power of K numbers.

    `cap` is the largest allowed margin over the mean: what exceeds it goes to the others in proportion.
    `among` are K booleans, the classes that count (None: all); the margins of the others mean nothing.

    >>> margins(torch.tensor([1.0, 1.0, 6.0]), power=1.0, cap=1.5)
    tensor([0.7500, 0.7500, 1.5000])
    """
    roots = statistic.clamp(min=0).pow(power)
    count = torch.tensor(float(len(roots)), dtype=roots.dtype, device=roots.device)
    if among is not None:
        roots, count = torch.where(among, roots, 0), among.to(roots).sum().clamp(min=1)
    level = roots.sum() / count
    # All features zero: no class differs from another, so no margin may either.
    shares = torch.where(level > 0, roots / level, 1)
    return mean_margin * (shares if cap is None else _capped(shares, count, cap))


def _capped(shares: Tensor, count: Tensor, cap: float) -> Tensor:
    """min(a * share, cap), with the factor a that makes their sum `count` again.

    With the j largest at the cap, a_j = (count - j cap) / sum of the others; the right j is the smallest one
    that leaves none of the others above it.
    """
    falling = shares.sort(descending=True).values
    others = falling.flip(0).cumsum(0).flip(0)
    j = torch.arange(len(falling), device=falling.device)
    factor = (count - j * cap) / others.clamp(min=torch.finfo(falling.dtype).tiny)
    fits = factor * falling <= cap * (1 + 1e-6)
    return (factor[fits.int().argmax()] * shares).clamp(max=cap)


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
