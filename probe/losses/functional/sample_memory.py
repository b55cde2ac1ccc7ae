"""Learning from failure: each training sample's losses under two models, remembered, give its weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probe.core.class_stats import Groups
from probe.core.ema import blend

TINY = 1e-8  # in the denominator of a weight, as released


class LffState(NamedTuple):
    """What is remembered of every training sample, by its id."""

    biased: Tensor  # N_train: moving average of the loss under the biased model
    debiased: Tensor  # N_train: under the debiased one
    labels: Tensor  # N_train: its class, -1 before its first visit

    @classmethod
    def empty(cls, samples: int, *, like: Tensor) -> LffState:
        """No sample visited yet; averages have the dtype and device of `like`."""
        nothing = torch.zeros(samples, dtype=like.dtype, device=like.device)
        return cls(nothing, nothing.clone(), nothing.new_full((samples,), -1, dtype=torch.int64))


@torch.no_grad()
def lff_step(
    loss_biased: Tensor,
    loss_debiased: Tensor,
    targets: Tensor,
    ids: Tensor,
    state: LffState | None,
    *,
    ema: float,
) -> tuple[Tensor, LffState]:
    """The N weights w = b / (b + d) of a batch, constants from 0 to 1, and the new state (Nam et al. 2020)

    b and d are moving averages of the sample's two losses (memory `ema`; a first visit copies), updated
    first, each over the largest average that any visited sample of its class has, in that model. The given
    state is not changed; None begins one, which grows with the ids. An id that stands in the batch twice
    counts with the mean of its losses.
    """
    ids, targets = ids.to(loss_biased.device), targets.to(loss_biased.device)
    state = _grown(state, int(ids.max()) + 1 if len(ids) else 0, loss_biased)
    groups = Groups.of(ids)
    visited, labels = state.labels >= 0, state.labels.clone()
    labels[ids] = targets
    biased, debiased = state.biased.clone(), state.debiased.clone()
    blend(biased, visited, groups.classes, groups.means(loss_biased.detach().to(biased)), ema)
    blend(debiased, visited, groups.classes, groups.means(loss_debiased.detach().to(debiased)), ema)
    b, d = _of_largest(biased, labels, ids), _of_largest(debiased, labels, ids)
    return (b / (b + d + TINY)).to(loss_biased), LffState(biased, debiased, labels)


def _grown(state: LffState | None, samples: int, like: Tensor) -> LffState:
    if state is None:
        return LffState.empty(samples, like=like)
    missing = samples - len(state.labels)
    if missing <= 0:
        return state
    more = LffState.empty(missing, like=state.biased)
    return LffState(*(torch.cat(pair) for pair in zip(state, more, strict=True)))


def _of_largest(average: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
    """The averages of these samples, each over its class's largest; 0 where that is 0."""
    visited = labels >= 0
    largest = average.new_zeros(int(labels.max()) + 1)
    largest = largest.scatter_reduce(0, labels[visited], average[visited], "amax")[labels[ids]]
    return torch.where(largest > 0, average[ids] / torch.where(largest > 0, largest, 1), 0)
