"""All that changes while training, and nothing else: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from probe.core import collectives
from probe.train.ema import WeightEMA
from probe.train.parallel import dtensor
from probe.train.parallel.engine import Engine
from probe.train.step import Objective

GROWTH = 1e6  # of a weight over its start (or 1): no training leads there, only divergence


@dataclass
class Position:
    """Where a training is: the next step to make."""

    stage: int = 0
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    epochs: int = 0  # finished, over all stages
    steps: int = 0  # optimiser steps, over all stages

    def next_step(self) -> None:
        """A step was made."""
        self.step, self.steps = self.step + 1, self.steps + 1

    def next_epoch(self, *, last: bool) -> None:
        """An epoch was finished, perhaps the last one of its stage."""
        self.epochs, self.step = self.epochs + 1, 0
        self.stage, self.epoch = (self.stage + 1, 0) if last else (self.stage, self.epoch + 1)


@dataclass
class Progress:
    """What has been learnt about the training so far."""

    epochs: list[dict[str, Any]] = field(default_factory=list)  # one row per epoch: loss, validation
    best: dict[str, Any] | None = None  # the row of the best epoch
    loss_sum: float = 0.0  # of the running epoch
    trials: list[dict[str, Any]] = field(default_factory=list)  # of a learning-rate search that is under way
    found: dict[str, Any] | None = None  # by a search before step 0: the rate, and what it was chosen from


class TrainState:
    """Weights, the method's buffers, the optimiser's state, averages and the position.

    Randomness is a function of the position (`probe.train.seeding`), so no generator is part of it.
    """

    def __init__(self, objective: Objective, engine: Engine, ema: WeightEMA | None) -> None:
        self.network, self.method = objective.network, objective.method
        self.engine, self.ema = engine, ema
        self.start = self.network.snapshot()  # weights at step 0; not saved, since they are given again
        self.best: dict[str, Tensor] = {}  # weights of the best epoch, where those are kept
        self.position, self.progress = Position(), Progress()

    # -- in and out of a checkpoint ------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """Values for JSON, and tensors by part (network, method, ...), whole, on the CPU.

        Of partitioned state this is a collective call: every process makes it.
        """
        optimizer, numbers = self.engine.optimizer_state()
        scaler = self.engine.scaler
        values = {
            "position": asdict(self.position),
            "progress": asdict(self.progress),
            "optimizer": numbers,
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        tensors = {
            "network": self.network.snapshot(),
            "method": dtensor.snapshot(self.method.state_dict()),
            "optimizer": optimizer,
            "best": self.best,
        }
        if self.ema is not None:
            tensors["average"] = dtensor.snapshot(self.ema.weights)
        return values, tensors

    def load_state_dict(self, values: Mapping[str, Any], tensors: Mapping[str, dict[str, Tensor]]) -> None:
        """Become what was saved; further keys of `values` are left alone."""
        self.network.take(tensors["network"])
        dtensor.load(self.method, tensors.get("method", {}))
        self.engine.weights_changed()
        self.engine.load_optimizer_state(tensors.get("optimizer", {}), values["optimizer"])
        self.best = tensors.get("best", {})
        if self.ema is not None:
            for name, value in tensors["average"].items():
                dtensor.put(self.ema.weights[name], value)
        if values["scaler"] is not None:
            self.engine.scaler.load_state_dict(values["scaler"])
        self.position, self.progress = Position(**values["position"]), Progress(**values["progress"])

    # -- weights -------------------------------------------------------------------------------------------

    def restart(self, other: Mapping[str, Tensor] | None = None) -> None:
        """Give the network its weights at step 0, or some `other` ones; optimiser and average start again."""
        self.network.take({**self.start, **(other or {})})
        self.engine.optimizer.state.clear()
        self.engine.weights_changed()
        if self.ema is not None:
            self.ema.restart(self.network)

    def averaged(self) -> AbstractContextManager[None]:
        """Inside the block the network has the averaged weights, where an average is kept."""
        return nullcontext() if self.ema is None else self.ema.used_by(self.network)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights that would be used now: averaged, where an average is kept."""
        with self.averaged():
            return self.network.snapshot()

    # -- what must not be saved, nor built on --------------------------------------------------------------

    def fault(self) -> str | None:
        """What is wrong with the state, if anything is: not finite, or far beyond any trained weight."""
        return self._not_finite() or self._exploded()

    def parameter_fault(self) -> str | None:
        """The same for parameters alone: only a step changes those, a forward pass does not."""
        return self._first([*self.network.named_parameters(), *self.method.named_parameters()], _not_finite)

    def _not_finite(self) -> str | None:
        optimizer = {
            f"optimizer memory {number}.{name}": value
            for number, state in self.engine.optimizer.state_dict()["state"].items()
            for name, value in state.items()
            if isinstance(value, Tensor)
        }
        average = self.ema.weights if self.ema is not None else {}
        parts = (self.network.state_dict(), self.method.state_dict(), average, optimizer)
        return self._first([(name, t) for part in parts for name, t in part.items()], _not_finite)

    def _exploded(self) -> str | None:
        start = {name: max(1.0, float(t.abs().max())) for name, t in self.start.items() if t.numel()}
        named = [(name, p) for name, p in self.network.named_parameters() if name in start]

        def beyond(name: str, weight: Tensor) -> bool:
            return weight.numel() > 0 and float(weight.abs().max()) > GROWTH * start[name]

        return self._first(named, beyond, f"is more than {GROWTH:g} times what it started from")

    def _first(
        self,
        named: Sequence[tuple[str, Tensor]],
        bad: Callable[[str, Tensor], bool],
        says: str = "is no longer finite",
    ) -> str | None:
        """The first bad tensor. A process looks at its own shard of each; all of them learn of the first
        that any of them found."""
        found = (number for number, (name, t) in enumerate(named) if bad(name, dtensor.local(t.detach())))
        before_end = len(named) - next(found, len(named))
        (before_end,) = collectives.largest(before_end, device=self.engine.accelerator.device)
        return f"{named[len(named) - before_end][0]} {says}" if before_end else None


def _not_finite(_: str, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())
