"""What a step is made with: objective and optimiser, wrapped for one process, several, or sharded weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from probe.train.parallel import dtensor

if TYPE_CHECKING:
    from accelerate import Accelerator

LEAST_SCALE = 1.0  # of fp16 losses: a gradient that overflows below it is too large by itself


class Engine:
    """One process, or several with the same weights."""

    partitioned = False  # does a process hold only a part of the state? All of them then gather it to save it
    exposes_gradients = True  # can gradients be read between the backward pass and the update?

    def __init__(
        self, accelerator: Accelerator, objective: nn.Module, optimizer: Any, *, clip: float | None = None
    ) -> None:
        """`objective` and `optimizer` are bare, or as Accelerate prepared them."""
        self.accelerator, self.objective, self.clip = accelerator, objective, clip
        self.scaler = accelerator.scaler
        self.optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        # Accelerate's wrapper steps with a scaler; it also looks for absent libraries on the disk every time.
        self._step = self.optimizer.step if self.scaler is None else optimizer.step

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is trained; after a backward pass they hold gradients."""
        return self._parameters

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Forward and backward pass of a micro-batch; processes add up their gradients at the last one."""
        return nullcontext() if last else self.accelerator.no_sync(self.objective)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the loss to the parameters."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def grad_norm(self) -> float:
        """A norm of the gradient that is not finite where one entry is not: the parameters' norms, summed."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # as `torch.nn.utils.get_total_norm`, whose sorting by device costs more than the norms of a probe
        return float(torch.stack(torch._foreach_norm(gradients)).sum()) if gradients else 0.0

    def update(self) -> float:
        """Clip and step, and return the gradient's norm; where that is not finite, nothing has been done.

        An infinity in fp16 may be the scaler's own doing: it skips such steps and halves its scale. Below
        `LEAST_SCALE` it is not.
        """
        if self.scaler is not None:
            self.accelerator.unscale_gradients()
        if self.clip is None:
            norm = self.grad_norm()
        else:
            # torch's own: Accelerate's first compares lists of sharded parameters, which cannot be compared
            norm = float(dtensor.whole(torch.nn.utils.clip_grad_norm_(self._parameters, self.clip)))
        if not math.isfinite(norm) and (self.scaler is None or self.scaler.get_scale() < LEAST_SCALE):
            return norm
        self._step()
        return 0.0

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The optimiser's state, whole: tensors by `<parameter number>.<name>`, and plain numbers."""
        tensors, numbers = {}, {}
        for parameter, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                key = f"{parameter}.{name}"
                if isinstance(value, Tensor):
                    tensors[key] = dtensor.whole(value.detach()).cpu()
                elif value is not None:
                    numbers[key] = value
        return tensors, numbers

    def load_optimizer_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """The inverse of `optimizer_state`."""
        states: dict[int, dict[str, Any]] = {}
        for key, value in {**tensors, **numbers}.items():
            number, _, name = key.partition(".")
            of = self._parameters[int(number)]
            if isinstance(value, Tensor) and value.shape == of.shape:  # not a count of steps
                value = dtensor.like(of, value)
            states.setdefault(int(number), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def weights_changed(self) -> None:
        """To be called when something other than `update` has put weights into the network."""

    def close(self) -> None:
        """To be called when nothing will be trained any more."""


class Sharded(Engine):
    """Every process has a shard of every weight (FSDP)."""

    partitioned = True

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        self.objective.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def grad_norm(self) -> float:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return float(dtensor.whole(torch.nn.utils.get_total_norm(gradients)))  # of every process's shard
