"""Training methods: any loss, and what is more than a loss. Importing this package does not import torch.

>>> method = probe.methods.make("sam(mr2, rho=0.1)", {}, num_classes=37, class_counts=counts)

Adding one: a class that overrides some answers of `base.Method`, and a row of `catalogue.METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe import losses
from probe.losses.spec import FEATURE_SIZE
from probe.methods import catalogue, grammar
from probe.methods.catalogue import info, inner, names

if TYPE_CHECKING:
    from probe.methods.base import Method

__all__ = ["around", "catalogue", "grammar", "info", "inner", "make", "names"]


def make(
    name: str,
    params: Mapping[str, Any],
    *,
    num_classes: int,
    class_counts: Any = None,
    stats: Any = None,
    dim: int | None = None,
) -> Method:
    """The method of that name around its loss; `dim` is the feature size, for losses with parameters."""
    name, params = _taken_apart(name, params)
    _, (loss_name, loss_params) = catalogue.resolve(name, params)
    if (wanted := losses.info(loss_name).unfilled(FEATURE_SIZE, loss_params)) is not None:
        loss_params[wanted] = dim
    loss = losses.make(
        loss_name, num_classes=num_classes, class_counts=class_counts, stats=stats, **loss_params
    )
    return around(loss, name, params, class_counts=class_counts)


def _taken_apart(name: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`sam(mr2, rho=0.1)` as its name and its parameters."""
    content = grammar.understood({"name": name, **params})
    return content.pop("name"), content


def around(loss: Any, name: str, params: Mapping[str, Any], *, class_counts: Any = None) -> Method:
    """The method `name` with a loss that exists already."""
    own, (loss_name, _) = catalogue.resolve(name, params)
    if name == loss_name:
        from probe.methods.base import Method

        return Method(loss)
    row = info(name)
    if "counts" in row.needs:
        own["counts"] = class_counts
    return row.load("probe.methods")(loss, **own)
