"""A trained head becomes plain tensors (`probe.heads.fitted.FittedHead`), and these a layer again."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from probe.core.scaling import NEUTRAL, Scaling
from probe.heads.fitted import SCORES, FittedHead
from probe.heads.modules import Head


def fitted(head: Head, scaling: Scaling = NEUTRAL) -> FittedHead:
    """`head`, as copies of its tensors on the CPU, for features that `scaling` is applied to first."""
    plain = head.plain()
    tensors = {name: t.detach().cpu().clone() for name, t in plain.tensors.items()}
    return FittedHead(plain.kind, tensors, plain.settings, scaling)


def unconditioned(head: FittedHead, conditioning: Scaling) -> FittedHead:
    """A linear head, or an adapter in front of one, that was trained on (h - m)/s, with one number s for all
    dimensions, as the same function of h."""
    if conditioning.mean is None or conditioning.spread is None:
        return head
    undo = _adapter if head.kind == "adapter" else _linear
    return replace(head, tensors=undo(head.tensors, conditioning.mean, conditioning.spread))


def _linear(tensors: dict[str, Tensor], mean: Tensor, spread: Tensor) -> dict[str, Tensor]:
    """W (h - m)/s + b  =  (W/s) h + (b - W m/s)."""
    weight = tensors["weight"] / spread
    return {"weight": weight, "bias": tensors["bias"] - weight @ mean}


def _adapter(tensors: dict[str, Tensor], mean: Tensor, spread: Tensor) -> dict[str, Tensor]:
    """(h - m)/s + B relu(A (h - m)/s + a) + b  =  (h + s B relu((A/s) h + (a - A m/s)) + s b - m)/s, and what
    stands behind it takes the last step: a linear head as above, a whitening with its own mean."""
    size = spread[0]
    down = tensors["down.weight"] / size
    made = {
        **tensors,
        "down.weight": down,
        "down.bias": tensors["down.bias"] - down @ mean,
        "up.weight": size * tensors["up.weight"],
        "up.bias": size * tensors["up.bias"],
    }
    if "bias" in tensors:
        return made | _linear(tensors, mean, spread)
    return made | {
        "whitening.mean": mean + size * tensors["whitening.mean"],
        "whitening.matrix": tensors["whitening.matrix"] / size,
    }


def as_linear(head: FittedHead) -> tuple[Tensor, Tensor] | None:
    """W (K x D) and b (K) of the one linear layer on unscaled features that `head` is; None if it is not one.

    W (h - m)/s + b, with a spread for each dimension, is folded in float64.
    """
    if head.kind != "linear" or head.scaling.unit_norm:
        return None
    tensors = {name: head.tensors[name].double() for name in ("weight", "bias")}
    if head.scaling.mean is not None and head.scaling.spread is not None:
        tensors = _linear(tensors, head.scaling.mean.double(), head.scaling.spread.double())
    return tensors["weight"].float(), tensors["bias"].float()


class HeadLayer(nn.Module):
    """A fitted head as a module of float32 buffers: N x D unscaled features to N x K scores."""

    def __init__(self, head: FittedHead) -> None:
        super().__init__()
        linear = as_linear(head)
        if linear is not None:
            head = FittedHead("linear", dict(zip(("weight", "bias"), linear, strict=True)))
        self.kind, self.settings, self.unit_norm = head.kind, head.settings, head.scaling.unit_norm
        scaling = {"mean": head.scaling.mean, "spread": head.scaling.spread}
        self.own, self.scaled = tuple(head.tensors), head.scaling.mean is not None
        for name, tensor in (*head.tensors.items(), *((n, t) for n, t in scaling.items() if t is not None)):
            self.register_buffer(_buffer(name), tensor.float() if tensor.is_floating_point() else tensor)

    def forward(self, features: Tensor) -> Tensor:
        tensors = {name: getattr(self, _buffer(name)) for name in self.own}
        mean, spread = (getattr(self, name) if self.scaled else None for name in ("mean", "spread"))
        head = FittedHead(self.kind, tensors, self.settings)
        return SCORES[self.kind](head, Scaling(mean, spread, self.unit_norm)(features))


def _buffer(name: str) -> str:
    """A module's names hold no dots."""
    return name.replace(".", "_")
