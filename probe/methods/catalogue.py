"""The table of methods that are more than a loss: a stage, a sampler, an optimiser that steps twice.

Each wraps a loss, `erm` unless the recipe names another: `method: sam(mr2, rho=0.1)`, or with parameters
`sam(mr2(lam=0.05))` (`probe.methods.grammar`). No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe import losses
from probe.errors import UserError, nearest
from probe.losses.spec import LossSpec, Parameter

INNER = "loss"  # the key of the loss inside
LOSS = Parameter(INNER, "erm", "the loss inside: a name, or a mapping with its parameters")

METHODS: tuple[LossSpec, ...] = (
    LossSpec(
        "sam",
        "sharpness-aware minimisation",
        "Foret et al., Sharpness-Aware Minimization, ICLR 2021",
        "sam:SAM",
        (
            Parameter("rho", 0.05, "radius of the ball around the weights", 0),
            Parameter("adaptive", False, "scale the ball by the weights (ASAM, Kwon et al. 2021)"),
            LOSS,
        ),
        needs=("gradients",),
        why="acts as an optimiser: two gradients a step",
        balanced="unchanged: it uses no counts",
        soft_targets=True,
    ),
    LossSpec(
        "jtt",
        "just train twice",
        "Liu et al., Just Train Twice, ICML 2021",
        "jtt:JTT",
        (
            Parameter("first_epochs", 5, "epochs of the first stage, whose errors are counted", 1),
            Parameter("up", 5, "how often an error stands in an epoch of the second stage", 1),
            LOSS,
        ),
        why="two trainings in a row; without errors in the first the second is the plain one",
        balanced="unchanged: it uses errors, not counts",
        soft_targets=True,
    ),
    LossSpec(
        "drw",
        "deferred re-weighting",
        "Cao et al., Learning Imbalanced Datasets with LDAM Loss, NeurIPS 2019",
        "drw:DRW",
        (
            Parameter("after", 0.8, "part of the epochs that come before the weights", 0, 1),
            Parameter("beta", 0.9999, "effective-number rate of the weights", 0, 0.9999999),
            LOSS,
        ),
        needs=("counts",),
        why="a schedule; at the optimum of a convex probe only the last phase matters",
        balanced="exactly its inner loss",
        soft_targets=True,
    ),
)

_BY_NAME = {method.name: method for method in METHODS}


def names() -> list[str]:
    """Every method that `probe.methods.make` knows: these, and every loss."""
    return [*losses.names(), *_BY_NAME]


def info(name: str) -> LossSpec:
    """The row of one method, a loss or not."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if not losses.is_known(name):
        raise UserError(f'there is no method "{name}"{nearest(name, names())}')
    return losses.info(name)


def wraps(name: str) -> bool:
    """Is this a method around a loss, and none itself?"""
    return name in _BY_NAME


def resolve(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, dict[str, Any]]]:
    """The method's own parameters, and the name and parameters of the loss inside it."""
    if name not in _BY_NAME:
        info(name)
        if INNER in given:
            raise UserError(f"{name} is a loss and wraps none; those that wrap one: {', '.join(_BY_NAME)}")
        return {}, (name, losses.catalogue.resolve(name, dict(given)))
    own = _BY_NAME[name].resolve(given)
    return own, _loss_of(name, own.pop(INNER))


def _loss_of(method: str, given: Any) -> tuple[str, dict[str, Any]]:
    content = {"name": given} if isinstance(given, str) else given
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        raise UserError(f"{method}: loss must be a loss's name, or a mapping with its name and parameters")
    if content["name"] in _BY_NAME:
        hint = nearest(content["name"], losses.names())
        raise UserError(f"{method} wraps a loss, and {content['name']} is none{hint}")
    params = {key: value for key, value in content.items() if key != "name"}
    return content["name"], losses.catalogue.resolve(content["name"], params)


def inner(name: str, given: Mapping[str, Any]) -> LossSpec:
    """The row of the loss that is minimised: the method's own, or that of a loss by itself."""
    return losses.info(resolve(name, given)[1][0])
