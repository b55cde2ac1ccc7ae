"""A trained head becomes plain tensors (`probe.heads.fitted.FittedHead`)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from probe.core.scaling import NEUTRAL, Scaling
from probe.heads.fitted import FittedHead
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
