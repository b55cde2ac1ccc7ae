"""One optimiser step's batch: gradients as often as a method wants them, then an update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from probe.errors import UserError
from probe.train.inputs.batch import Batch
from probe.train.parallel.engine import Engine
from probe.train.seeding import seed as stream
from probe.train.seeding import set_seed


class Diverged(UserError):
    """The loss, a gradient or a weight is no longer a number."""


class Objective(nn.Module):
    """Network and method as one module that returns the loss: all that is trained is inside, so one wrapper
    (data-parallel, sharded, autocast) sees every parameter and every gradient."""

    def __init__(self, network: Any, method: Any) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, batch: Batch) -> Tensor:
        return self.method.objective(self.network, batch)

    def scores(self, inputs: Tensor) -> Tensor:
        """N x K logits: the network, called from the root that holds its weights."""
        return self.network(inputs)


@dataclass(frozen=True)
class Window:
    """The micro-batches of a step on this process, and each one's part of the joined batch."""

    parts: Sequence[Batch]
    weights: Sequence[float]
    engine: Engine
    position: tuple[int | str, ...]  # (seed, epoch, step, process): where dropout's stream starts
    ids: Sequence[str]  # of the training set, for messages

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.engine.parameters

    def gradients(self) -> float:
        """Put the joined batch's gradient into the parameters and return its loss.

        Each micro-batch counts by its number of samples, so the last window of an epoch is right too.
        Called again, it repeats the same dropout.
        """
        self.engine.forget()
        last = len(self.parts) - 1
        return sum(self._backward(number, last=number == last) for number in range(len(self.parts)))

    def _backward(self, number: int, *, last: bool) -> float:
        """Add the gradient of one micro-batch and return its part of the loss."""
        batch, weight, engine = self.parts[number], self.weights[number], self.engine
        set_seed(stream(*self.position, number), batch.targets.device)
        with engine.alone(last=last):
            loss = engine.objective(batch)
            value = float(loss.detach())
            if not value - value == 0:
                raise self._diverged(f"the loss is {value} at", [batch])
            engine.backward(loss if weight == 1 else loss * weight)
        return weight * value

    def update(self) -> None:
        """Clip and step; a gradient that is not finite never reaches the weights."""
        norm = self.engine.update()
        if not math.isfinite(norm):
            raise self._diverged(f"the gradient's norm is {norm} at", self._culprits())

    def _culprits(self) -> Sequence[Batch]:
        """The micro-batch whose own gradient is not finite: each once more, alone; all where none can be told
        from the others. Every process asks for the same ones, since the norm is that of all processes."""
        if len(self.parts) > 1 and self.engine.shows_gradients:
            with self.statistics_kept():
                for number, batch in enumerate(self.parts):
                    self.engine.forget()
                    self._backward(number, last=True)
                    if not math.isfinite(self.engine.norm()):
                        return [batch]
        return self.parts

    @contextmanager
    def statistics_kept(self) -> Iterator[None]:
        """Inside the block nothing that a forward pass remembers (batch-norm, class statistics) moves."""
        kept = [
            (module, name, buffer, buffer.clone())
            for module in self.engine.objective.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        try:
            yield
        finally:
            for module, name, buffer, copy in kept:
                module._buffers[name] = buffer.copy_(copy)

    def diverged_after(self, what: str) -> Diverged:
        """For what is found bad when the step has been made."""
        return self._diverged(f"{what} after", self.parts, "and nothing was saved")

    def _diverged(
        self, what: str, batches: Sequence[Batch], so: str = "so training stopped before this step was made"
    ) -> Diverged:
        step = f"epoch {self.position[1]}, step {self.position[2]}"
        rows = [i for batch in batches for i in batch.index.tolist()]
        some = ", ".join(str(self.ids[i]) for i in rows[:8])
        more = ", ..." if len(rows) > 8 else ""
        return Diverged(
            f"{what} {step}, {so}; the batch holds {some}{more}. "
            "Try a smaller train.lr, train.clip=1, a warm-up, or train.precision=fp32"
        )
