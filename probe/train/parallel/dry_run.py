"""One pass before training: does a micro-batch fit into memory, and does every parameter get a gradient?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from probe.core import collectives
from probe.train.parallel.engine import Engine
from probe.train.step import Step

if TYPE_CHECKING:
    from probe.train.loop import Training

log = logging.getLogger("probe.train")


@dataclass(frozen=True)
class DryRun:
    """What a pass before training has shown."""

    micro_batch: int | None  # to use
    some_unused: bool  # does some process leave a parameter without gradient? Wrappers must know
    unused: list[bool]  # by parameter: do all processes?


def dry_run(training: Training, optimizer: Optimizer) -> DryRun:
    """One forward and backward pass of every process.

    With `micro_batch: auto` the whole share of a process is tried first, then 0.9 of it, and so on, until one
    fits into the memory of every process (Accelerate's rule). Only memory depends on the choice: every
    optimiser step still sees `batch_size` samples. Terms within a batch (pairs, batch-norm) then act within a
    micro-batch.
    """
    from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size

    share = -(-training.feed.batch_size // training.processes)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def attempt(size: int) -> DryRun:
        used, failure = [False] * len(parameters), None
        try:
            with collectives.apart():
                _pass(training, optimizer, size)
            used = [parameter.grad is not None for parameter in parameters]
            optimizer.zero_grad(set_to_none=True)
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            failure = error
        flags = (failure is not None, not all(used), *used)
        failed, some_unused, *used_by_any = collectives.largest(*map(int, flags), device=training.device)
        if failed:
            raise failure or RuntimeError("another process is out of memory.")  # words that Accelerate knows
        return DryRun(size, bool(some_unused), [not any_ for any_ in used_by_any])

    if training.settings.micro_batch != "auto":
        given = training.settings.micro_batch
        return replace(attempt(given or share), micro_batch=given)
    found = find_executable_batch_size(attempt, starting_batch_size=share)()
    log.info("micro_batch: %d of %d samples per process fit into memory", found.micro_batch, share)
    return found


def _pass(training: Training, optimizer: Optimizer, size: int) -> None:
    """Forward and backward pass of the largest micro-batch; nothing is left of it but gradients."""
    sampler = training.make_sampler()
    sampler = replace(sampler, micro_batch=size, together=min(sampler.together, size))
    rows = max((p for batch in sampler.epoch(0) for p in sampler.parts(batch, training.rank)), key=len)
    data = training.task.train
    batch = next(data.train_batches(0, [rows], training.views)).to(training.device)
    batch = training.feed.mixed(batch, (training.seed, 0, 0, 0, "mix", 0))
    position = (training.seed, 0, 0, training.rank)
    engine = Engine(training.accelerator, training.objective, optimizer)
    step = Step([batch], [1.0], engine, position, data.ids, len(batch))
    with step.frozen_statistics():
        step.gradients()
