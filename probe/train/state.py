"""A training at one moment: what a checkpoint holds of it, and how it is put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probe.core import collectives
from probe.train import checkpoint
from probe.train.parallel import dtensor

if TYPE_CHECKING:
    from probe.train.loop import Training

GROWTH = 1e6  # of a weight over its start (or 1): no training leads there, only one that runs away


@dataclass
class Position:
    """Where a training is: the next step to make."""

    stage: int = 0
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    epochs: int = 0  # finished, over all stages
    steps: int = 0  # optimiser steps, over all stages


@dataclass
class Progress:
    """What has been learnt about the training so far."""

    epochs: list[dict[str, Any]] = field(default_factory=list)  # a row an epoch: loss, validation
    best: dict[str, Any] | None = None  # the row of the best epoch
    loss_sum: float = 0.0  # of the running epoch
    trials: list[dict[str, Any]] = field(default_factory=list)  # of a search that has not ended
    found: dict[str, Any] | None = None  # by a search before step 0: the rate, and what it was chosen from


def of(training: Training) -> checkpoint.State:
    """Weights, memories and the position; randomness is a function of the last. All tensors are whole."""
    memory, numbers = training.engine.memory()
    scaler = training.accelerator.scaler
    about = {
        "digest": training.digest,
        "processes": training.processes,
        "threads": torch.get_num_threads(),
        "micro_batch": training.micro_batch,
        "logged": training.log.count,
        "position": asdict(training.position),
        "progress": asdict(training.progress),
        "optimizer": numbers,
        "scaler": None if scaler is None else scaler.state_dict(),
    }
    tensors = {
        "network": training.network.snapshot(),
        "method": dtensor.snapshot(training.method.state_dict()),
        "optimizer": memory,
        "best": training.best,
    }
    if training.average is not None:
        tensors["average"] = dtensor.snapshot(training.average.weights)
    return checkpoint.State(about, tensors)


def not_finite(training: Training) -> str | None:
    """What to say of a weight or memory that is not finite, if there is one."""
    memory = {
        f"optimizer memory {number}.{name}": value
        for number, one in training.engine.optimizer.state_dict()["state"].items()
        for name, value in one.items()
        if isinstance(value, Tensor)
    }
    average = training.average.weights if training.average is not None else {}
    parts = (training.network.state_dict(), training.method.state_dict(), average, memory)
    floats = [(name, t) for part in parts for name, t in part.items() if t.is_floating_point()]
    return _first(floats, _infinite, "is no longer finite", training.device)


def ruined(training: Training) -> str | None:
    """The same of what is trained: only a step moves that, a forward pass does not."""
    named = [*training.network.named_parameters(), *training.method.named_parameters()]
    return _first(named, _infinite, "is no longer finite", training.device)


def exploded(training: Training) -> str | None:
    """What to say of a weight that is finite, and far beyond anything that training leads to."""
    start = {name: max(1.0, float(t.abs().max())) for name, t in training.start.items() if t.numel()}
    named = [(name, p) for name, p in training.network.named_parameters() if name in start]

    def beyond(name: str, weight: Tensor) -> bool:
        return weight.numel() > 0 and float(weight.abs().max()) > GROWTH * start[name]

    return _first(named, beyond, f"is more than {GROWTH:g} times what it started from", training.device)


FAULTS = (not_finite, exploded)  # what must not be kept, nor built on


def _infinite(_: str, tensor: Tensor) -> bool:
    return not bool(tensor.isfinite().all())


def _first(
    named: Sequence[tuple[str, Tensor]], bad: Callable[[str, Tensor], bool], says: str, device: torch.device
) -> str | None:
    """The first tensor that is bad. A process sees its own part of each: all of them hear of the first that
    any of them found."""
    found = (number for number, (name, t) in enumerate(named) if bad(name, dtensor.local(t.detach())))
    (before_end,) = collectives.largest(len(named) - next(found, len(named)), device=device)
    return f"{named[len(named) - before_end][0]} {says}" if before_end else None


def restore(training: Training, state: checkpoint.State) -> None:
    """Make `training` what it was when `state` was taken of it."""
    about, tensors = state.about, state.tensors
    if about["processes"] == training.processes and training.device.type == "cpu":
        # How sums are split between threads decides their last bits.
        torch.set_num_threads(about.get("threads", torch.get_num_threads()))
    training.network.take(tensors["network"])
    dtensor.load(training.method, tensors.get("method", {}))
    training.engine.weights_changed()
    training.engine.remember(tensors.get("optimizer", {}), about["optimizer"])
    training.best = tensors.get("best", {})
    if training.average is not None:
        for name, value in tensors["average"].items():
            dtensor.put(training.average.weights[name], value)
    if about["scaler"] is not None:
        training.accelerator.scaler.load_state_dict(about["scaler"])
    training.position, training.progress = Position(**about["position"]), Progress(**about["progress"])
