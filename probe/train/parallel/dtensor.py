"""A tensor may be a shard: FSDP leaves each process a part of every parameter (a torch `DTensor`).

All other modules use these functions and never test for it. What is copied into a sharded tensor may be
whole, what is kept or written is always whole, and elementwise operations (an average, a step) need no care.
Gathering the whole is collective: every process must do it, in the same order. A plain tensor costs one
attribute lookup.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from probe.core.shards import like, sharded


def whole(tensor: Tensor) -> Tensor:
    """The tensor of which each process may hold a part."""
    return tensor.full_tensor() if sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds."""
    return tensor.to_local() if sharded(tensor) else tensor  # type: ignore[attr-defined]


def put(into: Tensor, value: Tensor) -> None:
    """Copy `value`, whole or split alike, in place."""
    into.copy_(like(into, value))


def snapshot(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole copies on the CPU."""
    return {name: whole(t.detach()).to("cpu", copy=True) for name, t in state.items()}


def load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """`module.load_state_dict` of whole tensors."""
    own = module.state_dict()
    module.load_state_dict({name: like(own[name], t) if name in own else t for name, t in state.items()})


def free(module: nn.Module) -> None:
    """Let go of the whole weights that a sharded root keeps after a pass without gradients."""
    if hasattr(module, "reshard"):
        module.reshard()  # type: ignore[operator]


@torch.no_grad()
def agree(module: nn.Module, device: torch.device) -> None:
    """Give every process the weights of process 0: shards of different weights would not fit together."""
    for tensor in module.state_dict().values():
        sent = tensor.to(device)
        torch.distributed.broadcast(sent, 0)
        tensor.copy_(sent)
