"""A tensor may be a shard: FSDP leaves each process a part of every parameter (a torch `DTensor`)."""

from __future__ import annotations

from torch import Tensor


def sharded(tensor: Tensor) -> bool:
    """Does each process hold only a part of it?"""
    return hasattr(tensor, "full_tensor")  # a DTensor, without importing what makes them


def like(other: Tensor, value: Tensor) -> Tensor:
    """`value`, which every process holds whole, split as `other` is."""
    if not sharded(other) or sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    # No process sends: each cuts its own part out of the whole that it has.
    mesh, device = other.device_mesh, other.device  # type: ignore[attr-defined]
    return distribute_tensor(value.to(device), mesh, other.placements, src_data_rank=None)  # type: ignore[attr-defined]
