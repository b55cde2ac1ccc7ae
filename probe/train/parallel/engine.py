"""What a step is made with: the objective and the optimiser, and the machinery around both."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from probe.train.parallel import dtensor

LEAST_SCALE = 1.0  # of fp16's losses: a gradient that overflows unscaled is too large by itself


class Engine:
    """One process, or several with the same weights."""

    parted = False  # does a process hold only a part? What is saved is then put together by all of them
    shows_gradients = True  # can they be looked at between backward pass and step?

    def __init__(
        self, accelerator: Any, objective: nn.Module, optimizer: Any, *, clip: float | None = None
    ) -> None:
        """`objective` and `optimizer` are bare, or as Accelerate prepared them."""
        self.accelerator, self.objective, self.clip = accelerator, objective, clip
        self.scaler = accelerator.scaler
        self.optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)
        self._members = [p for group in self.optimizer.param_groups for p in group["params"]]
        # Accelerate's wrapper steps with a scaler; it also looks for absent libraries on the disk every time.
        self._step = self.optimizer.step if self.scaler is None else optimizer.step

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is trained; after a backward pass they hold gradients."""
        return self._members

    def forget(self) -> None:
        """No gradients."""
        for parameter in self._members:
            parameter.grad = None

    def alone(self, last: bool) -> AbstractContextManager[Any]:
        """Forward and backward of a micro-batch; processes add up their gradients at the last one."""
        return nullcontext() if last else self.accelerator.no_sync(self.objective)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def norm(self) -> float:
        """The parameters' gradient norms, added up: not finite where one gradient is not."""
        gradients = [p.grad for p in self._members if p.grad is not None]
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
            norm = self.norm()
        else:
            # torch's own: Accelerate's first compares lists of sharded parameters, which cannot be compared
            norm = float(dtensor.whole(torch.nn.utils.clip_grad_norm_(self._members, self.clip)))
        if not math.isfinite(norm) and (self.scaler is None or self.scaler.get_scale() < LEAST_SCALE):
            return norm
        self._step()
        return 0.0

    def memory(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The optimiser's memory, whole: tensors `<parameter>.<name>`, and plain numbers."""
        tensors, numbers = {}, {}
        for parameter, memory in self.optimizer.state_dict()["state"].items():
            for name, value in memory.items():
                key = f"{parameter}.{name}"
                if isinstance(value, Tensor):
                    tensors[key] = dtensor.whole(value.detach()).cpu()
                elif value is not None:
                    numbers[key] = value
        return tensors, numbers

    def remember(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """The inverse of `memory`."""
        memory: dict[int, dict[str, Any]] = {}
        for key, value in {**tensors, **numbers}.items():
            number, _, name = key.partition(".")
            of = self._members[int(number)]
            if isinstance(value, Tensor) and value.shape == of.shape:  # not a count of steps
                value = dtensor.like(of, value)
            memory.setdefault(int(number), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": memory, "param_groups": groups})

    def weights_changed(self) -> None:
        """Somebody else than `step` has put weights into the network."""

    def close(self) -> None:
        """Nothing will be trained any more."""


class Sharded(Engine):
    """Every process has a part of every weight (FSDP)."""

    parted = True

    def alone(self, last: bool) -> AbstractContextManager[Any]:
        self.objective.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def norm(self) -> float:
        gradients = [p.grad for p in self._members if p.grad is not None]
        return float(dtensor.whole(torch.nn.utils.get_total_norm(gradients)))  # of every process's part
