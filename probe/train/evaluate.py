"""Evaluation over any number of processes: each takes every n-th row, results are placed by row number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from probe.core import collectives
from probe.core.eval_mode import evaluation_mode
from probe.train.inputs.loaders import Feed
from probe.train.parallel import dtensor
from probe.train.step import Diverged, Objective


@torch.no_grad()
def logits(objective: Objective, feed: Feed, *, rank: int, processes: int, device: torch.device) -> Tensor:
    """N x K on the CPU, the same on every process; no row is lost, repeated or padded."""
    n = len(feed.labels)
    mine = np.arange(rank, n, processes)
    # Every process makes equally many calls: a sharded network is only there while all of them use it.
    calls = -(-len(range(0, n, processes)) // feed.chunk)
    parts = [mine[i * feed.chunk : (i + 1) * feed.chunk] for i in range(calls)]
    company = [part if len(part) else np.arange(1) for part in parts]
    try:
        with evaluation_mode(objective.network):
            pieces = [(b.index, objective.scores(b.to(device).inputs).float()) for b in feed.plain(company)]
    finally:
        dtensor.free(objective)
    rows = torch.cat([index[: len(part)] for (index, _), part in zip(pieces, parts, strict=True)])
    values = torch.cat([scores[: len(part)] for (_, scores), part in zip(pieces, parts, strict=True)])
    values, everyone = collectives.gather(values, rows.to(values.device))
    if len(everyone) != n or len(everyone.unique()) != n:
        raise RuntimeError(f"{len(everyone)} rows came back for {n} samples")
    whole = torch.empty(n, values.shape[1])
    whole[everyone.cpu()] = values.cpu()
    fine = whole.isfinite().all(dim=1)
    if not bool(fine.all()):  # what is chosen by such scores would be chosen by nothing
        bad = (~fine).nonzero().flatten().tolist()
        raise Diverged(
            f"the trained network's scores of {len(bad)} of {n} samples are not finite, e.g. of "
            f"{feed.ids[bad[0]]}, and nothing was saved. Try a smaller train.lr, train.clip=1, or a warm-up"
        )
    return whole
