"""One pass before training: does a micro-batch fit, and does every parameter take part?"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from probe.core import collectives
from probe.train.parallel.engine import Engine
from probe.train.step import Window

if TYPE_CHECKING:
    from probe.train.loop import Training

log = logging.getLogger("probe.train")


@dataclass(frozen=True)
class Rehearsed:
    micro_batch: int | None  # to use
    unused: bool  # does some process leave a parameter without gradient? Wrappers must know
    idle: list[bool]  # by parameter: do all of them?


def rehearse(training: Training, objective: nn.Module, optimizer: Any) -> Rehearsed:
    """One pass of every process.

    With `micro_batch: auto` the whole share of a process is tried first, then 0.9 of it, and so on, until one
    fits into the memory of every process (Accelerate's rule). Only memory depends on the choice: every
    optimiser step still sees `batch_size` samples. Terms within a batch (pairs, batch-norm) then act within a
    micro-batch.
    """
    from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size

    share = -(-training.batch_size // training.processes)
    members = [p for group in optimizer.param_groups for p in group["params"]]

    def attempt(size: int) -> Rehearsed:
        used, failure = [False] * len(members), None
        try:
            with collectives.apart():
                _pass(training, objective, optimizer, size)
            used = [parameter.grad is not None for parameter in members]
            optimizer.zero_grad(set_to_none=True)
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            failure = error
        alike = (failure is not None, not all(used), *used)
        failed, unused, *used_by_any = collectives.largest(*map(int, alike), device=training.device)
        if failed:
            raise failure or RuntimeError("another process is out of memory.")  # words that Accelerate knows
        return Rehearsed(size, bool(unused), [not any_ for any_ in used_by_any])

    if training.settings.micro_batch != "auto":
        given = training.micro_batch
        return replace(attempt(given or share), micro_batch=given)
    found = find_executable_batch_size(attempt, starting_batch_size=share)()
    log.info("micro_batch: %d of %d samples a process fit into memory", found.micro_batch, share)
    return found


def _pass(training: Training, objective: nn.Module, optimizer: Any, size: int) -> None:
    """Forward and backward of the largest micro-batch; nothing is remembered of it but gradients."""
    training.micro_batch = size
    sampler = training.sampler_of()
    part = max((p for batch in sampler.epoch(0) for p in sampler.parts(batch, training.rank)), key=len)
    batch = next(training.feed.training(0, [part], training.method.views)).to(training.device)
    batch = batch if training.mix is None else training.mix(batch)
    place = (training.seed, 0, 0, training.rank)
    window = Window(
        [batch], [1.0], Engine(training.accelerator, objective, optimizer), place, training.feed.ids
    )
    with window.statistics_kept():
        window.gradients()
