"""A trained head becomes plain tensors (`probe.heads.fitted.FittedHead`)."""

from __future__ import annotations

from probe.core.scaling import NEUTRAL, Scaling
from probe.heads.fitted import FittedHead
from probe.heads.modules import Head


def fitted(head: Head, scaling: Scaling = NEUTRAL) -> FittedHead:
    """`head`, as copies of its tensors on the CPU, for features that `scaling` is applied to first."""
    plain = head.plain()
    tensors = {name: t.detach().cpu().clone() for name, t in plain.tensors.items()}
    return FittedHead(plain.kind, tensors, plain.settings, scaling)
