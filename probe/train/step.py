"""One optimiser step. `Step.gradients` is the batch, the forward pass, the loss and the backward pass;
`Step.update` is the optimiser's step. A method calls both in its `step`, some the first one twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from probe.errors import UserError
from probe.methods.base import Method
from probe.recipe.train_settings import TrainConfig
from probe.train.inputs.batch import Batch
from probe.train.model import batchnorm
from probe.train.model.network import Network
from probe.train.parallel import dtensor
from probe.train.parallel.engine import Engine
from probe.train.seeding import derive_seed, set_seed

NAMED = 8  # samples of a bad batch that a message names


class Diverged(UserError):
    """The loss, a gradient or a weight is no longer finite."""


class Objective(nn.Module):
    """Network and method as one module that returns the loss: all that is trained is inside, so one wrapper
    (data-parallel, sharded, autocast) sees every parameter and every gradient."""

    def __init__(self, network: Network, method: Method) -> None:
        super().__init__()
        self.network, self.method = network, method
        self.averages = False  # does the mean of the method's experts predict, and not the network alone?

    def forward(self, batch: Batch) -> Tensor:
        """Forward pass and loss of a micro-batch, a scalar."""
        return self.method.objective(self.network, batch)

    def train_mode(self, settings: TrainConfig) -> None:
        """Training mode, except for batch-norms that are to stay as they were loaded, and for what this stage
        leaves as it is."""
        self.network.train()
        self.method.train()
        if settings.batch_norm == "frozen":
            for model in (self.network, *self.method.copies()):
                batchnorm.freeze(model, affine=settings.tune != "norms")
        if settings.tune != "all":
            batchnorm.hold_untrained(self.network)
        if self.method.freezes:
            self.network.eval()

    def scores(self, inputs: Tensor) -> Tensor:
        """n x K logits: the network, or the mean of all experts, called from the root that holds their
        weights."""
        if not self.averages:
            return self.network(inputs)
        return torch.stack([expert(inputs) for expert in self.method.experts(self.network)]).mean(dim=0)

    def features(self, inputs: Tensor) -> Tensor:
        """n x D features, as representation terms see them; from the root, like `scores`."""
        return self.network.parts(inputs, self.method.takes)[1]

    def embedded(self, inputs: Tensor) -> Tensor:
        """n x D features, as the classifier sees them; from the root, like `scores`."""
        return self.network.embedded(inputs)


@dataclass(frozen=True)
class Step:
    """A batch, cut into the micro-batches of this process, and what it is trained with."""

    batches: Sequence[Batch]  # micro-batches; one, unless memory is short
    weights: Sequence[float]  # what part of the joined batch of all processes each of them is
    engine: Engine
    position: tuple[int | str, ...]  # (seed, epoch, step, process): seeds dropout
    ids: Sequence[str]  # of the training set, for messages
    size: int  # samples of the joined batch
    first: int = 0  # number of the first micro-batch here

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is trained; after `gradients` they hold gradients."""
        return self.engine.parameters

    def gradients(self) -> float:
        """Put the joined batch's gradient into the parameters and return its loss.

        Each micro-batch counts by its number of samples, so the short last batch of an epoch is right too.
        Called again, it repeats the same dropout.
        """
        self.engine.zero_grad()
        total, last = 0.0, len(self.batches) - 1
        for number, (batch, weight) in enumerate(zip(self.batches, self.weights, strict=True)):
            set_seed(derive_seed(*self.position, self.first + number), batch.targets.device)
            with self.engine.accumulate(last=number == last):
                loss = self.engine.objective(batch)  # forward pass and loss: `Method.objective`
                total += weight * self._finite(loss, batch)
                self.engine.backward(loss if weight == 1 else loss * weight)
        return total

    def _finite(self, loss: Tensor, batch: Batch) -> float:
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value} at", [batch])
        return value

    def update(self) -> None:
        """Clip and step; a gradient that is not finite never reaches the weights."""
        norm = self.engine.update()
        if not math.isfinite(norm):
            raise self._diverged(f"the gradient's norm is {norm} at", self._culprits())

    def finite_gradients(self) -> bool:
        """Is every gradient finite, on all processes?"""
        return math.isfinite(self.engine.grad_norm())

    def total_norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The Euclidean norm of all tensors together, of which each process may hold a shard."""
        return dtensor.whole(torch.nn.utils.get_total_norm(tensors))

    def _culprits(self) -> Sequence[Batch]:
        """The micro-batch whose own gradient is not finite, found by repeating each alone; all of them where
        that cannot be told. Every process repeats the same ones, since the norm is that of all processes."""
        if len(self.batches) > 1 and self.engine.exposes_gradients:
            with self.frozen_statistics():
                for number, (batch, weight) in enumerate(zip(self.batches, self.weights, strict=True)):
                    replace(self, batches=[batch], weights=[weight], first=number).gradients()
                    if not self.finite_gradients():
                        return [batch]
        return self.batches

    @contextmanager
    def frozen_statistics(self) -> Iterator[None]:
        """Inside the block a forward pass leaves batch-norm and class statistics as they were."""
        saved = [
            (module, name, buffer, buffer.clone())
            for module in self.engine.objective.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        try:
            yield
        finally:
            for module, name, buffer, copy in saved:
                module._buffers[name] = buffer.copy_(copy)

    def diverged_after(self, what: str) -> Diverged:
        """The error for something that is found to be bad after the step."""
        return self._diverged(f"{what} after", self.batches, "and nothing was saved")

    def _diverged(
        self, what: str, batches: Sequence[Batch], so: str = "so training stopped before this step was made"
    ) -> Diverged:
        step = f"epoch {self.position[1]}, step {self.position[2]}"
        rows = [i for batch in batches for i in batch.index.tolist()]
        some = ", ".join(str(self.ids[i]) for i in rows[:NAMED])
        more = ", ..." if len(rows) > NAMED else ""
        return Diverged(
            f"{what} {step}, {so}; the batch holds {some}{more}. "
            "Try a smaller train.lr, train.clip=1, a warm-up, or train.precision=fp32"
        )
