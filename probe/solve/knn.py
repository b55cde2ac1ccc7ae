"""k nearest neighbours by cosine, plain or weighted: nothing is trained, so it judges the features alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.core.row_share import RowShare
from probe.core.threads import free_threads
from probe.errors import UserError

TEMPERATURE = 0.07  # of the weighted vote, exp(cosine / temperature)
BLOCK_BYTES = 256 << 20  # of similarities held at a time


@free_threads()
def votes(
    bank: Tensor, labels: Tensor, queries: Tensor, *, num_classes: int, k: int = 20, weighted: bool = True
) -> Tensor:
    """Q x K votes for Q x D queries: each one's k nearest rows of the M x D bank vote for their M labels.

    Of equally near rows the earlier one counts. Plain votes get the mean cosine of the class's voters added
    at a scale too small to outvote anybody: it decides ties for the nearer class, then the lower index.
    Inside `collectives.together()` each process looks through its own part of the bank.
    """
    if k < 1:
        raise UserError(f"k-NN needs at least one neighbour, not k = {k}")
    k = min(k, len(bank))
    share = RowShare.of(len(bank))
    unit = F.normalize(share.mine(bank), dim=1).T
    rows = max(1, BLOCK_BYTES // (max(1, unit.shape[1]) * unit.element_size()))
    parts = []
    for block in F.normalize(queries, dim=1).split(rows):
        near, index = _nearest_of_all(block @ unit, k, share)
        voters = labels[index]
        ballot = torch.exp((near - near[:, :1]) / TEMPERATURE) if weighted else 1 + near / (4 * k)
        parts.append(near.new_zeros(len(block), num_classes).scatter_add_(1, voters, ballot))
    return torch.cat(parts)


def _nearest_of_all(similarity: Tensor, k: int, share: RowShare) -> tuple[Tensor, Tensor]:
    """The k nearest rows of the whole bank, of each process's similarities to its own rows."""
    if share.size == 1:
        return nearest(similarity, k)
    near, index = nearest(similarity, min(k, similarity.shape[1]))
    # a process with fewer rows gives fewer: the candidates are the rows of what is gathered
    near, index = (t.T.contiguous() for t in collectives.gather(near.T, (index + share.start).T))
    index, order = torch.sort(index, dim=1)
    near, order = torch.sort(near.gather(1, order), dim=1, descending=True, stable=True)
    return near[:, :k], index.gather(1, order[:, :k])


def nearest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they are; of equals at the border, the earlier ones.

    Selecting is many times faster than sorting, but breaks ties at will; so only rows with a tie are sorted.
    """
    near, index = similarity.topk(k, dim=1)
    tied = (similarity >= near[:, -1:]).sum(dim=1) > k
    if holds(tied.any()):
        values, order = torch.sort(similarity[tied], dim=1, descending=True, stable=True)
        near[tied], index[tied] = values[:, :k], order[:, :k]
    return near, index


def holds(condition: Tensor) -> bool:
    """The only place where numbers decide what is done next."""
    return bool(condition)
