"""Networks that methods build beside the trained one: projections, and copies that follow it slowly."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from probe.errors import UserError
from probe.methods.protocols import NetworkLike


class Projection(nn.Sequential):
    """D -> hidden -> out, with a ReLU between them, and a batch-norm before it unless `norm` is false.

    Its batch-norm learns where that of a pretrained encoder is frozen: it has no statistics to keep.
    """

    def __init__(self, dim: int, hidden: int, out: int, *, norm: bool = True) -> None:
        between = [nn.BatchNorm1d(hidden)] if norm else []
        super().__init__(nn.Linear(dim, hidden), *between, nn.ReLU(), nn.Linear(hidden, out))


class MomentumCopy(nn.Module):
    """A copy of the network and of a projection behind it, whose weights follow theirs after every step:
    copy <- m copy + (1 - m) weights.

    It is not trained, and saved with the method. Its batch-norms have their own statistics.
    """

    def __init__(self, network: NetworkLike, projection: nn.Module, momentum: float) -> None:
        super().__init__()
        self.network, self.projection = deepcopy(network), deepcopy(projection)
        self.requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        """n x out projections, constants."""
        return self.projection(self.network.parts(inputs, "logits")[1])

    @torch.no_grad()
    def follow(self, network: NetworkLike, projection: nn.Module) -> None:
        """Move towards their weights; of sharded ones each process moves its own shard."""
        for own, others in ((self.network, network), (self.projection, projection)):
            for copy, other in zip(own.parameters(), others.parameters(), strict=True):
                copy.lerp_(other, 1 - self.momentum)


def class_vectors(network: NetworkLike) -> Tensor:
    """The classifier's K x D weights, with their gradient."""
    tensors: dict[str, Tensor] = network.head.plain().tensors
    if "weight" not in tensors:
        raise UserError("this method needs a weight per class, and the loss's own head has none; use another")
    return tensors["weight"]


def twin(network: NetworkLike, *, fresh: bool) -> nn.Module:
    """A second network that is trained beside the first, with weights of its own.

    It begins with the same ones; `fresh`, for networks that begin at random, draws those of every layer that
    can be drawn again.
    """
    made: nn.Module = deepcopy(network)  # type: ignore[assignment]
    if fresh:
        for module in made.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return made
