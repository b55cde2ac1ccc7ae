"""Evaluation over any number of processes: each takes every n-th row, results are placed by row number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from probe import distributed
from probe.train.feed import Feed
from probe.train.network import Network


@torch.no_grad()
def logits(network: Network, feed: Feed, *, rank: int, processes: int, device: torch.device) -> Tensor:
    """N x K on the CPU, the same on every process; no row is lost, repeated or padded."""
    n = len(feed.labels)
    mine = np.arange(rank, n, processes)
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        parts = [mine[i : i + feed.chunk] for i in range(0, len(mine), feed.chunk)]
        pieces = [(batch.index, network(batch.to(device).inputs).float()) for batch in feed.plain(parts)]
    finally:
        for module in training:  # each by itself: frozen batch-norms stay in evaluation mode
            module.training = True
    k = pieces[0][1].shape[1] if pieces else 0
    rows = torch.cat([index for index, _ in pieces]) if pieces else torch.empty(0, dtype=torch.int64)
    values = torch.cat([v for _, v in pieces]) if pieces else torch.empty(0, k, device=device)
    values, everyone = distributed.gather(values, rows.to(values.device))
    if len(everyone) != n or len(everyone.unique()) != n:
        raise RuntimeError(f"{len(everyone)} rows came back for {n} samples")
    whole = torch.empty(n, values.shape[1])
    whole[everyone.cpu()] = values.cpu()
    return whole
