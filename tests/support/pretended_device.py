"""A CUDA device that computes: tensors say that they are on "cuda:0" and have their numbers on the CPU.

`tests.support.fake_device` has no numbers, so that it cannot follow code that looks at them. Here a whole
training runs, with every decision that numbers make, and ends with the bits of the same training on the CPU.
Operations on tensors of two devices raise as they do on a GPU: what CUDA takes from the CPU is a tensor of no
dimensions, a source to copy from, and row numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from probe.system import devices
from probe.train.parallel import accelerator
from tests.support.fake_device import DEVICE, cuda_guard

aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._to_copy.default)
JOINS = (aten.cat.default, aten.stack.default)  # take no number from the CPU, as arithmetic does
BY_ROWS = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)


class OnDevice(Tensor):
    """A tensor of the device; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, **options: Any) -> str:
        return f"OnDevice({self.held})"

    def tolist(self) -> Any:
        return self.held.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    """Sees operations without tensors too: those that make some."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation's result, on the device that a GPU would have it on."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    here = any(isinstance(x, OnDevice) for x in tensors)
    if here:
        _refuse_two_devices(func, args, tensors)
    wanted = kwargs.get("device")
    on_device = here if wanted is None else torch.device(wanted).type == DEVICE.type
    if func is aten.copy_.default:
        on_device = isinstance(args[0], OnDevice)
    plain_args, plain = tree_map_only(OnDevice, lambda x: x.held, (args, kwargs))
    if wanted is not None:
        plain["device"] = torch.device("cpu")
    found = func(*plain_args, **plain)
    if not on_device:
        return found
    return return_and_correct_aliasing(func, args, kwargs, tree_map_only(Tensor, OnDevice, found))


def _refuse_two_devices(func: Any, args: Any, tensors: list[Tensor]) -> None:
    if func in COPIES:
        return
    if func in BY_ROWS and isinstance(args[0], OnDevice):
        tensors = [args[0], *(x for x in args[2:] if isinstance(x, Tensor))]
    least = 0 if func in JOINS else 1
    if any(not isinstance(x, OnDevice) and x.dim() >= least for x in tensors):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu")


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Inside, "cuda:0" is a device that can be used like any other."""
    lifts = torch._C._only_lift_cpu_tensors()
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` then goes through the mode
    torch.__future__.set_swap_module_params_on_conversion(True)  # of another class: their data cannot be set
    try:
        with cuda_guard(), patch.object(torch.cuda, "_lazy_init", lambda: None), _Everywhere():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)
        torch.__future__.set_swap_module_params_on_conversion(swaps)


@contextmanager
def training_there() -> Iterator[torch.device]:
    """Inside, trainings are on the pretended device, whatever device they ask for."""
    from accelerate.state import AcceleratorState, PartialState

    def made(**options: Any) -> Any:
        found = accelerate_on(**{**options, "cpu": True})
        for state in (PartialState, AcceleratorState):
            state._shared_state["device"] = DEVICE
        return found

    accelerate_on = accelerator._made
    with (
        pretended_device(),
        patch.object(accelerator, "_made", made),
        patch.object(devices, "chosen", lambda *asked: DEVICE),
        patch.object(torch.cuda, "set_device", lambda device: None),
        patch.object(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30)),
    ):
        try:
            yield DEVICE
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
