"""A second device without a GPU: shapes and devices are right, values are not there, and an operation on
tensors of two devices raises. So every tensor that is created without a device, or forgotten when a module
moves, is found on any machine.

Control flow that depends on values is answered as follows: a number read from the device is 1, every mask is
true everywhere, every class is another one.

A torch without CUDA refuses to index and to differentiate fake "cuda" tensors: it has no device guard for
them, and its autograd engine asks for an accelerator and its streams. `cuda_guard` answers in their place,
so that gradients too are taken on "cuda", and hand-written backward passes are checked like all others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from backbones import preprocess

DEVICE = torch.device("cuda", 0)
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
            if func is aten.record_stream.default:
                return None
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


class _Guard(torch._C._acc.DeviceGuard):
    """A device guard of no device; torch's own class gives it one stream, number 0."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


@cache
def _guard(other: int) -> int:
    """The address of a device guard that does nothing. Torch would register it for "privateuseone"."""
    registry = _guards()
    before = registry[other]
    torch.ones(1, requires_grad=True).backward()  # the engine starts its threads once: before there is one
    torch._C._acc.register_python_privateuseone_device_guard(_Guard())
    made, registry[other] = registry[other], before
    assert made is not None
    return made


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _guards() -> Any:
    """The device guards of each c10::DeviceType (c10/core/impl/DeviceGuardImplInterface.h)."""
    return (ctypes.c_void_p * 21).in_dll(_library("libc10.so"), "_ZN3c104impl26device_guard_impl_registryE")


IS_BUILT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda hooks: True)
HAS_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda hooks, device: False)


@contextmanager
def _cuda_hooks() -> Iterator[None]:
    """Torch says that it is built for CUDA, and that no device has work to wait for.

    A copy of the hooks' table of virtual functions has two of them exchanged. Their places are those of
    ATen/detail/AcceleratorHooksInterface.h, after the two destructors; two words stand before the first.
    """
    get = _library("libtorch_cpu.so")._ZN2at6detail12getCUDAHooksEv
    get.restype = ctypes.c_void_p
    hooks = ctypes.cast(get(), ctypes.POINTER(ctypes.c_void_p))
    before, size = hooks[0], 64
    assert before is not None
    table = (ctypes.c_void_p * size)(*(ctypes.c_void_p * size).from_address(before - 16))
    for place, answer in ((2, IS_BUILT), (4, HAS_CONTEXT)):
        table[2 + place] = ctypes.cast(answer, ctypes.c_void_p).value
    hooks[0] = ctypes.addressof(table) + 16
    try:
        assert str(torch.accelerator.current_accelerator()) == "cuda"
        yield
    finally:
        hooks[0] = before


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Stand in for the device guard, the streams and the accelerator that a torch without CUDA lacks."""
    if torch.backends.cuda.is_built():
        yield
        return
    cuda, other = 1, 20  # of c10::DeviceType; streams of the guard belong to the other one
    registry = _guards()
    before = registry[cuda], registry[other]
    registry[cuda] = registry[other] = _guard(other)
    try:
        # on one thread: the engine has none for a device that was not there when it started
        with _cuda_hooks(), torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        registry[cuda], registry[other] = before


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Inside, `sent` makes fake tensors and every operation is checked; real tensors count as the CPU's."""
    preprocess._affine.cache_clear()  # remembers tensors by device
    mode = FakeDevice(allow_non_fake_inputs=True)
    with cuda_guard(), mode:
        yield mode
    preprocess._affine.cache_clear()


def sent(x: Tensor, mode: FakeTensorMode) -> Tensor:
    """A tensor as it would be on the device, without its values."""
    if isinstance(x, nn.Parameter):
        return nn.Parameter(sent(x.detach(), mode), requires_grad=x.requires_grad)
    fake = x if isinstance(x, FakeTensor) else mode.from_tensor(x)
    return fake.to(DEVICE)


def moved(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The module after `.to(device)`: its parameters and buffers, and nothing else, are on the device."""
    shared: dict[int, Tensor] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, x in held.items():
                if x is not None:
                    held[name] = shared.setdefault(id(x), sent(x, mode))  # type: ignore[assignment]
    return module
