"""Contrast of samples with views, class centres, keys and prototypes: BCL, GML, PaCo and DRO-LT as released.

Everything is one product of rows and sums by class label: no loop runs over classes or keys. Exponentials are
taken below a row's maximum, so that no temperature overflows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.class_stats import Groups
from probe.losses.base import log_prior


def bcl_contrast(views: Tensor, targets: Tensor, centres: Tensor, *, temperature: float | Tensor) -> Tensor:
    """mean_a [ log sum_k mean_{c in k, c != a} exp(s_ac) - mean_{b in y_a, b != a} s_ab ],  s = u.u' / T

    (Zhu et al., Balanced Contrastive Learning, CVPR 2022.) Anchors a are the 2N views (2N x D: all first
    views, then all second ones) of N labels; the members of class k are its views and its centre (K x D). A
    class counts once, whatever its size, and a class that the batch lacks is there by its centre.
    """
    anchors = F.normalize(views, dim=1)
    members = torch.cat([anchors, F.normalize(centres, dim=1)])
    labels = torch.cat([targets, targets, torch.arange(len(centres), device=targets.device)])
    similarity = anchors @ members.T / temperature
    itself = torch.eye(*similarity.shape, dtype=torch.bool, device=similarity.device)
    same = labels[: len(anchors)].unsqueeze(1) == labels
    sizes = torch.bincount(labels, minlength=len(centres))[labels] - same.long()  # own class: without a
    averaged = (similarity - sizes.to(similarity).log()).masked_fill(itself, -torch.inf)
    positive = same & ~itself
    pulled = torch.where(positive, similarity, 0).sum(1) / positive.sum(1)
    return (averaged.logsumexp(1) - pulled).mean()


def gml_contrast(
    queries: Tensor,
    targets: Tensor,
    keys: Tensor,
    key_labels: Tensor,
    class_counts: Any,
    *,
    temperature: float | Tensor,
    own: Tensor | None = None,
) -> Tensor:
    """mean_i CE(log S_i + log pi, y_i),  S_ik = mean over keys of class k of exp(q_i.key / T)

    (Suh and Seo, ICML 2023.) Queries are N x D, keys Q x D with their Q labels (-1: an empty place), and
    `own` holds the N indices of each image's own key, which is left out (-1: it has none). A trainable map
    embeds the keys anew at each step there, so the gradient goes through them, and through a temperature that
    is a tensor; detach what should stay. A class without a key is no alternative; a sample of such a class
    contributes 0 and still counts.
    """
    prior = log_prior(class_counts, queries)
    similarity = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / temperature
    counted = _counted(similarity, key_labels, own)
    means, present = _log_class_means(similarity, key_labels.clamp(min=0), counted, len(prior))
    true = targets.unsqueeze(1)
    known = present.gather(1, true)
    logits = (means + prior).masked_fill(~present, -torch.inf).masked_fill(~known, 0)
    losses = F.cross_entropy(logits, targets, reduction="none")
    return torch.where(known.squeeze(1), losses, 0).mean()


def _log_class_means(
    similarity: Tensor, labels: Tensor, counted: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """log mean of exp(similarity) over the counted keys of each class, N x K, and where there is a key."""
    shape = (len(similarity), num_classes)
    index = labels.expand_as(similarity)
    masked = similarity.masked_fill(~counted, -torch.inf)
    top = masked.detach().new_full(shape, -torch.inf).scatter_reduce(1, index, masked.detach(), "amax")
    present = top > -torch.inf
    top = torch.where(present, top, 0)
    sums = similarity.new_zeros(shape).index_add(1, labels, (masked - top.gather(1, index)).exp())
    sizes = similarity.new_zeros(shape).index_add(1, labels, counted.to(similarity))
    # where there is no key, 1 in place of 0: a slope of log 0 would be infinite
    sums, sizes = torch.where(present, sums, 1), torch.where(present, sizes, 1)
    return top + sums.log() - sizes.log(), present


def _counted(similarity: Tensor, key_labels: Tensor, own: Tensor | None) -> Tensor:
    """Which of the Q keys stand against each of the N queries: those that are there and not its own."""
    counted = (key_labels >= 0).expand_as(similarity)
    if own is None:
        return counted
    return counted & (torch.arange(len(key_labels), device=own.device) != own.unsqueeze(1))


def paco(
    logits: Tensor,
    targets: Tensor,
    queries: Tensor,
    keys: Tensor,
    key_labels: Tensor,
    class_counts: Any,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    temperature: float | Tensor,
    own: Tensor | None = None,
) -> Tensor:
    """Cross-entropy over K classes and Q keys at once (Cui et al., Parametric Contrastive Learning, 2021):

        mean_i -[ beta log p_i(y_i) + alpha sum_{keys of y_i} log p_i(key) ] / (beta + alpha m_i),

    p_i the softmax of z_i + log pi (N x K logits; `class_counts` None: without the prior, as in GPaCo on
    balanced data) and q_i.key / T, whose exponentials count gamma times in the denominator; m_i keys have the
    class of i. Queries are N x D, keys Q x D with Q labels (-1: an empty place); `own` holds the N indices
    of each image's own key, which is left out (-1: it has none). Keys are constants: they get no gradient.
    """
    similarity = F.normalize(queries, dim=1) @ F.normalize(keys.detach(), dim=1).T / temperature
    return parametric_contrast(
        logits, targets, similarity, key_labels, class_counts, alpha=alpha, beta=beta, gamma=gamma, own=own
    )


def parametric_contrast(
    logits: Tensor,
    targets: Tensor,
    similarity: Tensor,
    key_labels: Tensor,
    class_counts: Any,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    own: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """`paco` of N x Q similarities (over the temperature): for keys that are trained too, as in GPaCo.

    `smoothing` is the part of beta that the K - 1 other classes share, as released for ImageNet.
    """
    adjusted = logits if class_counts is None else logits + log_prior(class_counts, logits)
    counted = _counted(similarity, key_labels, own)
    columns = adjusted
    if gamma > 0:
        contrast = similarity.masked_fill(~counted, -torch.inf) + math.log(gamma)
        columns = torch.cat([adjusted, contrast], dim=1)
    positive = counted & (targets.unsqueeze(1) == key_labels)
    weight = beta + alpha * positive.sum(1).to(logits)
    supervised = adjusted.gather(1, targets.unsqueeze(1)).squeeze(1)
    if smoothing > 0:
        others = (adjusted.sum(1) - supervised) / max(1, adjusted.shape[1] - 1)
        supervised = (1 - smoothing) * supervised + smoothing * others
    chosen = beta * supervised + alpha * torch.where(positive, similarity, 0).sum(1)
    losses = columns.logsumexp(1) - chosen / torch.where(weight > 0, weight, 1)
    return torch.where(weight > 0, losses, 0).mean()


def dro_lt_released(
    features: Tensor,
    targets: Tensor,
    prototypes: Tensor,
    margins: Tensor,
    *,
    temperature: float | Tensor,
) -> Tensor:
    """-mean_k mean_{i in k} log softmax_j( -(|h_j - c_k| + eps_k [y_j = k]) / T )_i, over the batch's classes

    (Samuel and Chechik, ICCV 2021, as released.) The distance of N x D features to the K x D prototypes is
    not squared, the softmax runs over the batch, and a sample's own margin (K numbers, learned there) is that
    of its class in any order of the batch. Prototypes are constants.
    """
    groups = Groups.of(targets)
    distances = torch.cdist(
        prototypes.detach()[groups.classes], features, compute_mode="donot_use_mm_for_euclid_dist"
    )
    own = targets == groups.classes.unsqueeze(1)
    scores = -(distances + margins[groups.classes].unsqueeze(1) * own) / temperature
    log_p = scores.log_softmax(1)
    return -(torch.where(own, log_p, 0).sum(1) / groups.sizes).mean()
