"""Training methods: any loss, and what is more than a loss. Importing this package does not import torch.

>>> method = probe.methods.make("sam(mr2, rho=0.1)", {}, num_classes=37, class_counts=counts)

Adding one: a class that overrides some answers of `base.Method`, and a row: of `catalogue.METHODS` here, from
another package by `register` or by an entry point (`backbones.plugins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe import losses
from probe.losses.spec import FEATURE_SIZE, Parameter
from probe.methods import catalogue
from probe.methods.catalogue import MethodSpec, info, inner, names, register, specs
from probe.recipe import grammar

if TYPE_CHECKING:
    from probe.core.class_stats import ClassStats
    from probe.losses.base import Loss
    from probe.methods.base import Method

__all__ = [
    "MethodSpec",
    "Parameter",
    "around",
    "catalogue",
    "class_of",
    "info",
    "inner",
    "make",
    "names",
    "register",
    "specs",
]


def make(
    name: str,
    params: Mapping[str, Any],
    *,
    num_classes: int,
    class_counts: Any = None,
    stats: ClassStats | None = None,
    dim: int | None = None,
    whole_set: bool = False,
    scratch: bool = False,
    group_counts: Any = None,
) -> Method:
    """The method of that name around its loss.

    `class_counts` are the K training counts, `stats` exact class statistics, both for losses that use them;
    `dim` is the feature size D, for losses with parameters of their own. `whole_set`: the loss has its
    defaults for statistics of the whole training set, which a training gives it (`Method.prepare`).
    `scratch`: it has those for networks from scratch. `group_counts` are those of groups that are not the
    classes, for a loss that acts on them.
    """
    name, params = _taken_apart(name, params)
    _, (loss_name, given) = catalogue.given_to(name, params)
    loss_params = losses.info(loss_name).resolve(given, whole_set=whole_set, scratch=scratch)
    if (wanted := losses.info(loss_name).unfilled(FEATURE_SIZE, loss_params)) is not None:
        loss_params[wanted] = dim
    loss = losses.make(
        loss_name,
        num_classes=num_classes,
        class_counts=class_counts,
        stats=stats,
        group_counts=group_counts,
        **loss_params,
    )
    return around(loss, name, params, class_counts=class_counts)


def _taken_apart(name: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of `sam(mr2, rho=0.1)`."""
    content = grammar.understood({"name": name, **params})
    return content.pop("name"), content


def around(loss: Loss, name: str, params: Mapping[str, Any], *, class_counts: Any = None) -> Method:
    """The method `name` with a loss that exists already."""
    own, _ = catalogue.resolve(name, params)
    if not catalogue.wraps(name):
        return class_of(name)(loss)
    if "counts" in info(name).needs:
        own["counts"] = class_counts
    return class_of(name)(loss, **own)


def class_of(name: str) -> type[Method]:
    """What a method is made by; a loss by itself is a plain `Method`."""
    from probe.methods.base import Method

    spec = info(name)
    if not catalogue.wraps(name):
        return Method
    built_in = catalogue.is_built_in(spec)
    return spec.load("probe.methods") if built_in else spec.load_from_outside("method", Method)
