"""Evaluation over any number of processes: each takes every n-th row, results are placed by row number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.core import collectives
from probe.core.eval_mode import evaluation_mode
from probe.train.inputs.loaders import SampleLoader
from probe.train.parallel import dtensor
from probe.train.step import Diverged, Objective

if TYPE_CHECKING:
    from accelerate import Accelerator


def logits(objective: Objective, data: SampleLoader, accelerator: Accelerator) -> Tensor:
    """N x K logits on the CPU, the same on every process; no row is lost, repeated or padded."""
    whole = _outputs(objective, objective.scores, data, np.arange(len(data.labels)), accelerator)
    _check_finite(whole, data)
    return whole


def features(
    objective: Objective,
    data: SampleLoader,
    rows: NDArray[np.int64],
    accelerator: Accelerator,
    advance: Callable[[int], None] = lambda n: None,
) -> Tensor:
    """n x D features of these rows (rising numbers), as representation terms see them, on the CPU."""
    return _outputs(objective, objective.features, data, rows, accelerator, advance)


def embeddings(objective: Objective, data: SampleLoader, accelerator: Accelerator) -> Tensor:
    """N x D features as the classifier sees them, on the CPU, the same on every process."""
    return _outputs(objective, objective.embedded, data, np.arange(len(data.labels)), accelerator)


@torch.no_grad()
def _outputs(
    objective: Objective,
    call: Callable[[Tensor], Tensor],
    data: SampleLoader,
    rows: NDArray[np.int64],
    accelerator: Accelerator,
    advance: Callable[[int], None] = lambda n: None,
) -> Tensor:
    """What `call` makes of each of n rows, in evaluation mode."""
    n, size, processes = len(rows), data.eval_batch_size, accelerator.num_processes
    mine = rows[accelerator.process_index :: processes]
    # Every process makes equally many calls: a sharded network is whole only while all of them use it.
    calls = -(-len(range(0, n, processes)) // size)
    parts = [mine[i * size : (i + 1) * size] for i in range(calls)]
    padded = [part if len(part) else rows[:1] for part in parts]
    pieces = []
    try:
        with evaluation_mode(objective):
            for batch in data.eval_batches(padded):
                pieces.append((batch.index, call(batch.to(accelerator.device).inputs).float()))
                advance(len(batch.index) * processes)
    finally:
        dtensor.free(objective)
    index = torch.cat([index[: len(part)] for (index, _), part in zip(pieces, parts, strict=True)])
    values = torch.cat([values[: len(part)] for (_, values), part in zip(pieces, parts, strict=True)])
    values, index = collectives.gather(values, index.to(values.device))
    if len(index) != n or len(index.unique()) != n:
        raise RuntimeError(f"{len(index)} rows came back for {n} samples")
    whole = torch.empty(n, values.shape[1])
    whole[torch.searchsorted(torch.from_numpy(rows), index.cpu())] = values.cpu()
    return whole


def _check_finite(scores: Tensor, data: SampleLoader) -> None:
    """Nothing can be chosen by scores that are not finite."""
    bad = (~scores.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise Diverged(
            f"the trained network's scores of {len(bad)} of {len(scores)} samples are not finite, e.g. of "
            f"{data.ids[bad[0]]}, and nothing was saved. Try a smaller train.lr, train.clip=1, or a warm-up"
        )
