"""How much memory a fine-tuning needs on each device, estimated without one: a rehearsal on meta tensors.

Weights, gradients and what the optimiser keeps are counted. What a forward pass keeps for the backward pass
is counted too, tensor by tensor, by passing a batch of shapes without values through a copy of the network.
Work space of kernels and fragmentation come on top.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

META = torch.device("meta")
STATES = {"sgd": 1, "adamw": 2}  # values that an optimiser keeps for each trained weight
GB = 1e9


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on each device, by what they hold."""

    images: int  # in one forward pass
    weights: int  # of the network, and of their average where there is one
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimizer", "activations")
        told = ", ".join(f"{getattr(self, part) / GB:.2f} {part}" for part in parts)
        return f"fine-tuning needs about {self.total / GB:.1f} GB with {self.images} images at a time: {told}"


def estimate(
    network: nn.Module, images: int, size: int, *, optimizer: str, average: bool = False, half: bool = False
) -> MemoryEstimate:
    """What a training step of `network` holds at most, for so many images of size x size pixels.

    `average`: of weights, kept beside them; `half`: activations in a 16-bit precision. Nothing of the network
    is changed, and no device is touched.
    """
    shadow = deepcopy(network).to(META).train()
    weights = _bytes(shadow.state_dict().values())
    trained = _bytes(p for p in shadow.parameters() if p.requires_grad)
    return MemoryEstimate(
        images,
        weights=weights * (2 if average else 1),
        gradients=trained,
        optimizer=trained * STATES.get(optimizer, max(STATES.values())),
        activations=kept_for_backward(shadow, torch.empty(images, 3, size, size, device=META))
        // (2 if half else 1),
    )


def kept_for_backward(network: nn.Module, inputs: Tensor) -> int:
    """Bytes that a forward pass keeps, each storage once; weights, which are there anyway, do not count."""
    own = {_storage(t) for t in (*network.parameters(), *network.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        if _storage(x) not in own:
            kept[_storage(x)] = x  # held, so that no other storage takes its place
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = network(inputs)
    total = sum(x.untyped_storage().nbytes() for x in kept.values())
    del out
    return total


def _bytes(tensors: object) -> int:
    return sum(t.nbytes for t in tensors)  # type: ignore[attr-defined]


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata
