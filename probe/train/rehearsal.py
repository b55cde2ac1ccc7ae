"""One pass before training: does a micro-batch fit, and does every parameter take part?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from probe.train.engine import Engine
from probe.train.window import Window

if TYPE_CHECKING:
    from probe.train.loop import Training

log = logging.getLogger("probe.train")


def rehearse(training: Training, objective: nn.Module, optimizer: Any) -> tuple[int | None, bool]:
    """The micro-batch to use, and whether some parameter gets no gradient (which a wrapper must know).

    With `micro_batch: auto` the whole share of a process is tried first, then 0.9 of it, and so on, until one
    fits into memory (Accelerate's rule). Only memory depends on the choice: every optimiser step still sees
    `batch_size` samples. Terms within a batch (pairs, batch-norm) then act within a micro-batch.
    """
    from accelerate.utils import find_executable_batch_size

    share = -(-training.settings.batch_size // training.processes)

    def attempt(size: int) -> tuple[int, bool]:
        training.micro_batch = size
        sampler = training.sampler_of()
        part = sampler.parts(sampler.epoch(0)[0], training.rank)[0]
        batch = next(training.feed.training(0, [part], training.method.views)).to(training.device)
        batch = batch if training.mix is None else training.mix(batch)
        engine = Engine(training.accelerator, objective, optimizer)
        place = (training.seed, 0, 0, training.rank)
        window = Window([batch], [1.0], engine, place, training.feed.ids)
        with window.statistics_kept():
            window.gradients()
        unused = any(p.grad is None for p in window.parameters)
        optimizer.zero_grad(set_to_none=True)
        return size, unused

    if training.settings.micro_batch != "auto":
        given = training.micro_batch
        unused = attempt(given or share)[1]
        return given, unused
    chosen, unused = find_executable_batch_size(attempt, starting_batch_size=share)()
    log.info("micro_batch: %d of %d samples a process fit into memory", chosen, share)
    return chosen, unused
