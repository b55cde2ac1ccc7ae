"""DeepSpeed's ZeRO, stages 1 and 2: a process has all weights, and a part of the optimiser's state.

DeepSpeed concatenates the parameters of a group into one vector and gives each process a slice of it. Its own
checkpoints are one pickle per process; here the slices are joined by parameter, so that a checkpoint is the
same folder of whole tensors as without DeepSpeed.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from probe.errors import UserError
from probe.train.parallel import dtensor
from probe.train.parallel.deepspeed_config import NO_GRADIENTS
from probe.train.parallel.engine import Engine

if TYPE_CHECKING:
    from accelerate import Accelerator

BUCKET = 500_000_000  # numbers that DeepSpeed reserves memory for, however small the network


class Zero(Engine):
    """Steps by DeepSpeed's engine."""

    partitioned = True
    exposes_gradients = False

    def __init__(
        self,
        accelerator: Accelerator,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        clip: float | None,
        zero: dict[str, Any],
        unused: Sequence[bool],  # by parameter: without a gradient, so that DeepSpeed must not decay it
    ) -> None:
        super().__init__(accelerator, objective, optimizer, clip=clip)
        self._own = [set(vars(parameter)) for parameter in self._parameters]
        self._number = {parameter: number for number, parameter in enumerate(self._parameters)}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if not unused[self._number[p]]]
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        bucket = min(BUCKET, sum(p.numel() for p in self._parameters))
        config = {
            "train_micro_batch_size_per_gpu": 1,  # never used: the sampler cuts the batches
            "gradient_clipping": clip or 0.0,
            "zero_optimization": {"reduce_bucket_size": bucket, **zero},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**12,
        }
        dtensor.agree(objective, accelerator.device)  # DeepSpeed sends parameters, and no buffers
        self._deepspeed = _quietly_made(objective, optimizer, config)
        self.objective = self._deepspeed

    @property
    def parameters(self) -> list[nn.Parameter]:
        raise UserError(NO_GRADIENTS)

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        self._deepspeed.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def zero_grad(self) -> None:
        """DeepSpeed drops gradients at every step."""

    def backward(self, loss: Tensor) -> None:
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def update(self) -> float:
        self._deepspeed.step()  # looks at the gradient's norm first
        return float("nan") if self._deepspeed.optimizer.overflow else 0.0  # it has then skipped the step

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = {}, {}
        for part, number, parameter in self._slices():
            for name, value in self.optimizer.state[part].items():
                key = f"{number}.{name}"
                if not isinstance(value, Tensor):
                    numbers[key] = value
                elif value.shape == part.shape:
                    tensors[key] = _joined(parameter, value)
                else:  # a count of steps
                    tensors[key] = value.detach().cpu().clone()
        return tensors, {key: value for key, value in numbers.items() if value is not None}

    def load_optimizer_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self.optimizer.state.clear()
        kept: dict[int, dict[str, Any]] = {}
        for key, value in {**tensors, **numbers}.items():
            owner, _, name = key.partition(".")
            kept.setdefault(int(owner), {})[name] = value
        for part, number, parameter in self._slices():
            state = self.optimizer.state[part]
            for name, value in kept.get(number, {}).items():
                if not isinstance(value, Tensor):
                    state[name] = value
                elif value.shape == parameter.shape and name != "step":
                    _cut(parameter, value, into=state.setdefault(name, torch.zeros_like(part)))
                else:
                    state[name] = value.to(part.device, copy=True)

    def weights_changed(self) -> None:
        self._deepspeed.optimizer.refresh_fp32_params()

    def close(self) -> None:
        """Weights become separate tensors again, without the attributes that DeepSpeed attached."""
        self._deepspeed.destroy()
        for parameter, own in zip(self._parameters, self._own, strict=True):
            parameter.data = parameter.data.clone()
            for name in vars(parameter).keys() - own:
                delattr(parameter, name)
        del self._deepspeed, self.objective
        gc.collect()  # reference cycles hold memory that the next training needs

    def _slices(self) -> Iterator[tuple[Tensor, int, nn.Parameter]]:
        """(this process's slice of the group's vector, the parameter's number, the parameter)."""
        for group, members in zip(self.optimizer.param_groups, self._groups, strict=True):
            (part,) = group["params"]
            for parameter in members:
                yield part, self._number[parameter], parameter


def _quietly_made(objective: nn.Module, optimizer: Optimizer, config: dict[str, Any]) -> Any:
    """DeepSpeed's engine, in the process group that exists already."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # On a CPU it would compile its own communication between processes; gloo will do.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor", category=FutureWarning)
    return deepspeed.initialize(
        model=objective, optimizer=optimizer, config=config, dist_init_required=False
    )[0]


def _span(parameter: nn.Parameter) -> tuple[slice, slice] | None:
    """Which of the parameter's numbers are in this process's slice, and where; None: none of them."""
    address = parameter._hp_mapping  # type: ignore[attr-defined]
    if address is None:
        return None
    ours, theirs = address.lp_fragment_address, address.hp_fragment_address
    return slice(ours.start, ours.start + ours.numel), slice(theirs.start, theirs.start + theirs.numel)


def _joined(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """The parameter's state, of which every process has a slice."""
    whole = torch.zeros(parameter.numel(), dtype=value.dtype, device=value.device)
    if (span := _span(parameter)) is not None:
        whole[span[0]] = value[span[1]]
    dist.all_reduce(whole.view(torch.int32))  # all others add zero bits: the sum is exact
    return whole.view(parameter.shape).cpu()


def _cut(parameter: nn.Parameter, value: Tensor, *, into: Tensor) -> None:
    if (span := _span(parameter)) is not None:
        into[span[1]] = value.flatten()[span[0]].to(into.device)
