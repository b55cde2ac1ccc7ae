"""DeepSpeed's ZeRO, stages 1 and 2: a process has all weights, and a part of what the optimiser remembers.

DeepSpeed lays the parameters of a group end to end in one vector and gives each process a stretch of it.
Its own checkpoints are pickles by process; here its memory is put together by parameter, so that a checkpoint
is the same folder of whole tensors as without it.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from probe.errors import UserError
from probe.train.parallel import dtensor
from probe.train.parallel.deepspeed_config import NO_GRADIENTS
from probe.train.parallel.engine import Engine

BUCKET = 500_000_000  # numbers for which DeepSpeed sets aside memory, however small the network


class Zero(Engine):
    """Steps by DeepSpeed's engine."""

    parted = True
    shows_gradients = False

    def __init__(
        self,
        accelerator: Any,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        clip: float | None,
        zero: dict[str, Any],
        idle: Sequence[bool],  # parameters without gradient: DeepSpeed would decay them
    ) -> None:
        super().__init__(accelerator, objective, optimizer, clip=clip)
        self._own = [set(vars(parameter)) for parameter in self._members]
        self._number = {parameter: number for number, parameter in enumerate(self._members)}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if not idle[self._number[p]]]
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        room = min(BUCKET, sum(p.numel() for p in self._members))
        config = {
            "train_micro_batch_size_per_gpu": 1,  # the sampler knows better
            "gradient_clipping": clip or 0.0,
            "zero_optimization": {"reduce_bucket_size": room, **zero},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**12,
        }
        dtensor.agree(objective, accelerator.device)  # DeepSpeed sends parameters, and no buffers
        self._deepspeed = _quietly_made(objective, optimizer, config)
        self.objective = self._deepspeed

    @property
    def parameters(self) -> list[nn.Parameter]:
        raise UserError(NO_GRADIENTS)

    def alone(self, last: bool) -> AbstractContextManager[Any]:
        self._deepspeed.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def forget(self) -> None:
        """DeepSpeed drops gradients at every step."""

    def backward(self, loss: Tensor) -> None:
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def update(self) -> float:
        self._deepspeed.step()  # looks at the gradient's norm first
        return float("nan") if self._deepspeed.optimizer.overflow else 0.0  # it has then skipped the step

    def memory(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = {}, {}
        for stretch, number, parameter in self._stretches():
            for name, value in self.optimizer.state[stretch].items():
                key = f"{number}.{name}"
                if not isinstance(value, Tensor):
                    numbers[key] = value
                elif value.shape == stretch.shape:
                    tensors[key] = _joined(parameter, value)
                else:  # a count of steps
                    tensors[key] = value.detach().cpu().clone()
        return tensors, {key: value for key, value in numbers.items() if value is not None}

    def remember(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.optimizer.state.clear()
        kept: dict[int, dict[str, Any]] = {}
        for key, value in {**tensors, **numbers}.items():
            owner, _, name = key.partition(".")
            kept.setdefault(int(owner), {})[name] = value
        for stretch, number, parameter in self._stretches():
            memory = self.optimizer.state[stretch]
            for name, value in kept.get(number, {}).items():
                if not isinstance(value, Tensor):
                    memory[name] = value
                elif value.shape == parameter.shape and name != "step":
                    _cut(parameter, value, into=memory.setdefault(name, torch.zeros_like(stretch)))
                else:
                    memory[name] = value.to(stretch.device, copy=True)

    def weights_changed(self) -> None:
        self._deepspeed.optimizer.refresh_fp32_params()

    def close(self) -> None:
        """Weights become tensors of their own again, without what DeepSpeed tied to them."""
        self._deepspeed.destroy()
        for parameter, own in zip(self._members, self._own, strict=True):
            parameter.data = parameter.data.clone()
            for name in vars(parameter).keys() - own:
                delattr(parameter, name)
        del self._deepspeed, self.objective
        gc.collect()  # its parts hold on to each other, and to memory that the next training needs

    def _stretches(self) -> Iterator[tuple[Tensor, int, nn.Parameter]]:
        """(this process's stretch of the group, the parameter's number, the parameter)."""
        for group, members in zip(self.optimizer.param_groups, self._groups, strict=True):
            (stretch,) = group["params"]
            for parameter in members:
                yield stretch, self._number[parameter], parameter


def _quietly_made(objective: nn.Module, optimizer: Optimizer, config: dict[str, Any]) -> Any:
    """DeepSpeed's engine, in the world that is there already."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # On a CPU it would compile a way of its own to talk between processes; gloo is there.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor", category=FutureWarning)
    return deepspeed.initialize(
        model=objective, optimizer=optimizer, config=config, dist_init_required=False
    )[0]


def _span(parameter: nn.Parameter) -> tuple[slice, slice] | None:
    """Which of the parameter's numbers are in this process's stretch, and where; None: none of them."""
    address = parameter._hp_mapping  # type: ignore[attr-defined]
    if address is None:
        return None
    ours, theirs = address.lp_fragment_address, address.hp_fragment_address
    return slice(ours.start, ours.start + ours.numel), slice(theirs.start, theirs.start + theirs.numel)


def _joined(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """The parameter's part of a vector of which every process has a stretch."""
    whole = torch.zeros(parameter.numel(), dtype=value.dtype, device=value.device)
    if (span := _span(parameter)) is not None:
        whole[span[0]] = value[span[1]]
    dist.all_reduce(whole.view(torch.int32))  # the others add bits that are zero: it is the same to the bit
    return whole.view(parameter.shape).cpu()


def _cut(parameter: nn.Parameter, value: Tensor, *, into: Tensor) -> None:
    if (span := _span(parameter)) is not None:
        into[span[1]] = value.flatten()[span[0]].to(into.device)
