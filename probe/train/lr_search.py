"""The learning rate, where none is given: the default of the network's family, unless a trial shows harm.

A trial is the training in short: the same backbone, a head that has learnt nothing from the held-out rows,
and a whole schedule (warm-up, cosine to 0) in half as many steps. It is judged by the cross-entropy of the
held-out rows at the best temperature, since a head that only changed its confidence has learnt nothing. A
rate that leaves them no worse than they were, up to one standard error of the paired difference, is taken;
where it does harm, a third of it is tried next; where all do harm, and smaller rates more, the one that did
least is taken. Else trials do not rank rates: short ones favour small rates, with which whole trainings end
lower (docs/results.md). Test images are never used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core import collectives
from probe.system.progress import bar
from probe.train import class_pass, optim
from probe.train.inputs.loaders import SampleLoader
from probe.train.parallel import dtensor
from probe.train.schedule import Schedule
from probe.train.signals import Stopped
from probe.train.step import Diverged

if TYPE_CHECKING:
    from probe.train.loop import Training

LENGTH = 0.5  # of a trial, as part of the training's steps
SHORTEST, LONGEST = 8, 150  # steps of a trial
WARMUP = 0.1  # part of a trial
SAFER = 1 / 3  # of the smallest rate, where every one does harm
DIVERGED = "every rate diverged, so a smaller one is used"
LEAST = "every rate made the held-out rows worse, and smaller ones more; the one that did least is used"
TEMPERATURES = torch.logspace(-2, 1, 61)  # that logits are multiplied by


@dataclass(frozen=True)
class Search:
    """Which rates to try, and on which rows; called before step 0."""

    rates: tuple[float, ...]  # falling: the first that does no harm is taken
    train: SampleLoader  # rows that a trial learns from
    validation: SampleLoader  # rows that judge it; none of the test split
    head: Mapping[str, Tensor]  # weights that are others at a trial's start than at the training's

    def __call__(self, training: Training) -> dict[str, Any]:
        """The rate ("lr"), why, and the result of each trial. The training is left as it was found.

        The result of each trial is saved: a search that was killed resumes with the next one.
        """
        steps, done = trial_steps(training), training.state.progress.trials
        method, scaler = dtensor.snapshot(training.method.state_dict()), training.engine.scaler
        class_pass.prepare(training, self.train)
        prepared = dtensor.snapshot(training.method.state_dict())
        scale = None if scaler is None else scaler.state_dict()
        y = torch.as_tensor(np.array(self.validation.labels))
        while (rate := self._next(done, training.device)) is not None:
            training.state.restart(self.head)
            dtensor.load(training.method, prepared)
            end = self._trained(training, rate, steps) if rate else training.evaluate(self.validation)
            dtensor.load(training.method, method)
            if scaler is not None:
                scaler.load_state_dict(scale)
            training.restart()
            done.append(_trial(rate, end, y))
            if rate:
                training.save()
        start, *ends = (_losses(trial) for trial in done)
        assert start is not None
        rate, why = choose(start, dict(zip(self.rates, ends, strict=False)))
        rows = [{key: trial[key] for key in ("rate", "loss", "accuracy")} for trial in done]
        done.clear()
        about = {"why": why, "steps": steps, "rows": len(y), "tried": rows}
        return {"lr": _agreed(rate, training.device), **about}

    def _next(self, done: list[dict[str, Any]], device: torch.device) -> float | None:
        """The rate of the next trial, 0 for the start; None: it is decided. The same on all processes."""
        if not done:
            return 0.0
        start, *ends = (_losses(trial) for trial in done)
        assert start is not None
        decided = len(ends) == len(self.rates) or (bool(ends) and not _harmful(ends[-1], start))
        (stop,) = collectives.largest(int(decided), device=device)
        return None if stop else self.rates[len(ends)]

    def _trained(self, training: Training, rate: float, steps: int) -> Tensor | None:
        """N x K logits of the held-out rows after a short training; None where it diverged."""
        sampler = training.make_sampler(self.train)
        schedule = Schedule(rate, steps, round(WARMUP * steps))
        training.method.start_epoch(0, training.task.epochs)
        done, epoch = 0, 0
        try:
            with bar(f"trying the rate {rate:g}", steps, "steps", show=training.show) as advance:
                while done < steps:
                    for step in training.steps(self.train, sampler, epoch):
                        optim.set_lr(training.engine.optimizer, schedule.lr(done))
                        training.method.set_strength(schedule.warmth(done, training.method.ramp))
                        training.move(step)
                        _stop_if_asked(training)
                        advance(1)
                        done += 1
                        if done == steps:
                            break
                    epoch += 1
            scores = training.evaluate(self.validation)
        except Diverged:
            return None
        return scores if bool(scores.isfinite().all()) else None


def trial_steps(training: Training) -> int:
    """How long a trial is: half as many steps as the training, within bounds."""
    total = training.make_sampler().steps * sum(training.method.stages(training.task.epochs))
    return max(1, min(LONGEST, max(SHORTEST, int(LENGTH * total))))


def losses(scores: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each row, at the temperature that is best for all of them together."""
    tables = (F.cross_entropy(t * scores.double(), y, reduction="none") for t in TEMPERATURES)
    return min(tables, key=lambda table: float(table.mean()))


