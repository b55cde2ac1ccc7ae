"""A trained head becomes plain tensors (`probe.heads.fitted.FittedHead`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from probe.core.scaling import NEUTRAL, Scaling
from probe.heads import ETF, Adapter, Cosine, Linear
from probe.heads.fitted import FittedHead
from probe.train.model.network import OwnHead


def fitted(head: Any, scaling: Scaling = NEUTRAL) -> FittedHead:
    """`head` on features that `scaling` is applied to first."""
    kind, tensors, settings = _parts(head)
    tensors = {name: t.detach().cpu().clone() for name, t in tensors.items()}
    return FittedHead(kind, tensors, settings, scaling)


def _parts(head: Any) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    if isinstance(head, Linear):
        bias = head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias
        return "linear", {"weight": head.weight, "bias": bias}, {}
    if isinstance(head, (Cosine, ETF)):
        return "cosine", {"weight": head.weight}, {"scale": float(head.scale)}
    if isinstance(head, OwnHead):
        return _gaussian(head.loss)
    assert isinstance(head, Adapter)
    kind, tensors, settings = _parts(head.head)
    inner = {name: t for name, t in head.named_parameters() if name.startswith(("down.", "up."))}
    return "adapter", {**tensors, **inner}, {**settings, "head": kind}


def _gaussian(loss: Any) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """LGM's Gaussians: with one variance the distances are linear in h, up to what all classes share."""
    if loss.log_variance is None:
        return "linear", {"weight": loss.centres, "bias": -loss.centres.square().sum(1) / 2}, {}
    return "gaussian", {"centres": loss.centres, "log_variance": loss.log_variance}, {}
