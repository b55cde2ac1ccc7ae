"""Losses for classes of unequal difficulty and size, each usable alone in any training code.

>>> loss = probe.losses.make("mr2", num_classes=37)
>>> loss(logits, targets, features).backward()

Each takes N x K logits (or cosines: `info(name).takes`), N targets and N x D features where it needs them,
and returns the mean over the batch of all processes. Importing this package does not import torch.
`probe.losses.functional` has the terms of methods that are more than a loss, on plain tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probe.losses import catalogue
from probe.losses.catalogue import info, is_known, names, register, specs
from probe.losses.spec import LossSpec, Parameter

if TYPE_CHECKING:
    from probe.core.class_stats import ClassStats
    from probe.losses.base import Loss

__all__ = [
    "LossSpec",
    "Parameter",
    "catalogue",
    "info",
    "is_known",
    "make",
    "names",
    "register",
    "specs",
]


def make(
    name: str,
    *,
    num_classes: int,
    class_counts: Any = None,
    stats: ClassStats | None = None,
    group_counts: Any = None,
    **params: Any,
) -> Loss:
    """The loss of that name; unknown names and parameters are errors that list the nearest ones.

    `class_counts` are the K training counts, for losses that need them. `stats` are exact class statistics
    of the training features, for losses that use them; they are then constants. `group_counts` are the
    training counts of G groups that are not the classes: a loss that can acts on those instead, and is told
    those of each batch (`see_groups`).

    >>> make("la", num_classes=3, class_counts=[500, 50, 5], tau=1.5)
    """
    spec = info(name)
    resolved = spec.resolve(params)

    from probe.losses.base import ClassInfo

    classes = ClassInfo.of(spec, num_classes, class_counts, stats)
    if group_counts is not None:
        catalogue.check_groups(name)
        classes = classes.grouped(group_counts)
    return _class_of(spec)(classes, **resolved)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """`functional` needs torch, and this package does not."""
        if name == "functional":
            return import_module("probe.losses.functional")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _class_of(spec: LossSpec) -> type[Loss]:
    """The class of a row; one from outside is checked, because its row may name anything."""
    if catalogue.is_built_in(spec):
        return spec.load("probe.losses")

    from probe.losses.base import Loss

    return spec.load_from_outside("loss", Loss)
