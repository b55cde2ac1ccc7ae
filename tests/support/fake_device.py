"""A second device without a GPU: shapes and devices are right, values are not there, and an operation on
tensors of two devices raises. So every tensor that is created without a device, or forgotten when a module
moves, is found on any machine.

Control flow that depends on values is answered as follows: a number read from the device is 1, every mask is
true everywhere, every class is another one.

There are two of them. A torch without CUDA cannot index fake "cuda" tensors for want of a device guard;
inside `fake_device("cuda")` the guard of "meta", which does nothing, stands in for it, and everything but a
backward pass works: that asks for a real accelerator. Gradients are therefore taken on "meta".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from backbones import preprocess

DEVICE, CUDA = torch.device("meta"), torch.device("cuda", 0)
aten = torch.ops.aten


def _number(x: Tensor) -> float | int | bool:
    return {torch.bool: True}.get(x.dtype, 1.0 if x.is_floating_point() else 1)


def _everywhere(x: Tensor) -> Tensor:
    return torch.empty(x.numel(), x.ndim, dtype=torch.int64, device=x.device)


def _indexed(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """x[indices], each mask written as the positions where it is true."""
    places: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype is torch.bool:
            places.extend(_everywhere(index).unbind(1))
        else:
            places.append(index)
    return aten.index.Tensor(x, places)


class FakeDevice(FakeTensorMode):
    """FakeTensorMode with answers to what would need values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            if func is aten._local_scalar_dense.default:
                return _number(args[0])
            if func is aten.nonzero.default:
                return _everywhere(args[0])
            if func is aten.masked_select.default:
                return args[0].new_empty(args[0].numel())
            if func is aten.repeat_interleave.Tensor:
                return args[0].new_empty(len(args[0]))
            if func is aten.bincount.default:
                return args[0].new_empty(kwargs.get("minlength", args[2] if len(args) > 2 else 0))
            if func is aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1]):
                return _indexed(*args)
            if func is aten._unique2.default:
                x = args[0]
                return x.new_empty(x.numel()), x.new_empty(x.shape).long(), x.new_empty(x.numel()).long()
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Give "cuda" the device guard of "meta" where this torch has none (c10/core/impl)."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # of c10::DeviceType
    before = registry[cuda]
    registry[cuda] = before or registry[meta]
    try:
        yield
    finally:
        registry[cuda] = before


@contextmanager
def fake_device(kind: str = "meta") -> Iterator[FakeDevice]:
    """Inside, `sent` makes fake tensors and every operation is checked; real tensors count as the CPU's."""
    preprocess._affine.cache_clear()  # remembers tensors by device
    mode = FakeDevice(allow_non_fake_inputs=True)
    mode.allow_meta = True
    # autocast does not know this device
    autocast = patch.object(torch, "autocast", lambda kind, *args, **options: nullcontext())
    with cuda_guard() if kind == "cuda" else nullcontext(), autocast, mode:
        yield mode
    preprocess._affine.cache_clear()


def sent(x: Tensor, mode: FakeTensorMode, device: torch.device = DEVICE) -> Tensor:
    """A tensor as it would be on the device, without its values."""
    if isinstance(x, nn.Parameter):
        return nn.Parameter(sent(x.detach(), mode, device), requires_grad=x.requires_grad)
    fake = x if isinstance(x, FakeTensor) else mode.from_tensor(x)
    return fake.to(device)


def moved(module: nn.Module, mode: FakeTensorMode, device: torch.device = DEVICE) -> nn.Module:
    """The module after `.to(device)`: its parameters and buffers, and nothing else, are on the device."""
    shared: dict[int, Tensor] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, x in held.items():
                if x is not None:
                    held[name] = shared.setdefault(id(x), sent(x, mode, device))  # type: ignore[assignment]
    return module
