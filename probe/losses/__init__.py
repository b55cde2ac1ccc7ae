"""Losses for classes of unequal difficulty and size, each usable alone in any training code.

>>> loss = probe.losses.make("mr2", num_classes=37)
>>> loss(logits, targets, features).backward()

Each takes N x K logits (or cosines: `info(name).takes`), N targets and N x D features where it needs them,
and returns the mean over the batch of all processes. Importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probe.losses import catalogue
from probe.losses.catalogue import info, names

if TYPE_CHECKING:
    from probe.core.class_stats import ClassStats
    from probe.losses.base import Loss

__all__ = ["catalogue", "info", "make", "names"]


def make(
    name: str,
    *,
    num_classes: int,
    class_counts: Any = None,
    stats: ClassStats | None = None,
    **params: Any,
) -> Loss:
    """The loss of that name; unknown names and parameters are errors that list the nearest ones.

    `class_counts` are the K training counts, for methods that need them. `stats` are exact class statistics
    of the training features, for methods that use some; they are then constants.

    >>> make("la", num_classes=3, class_counts=[500, 50, 5], tau=1.5)
    """
    method = info(name)
    resolved = catalogue.resolve(name, params)

    from probe.losses.base import ClassInfo

    problem = ClassInfo.of(method, num_classes, class_counts, stats)
    module, _, cls = method.implementation.partition(":")
    return getattr(import_module(f"probe.losses.{module}"), cls)(problem, **resolved)
