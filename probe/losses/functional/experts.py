"""Nested collaborative learning: experts learn from labels, from their hard classes and from each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.losses.base import filled_counts

TINY = 1e-9  # inside the logarithm of the distribution that learns, as released


def ncl(
    expert_logits: Sequence[Tensor], targets: Tensor, class_counts: Any, *, hard: int, factor: float
) -> Tensor:
    """sum_m [ CE(z_m + log n) + CE(mask (z_m + log n)) ] + factor [ NBOD of both ]

    (Li et al., Nested Collaborative Learning, CVPR 2022, as released.) Each of the M experts has N x K logits
    z_m. The mask keeps the true class and the highest logits of expert 0, `hard` classes in all, and
    *multiplies*: a dropped class has logit 0, so that a constant added to the logits changes this part. NBOD
    is sum_{i != j} KL(p_j || p_i) / (M - 1); both sides receive the gradient.
    """
    counts = torch.as_tensor(class_counts, dtype=torch.float64, device="cpu")
    log_counts = filled_counts(counts).log().to(expert_logits[0])
    mask = hard_classes(expert_logits[0], targets, hard)
    return nested([logits + log_counts for logits in expert_logits], targets, mask, factor=factor)


def hard_classes(logits: Tensor, targets: Tensor, hard: int) -> Tensor:
    """N x K, 1 for the true class and those with the highest logits, `hard` in all, else 0."""
    forced = logits.detach().scatter(1, targets.unsqueeze(1), torch.inf)
    chosen = forced.topk(min(hard, logits.shape[1]), dim=1).indices
    return torch.zeros_like(forced).scatter(1, chosen, 1.0)


def nested(expert_logits: Sequence[Tensor], targets: Tensor, mask: Tensor, *, factor: float) -> Tensor:
    """`ncl` of logits that are balanced already (or carry a margin), for a given mask of hard classes."""
    labels, others = learned(expert_logits, targets)
    hard_labels, hard_others = learned([z * mask for z in expert_logits], targets)
    return labels + hard_labels + factor * (others + hard_others)


def learned(expert_logits: Sequence[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """What experts learn from labels, their summed cross-entropy, and from each other."""
    labels = torch.stack([F.cross_entropy(z, targets) for z in expert_logits]).sum()
    return labels, distillation(expert_logits)


def distillation(expert_logits: Sequence[Tensor]) -> Tensor:
    """sum over ordered pairs i != j of mean KL(p_j || p_i + 1e-9), over M - 1; 0 for one expert."""
    total = expert_logits[0].new_zeros(())
    logs = [F.log_softmax(z, dim=1) for z in expert_logits]
    floored = [(log_p.exp() + TINY).log() for log_p in logs]
    for i, j in permutations(range(len(logs)), 2):
        total = total + (logs[j].exp() * (logs[j] - floored[i])).sum(1).mean()
    return total / max(1, len(logs) - 1)
