"""Networks that methods build beside the trained one: projections, and copies that follow it slowly."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from probe.core import collectives
from probe.errors import UserError
from probe.methods.protocols import NetworkLike


class Projection(nn.Sequential):
    """D -> hidden -> out, with a ReLU after each hidden layer, and a batch-norm before it unless `norm` is
    false.

    Its batch-norm learns where that of a pretrained encoder is frozen: it has no statistics to keep.
    """

    def __init__(self, dim: int, hidden: int, out: int, *, layers: int = 1, norm: bool = True) -> None:
        modules: list[nn.Module] = []
        for width in (dim, *[hidden] * (layers - 1)):
            modules += [nn.Linear(width, hidden), *([nn.BatchNorm1d(hidden)] if norm else []), nn.ReLU()]
        super().__init__(*modules, nn.Linear(hidden, out))


class MomentumCopy(nn.Module):
    """A copy of the network and of a projection behind it, whose weights follow theirs after every step:
    copy <- m copy + (1 - m) weights.

    m starts small and is `momentum` from about step 9 / (1 - momentum) on, so that the copy of a short
    training is not its start. The copy is not trained, and saved with the method. Its batch-norms have their
    own statistics.
    """

    network: Any  # a `NetworkLike` that is a module
    steps: Tensor  # 1 number: how often it has followed

    def __init__(self, network: NetworkLike, projection: nn.Module, momentum: float) -> None:
        super().__init__()
        self.network, self.projection = deepcopy(network), deepcopy(projection)
        self.requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        """n x out projections, constants."""
        return self.projection(self.network.parts(inputs, "logits")[1])

    @torch.no_grad()
    def follow(self, network: NetworkLike, projection: nn.Module) -> None:
        """Move towards their weights; of sharded ones each process moves its own shard."""
        step = int(self.steps)
        momentum = min(self.momentum, (1 + step) / (10 + step))
        self.steps = self.steps + 1
        for own, others in ((self.network, network), (self.projection, projection)):
            for copy, other in zip(own.parameters(), others.parameters(), strict=True):
                copy.lerp_(other, 1 - momentum)


def joined(views: Sequence[Tensor]) -> Tensor:
    """The rows of all views, view after view: one pass for all of them."""
    return views[0] if len(views) == 1 else torch.cat(list(views))


def gather_views(views: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows of every process, of tensors with one row per sample and view, view after view: the order that
    one process would have."""
    if collectives.processes() == 1:
        return tensors
    parts = [collectives.gather(*same) for same in zip(*(t.chunk(views) for t in tensors), strict=True)]
    return tuple(torch.cat(same) for same in zip(*parts, strict=True))


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
