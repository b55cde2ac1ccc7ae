"""The learning rate, where none is given: a short training with each of a few rates, judged on held-out rows.

A trial begins with the training's backbone and a head that has learnt nothing from the held-out rows, and
goes through a whole schedule (warm-up, cosine to 0) in a few steps. It is judged by the cross-entropy of the
held-out rows at the best temperature, since a head that only changed its confidence has learnt nothing.
Of the rates that are as good as the best one, up to one standard error of the paired difference, the smallest
is chosen: a short trial flatters large rates, and a small one does no harm. Test images are never used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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

BUDGET = 0.5  # part of the training's steps that all trials together may take
SHORTEST, LONGEST = 8, 50  # steps of a trial
WARMUP = 0.1  # part of a trial
SAFER = 1 / 3  # of the smallest rate, where every one does harm
DIVERGED = "every rate diverged, so a smaller one is used"
TEMPERATURES = torch.logspace(-2, 1, 61)  # that logits are multiplied by


@dataclass(frozen=True)
class Search:
    """What a rate is chosen from, and on which rows; called before step 0."""

    rates: tuple[float, ...]  # rising
    train: SampleLoader  # rows that a trial learns from
    validation: SampleLoader  # rows that judge it; none of the test split
    head: Mapping[str, Tensor]  # weights that are others at a trial's start than at the training's

    def __call__(self, training: Training) -> dict[str, Any]:
        """The rate ("lr"), why, and the result of each rate. The training is left as it was found.

        The result of each trial is saved: a search that was killed resumes with the rates that are left.
        """
        steps, done = trial_steps(training, len(self.rates)), training.state.progress.trials
        method, scaler = dtensor.snapshot(training.method.state_dict()), training.engine.scaler
        class_pass.prepare(training, self.train)
        prepared = dtensor.snapshot(training.method.state_dict())
        scale = None if scaler is None else scaler.state_dict()
        y = torch.as_tensor(np.array(self.validation.labels))
        with bar("finding the rate", len(self.rates) * steps, "steps", show=training.show) as advance:
            advance(max(0, len(done) - 1) * steps)
            for rate in (0.0, *self.rates)[len(done) :]:
                training.state.restart(self.head)
                dtensor.load(training.method, prepared)
                if rate:
                    end = self._trained(training, rate, steps, advance)
                else:
                    end = training.evaluate(self.validation)
                dtensor.load(training.method, method)
                if scaler is not None:
                    scaler.load_state_dict(scale)
                training.restart()
                done.append(_trial(rate, end, y))
                if rate:
                    training.save()
        start, *ends = (_losses(trial) for trial in done)
        assert start is not None
        rate, why = choose(start, dict(zip(self.rates, ends, strict=True)))
        rows = [{key: trial[key] for key in ("rate", "loss", "accuracy")} for trial in done]
        done.clear()
        about = {"why": why, "steps": steps, "rows": len(y), "tried": rows}
        return {"lr": _agreed(rate, training.device), **about}

    def _trained(
        self, training: Training, rate: float, steps: int, advance: Callable[..., None]
    ) -> Tensor | None:
        """N x K logits of the held-out rows after a short training; None where it diverged."""
        sampler = training.make_sampler(self.train)
        schedule = Schedule(rate, steps, round(WARMUP * steps))
        training.method.start_epoch(0, training.task.epochs)
        done, epoch = 0, 0
        try:
            while done < steps:
                for step in training.steps(self.train, sampler, epoch):
                    optim.set_lr(training.engine.optimizer, schedule.lr(done))
                    training.method.set_strength(schedule.warmth(done, training.method.ramp))
                    training.move(step)
                    _stop_if_asked(training)
                    advance(1, f"rate {rate:g}")
                    done += 1
                    if done == steps:
                        break
                epoch += 1
            scores = training.evaluate(self.validation)
        except Diverged:
            return None
        return scores if bool(scores.isfinite().all()) else None


def trial_steps(training: Training, rates: int) -> int:
    """How long a trial is: its share of half of the training's steps, within bounds."""
    total = training.make_sampler().steps * sum(training.method.stages(training.task.epochs))
    return max(1, min(LONGEST, max(SHORTEST, int(BUDGET * total / rates))))


def losses(scores: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each row, at the temperature that is best for all of them together."""
    tables = (F.cross_entropy(t * scores.double(), y, reduction="none") for t in TEMPERATURES)
    return min(tables, key=lambda table: float(table.mean()))


def choose(start: Tensor, ends: Mapping[float, Tensor | None]) -> tuple[float, str]:
    """A rate and the reason, from the losses of the held-out rows at the start and after each trial."""
    sound = {rate: end for rate, end in ends.items() if end is not None}
    smallest = min(ends)
    if not sound:
        return SAFER * smallest, DIVERGED
    best = min(sound, key=lambda rate: float(sound[rate].mean()))
    if _worse(sound[best], start):
        return SAFER * smallest, "every rate made the held-out rows worse, so a smaller one is used"
    chosen = min(rate for rate, end in sound.items() if not _worse(end, sound[best]))
    return chosen, "the smallest of those as good as the best" if chosen < best else "the best"


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
                "stopped while finding the rate; the same command resumes with the rates that are left",
                file=sys.stderr,
            )
        raise Stopped(128 + received)