def choose(start: Tensor, ends: Mapping[float, Tensor | None]) -> tuple[float, str]:
    """A rate and the reason, from the losses of the held-out rows at the start and after each trial."""
    harmless = [rate for rate, end in ends.items() if not _harmful(end, start)]
    if harmless:
        first = harmless[0] == max(ends)
        return harmless[0], "the default does no harm" if first else "the largest tried that does no harm"
    if all(end is None for end in ends.values()):
        return SAFER * min(ends), DIVERGED
    tried = {rate: float(end.mean()) for rate, end in ends.items() if end is not None}
    least = min(tried, key=lambda rate: (tried[rate], rate))
    if least > min(ends):  # a loss far from its own optimum ends nearest to it with the largest steps
        return least, LEAST
    return SAFER * min(ends), "every rate made the held-out rows worse, so a smaller one is used"


def _harmful(end: Tensor | None, start: Tensor) -> bool:
    """Did a trial diverge, or leave the held-out rows worse than it found them?"""
    return end is None or _worse(end, start)


def _worse(one: Tensor, other: Tensor) -> bool:
    """By more than a standard error of the paired difference?"""
    gap = one - other
    return float(gap.mean()) > float(gap.std(correction=0)) / max(1, len(gap) - 1) ** 0.5


def _trial(rate: float, scores: Tensor | None, y: Tensor) -> dict[str, Any]:
    """The result of a rate, as a checkpoint holds it; rate 0 is the start, and no scores mean it diverged."""
    name = rate or "start"
    if scores is None:
        return {"rate": name, "loss": None, "accuracy": None, "losses": None}
    rows, accuracy = losses(scores, y), float((scores.argmax(dim=1) == y).double().mean())
    return {"rate": name, "loss": float(rows.mean()), "accuracy": accuracy, "losses": rows.tolist()}


def _losses(trial: dict[str, Any]) -> Tensor | None:
    return None if trial["losses"] is None else torch.tensor(trial["losses"], dtype=torch.float64)


def _agreed(rate: float, device: torch.device) -> float:
    """The rate of process 0: other processors may round differently."""
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    bits = int(np.float64(rate).view(np.int64)) if first else 0
    return float(np.int64(collectives.largest(bits, device=device)[0]).view(np.float64))


def _stop_if_asked(training: Training) -> None:
    (received,) = collectives.largest(training.stop.signal, device=training.device)
    if received:
        if training.rank == 0:
            print(
                "stopped while trying rates; the same command resumes with those that are left",
                file=sys.stderr,
            )
        raise Stopped(128 + received)
