"""Evaluation over any number of processes: each takes every n-th row, results are placed by row number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from probe.core import collectives
from probe.core.eval_mode import evaluation_mode
from probe.train.inputs.loaders import SampleLoader
from probe.train.parallel import dtensor
from probe.train.step import Diverged, Objective

if TYPE_CHECKING:
    from accelerate import Accelerator


@torch.no_grad()
def logits(objective: Objective, data: SampleLoader, accelerator: Accelerator) -> Tensor:
    """N x K logits on the CPU, the same on every process; no row is lost, repeated or padded."""
    n, size, processes = len(data.labels), data.eval_batch_size, accelerator.num_processes
    mine = np.arange(accelerator.process_index, n, processes)
    # Every process makes equally many calls: a sharded network is whole only while all of them use it.
    calls = -(-len(range(0, n, processes)) // size)
    parts = [mine[i * size : (i + 1) * size] for i in range(calls)]
    padded = [part if len(part) else np.arange(1) for part in parts]
    try:
        with evaluation_mode(objective.network):
            pieces = [
                (batch.index, objective.scores(batch.to(accelerator.device).inputs).float())
                for batch in data.eval_batches(padded)
            ]
    finally:
        dtensor.free(objective)
    rows = torch.cat([index[: len(part)] for (index, _), part in zip(pieces, parts, strict=True)])
    values = torch.cat([scores[: len(part)] for (_, scores), part in zip(pieces, parts, strict=True)])
    values, rows = collectives.gather(values, rows.to(values.device))
    if len(rows) != n or len(rows.unique()) != n:
        raise RuntimeError(f"{len(rows)} rows came back for {n} samples")
    whole = torch.empty(n, values.shape[1])
    whole[rows.cpu()] = values.cpu()
    _check_finite(whole, data)
    return whole


def _check_finite(scores: Tensor, data: SampleLoader) -> None:
    """Nothing can be chosen by scores that are not finite."""
    bad = (~scores.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise Diverged(
            f"the trained network's scores of {len(bad)} of {len(scores)} samples are not finite, e.g. of "
            f"{data.ids[bad[0]]}, and nothing was saved. Try a smaller train.lr, train.clip=1, or a warm-up"
        )
