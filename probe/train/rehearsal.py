"""One pass before training: does a micro-batch fit, and does every parameter take part?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from probe import distributed
from probe.train.engine import Engine
from probe.train.window import Window

if TYPE_CHECKING:
    from probe.train.loop import Training

log = logging.getLogger("probe.train")


def rehearse(training: Training, objective: nn.Module, optimizer: Any) -> tuple[int | None, bool]:
    """The micro-batch to use, and whether some parameter gets no gradient (which a wrapper must know).

    With `micro_batch: auto` the whole share of a process is tried first, then 0.9 of it, and so on, until one
    fits into the memory of every process (Accelerate's rule). Only memory depends on the choice: every
    optimiser step still sees `batch_size` samples. Terms within a batch (pairs, batch-norm) then act within a
    micro-batch.
    """
    from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size

    share = -(-training.settings.batch_size // training.processes)

    def attempt(size: int) -> tuple[int, bool]:
        unused, failure = False, None
        try:
            with distributed.apart():
                unused = _leaves_unused(training, objective, optimizer, size)
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            failure = error
        failed, unused_anywhere = distributed.largest(
            int(failure is not None), int(unused), device=training.device
        )
        if failed:
            raise failure or RuntimeError("another process is out of memory.")  # words that Accelerate knows
        return size, bool(unused_anywhere)

    if training.settings.micro_batch != "auto":
        given = training.micro_batch
        return given, attempt(given or share)[1]
    chosen, unused = find_executable_batch_size(attempt, starting_batch_size=share)()
    log.info("micro_batch: %d of %d samples a process fit into memory", chosen, share)
    return chosen, unused


def _leaves_unused(training: Training, objective: nn.Module, optimizer: Any, size: int) -> bool:
    """Forward and backward of the largest micro-batch: does some parameter get no gradient?"""
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
    unused = any(p.grad is None for p in window.parameters)
    optimizer.zero_grad(set_to_none=True)
    return unused
