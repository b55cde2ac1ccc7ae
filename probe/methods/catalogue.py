"""The table of methods that are more than a loss: a stage, a sampler, an optimiser that steps twice.

Each wraps a loss, `erm` unless the recipe names another: `method: sam(mr2, rho=0.1)`, or with parameters
`sam(mr2(lam=0.05))` (`probe.recipe.grammar`). Another package adds one by `register`, or by an entry point
of the group "mr2_probe.methods" that names a `MethodSpec`. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe import losses, plugins
from probe.errors import UserError, nearest
from probe.losses.spec import LossSpec, Parameter
from probe.methods.contrast_rows import CONTRAST_ROWS
from probe.methods.expert_rows import EXPERT_ROWS
from probe.methods.second_stage_rows import FIRST_STAGE, SECOND_STAGES
from probe.methods.spec import MethodSpec
from probe.recipe.grammar import INNER, parse

METHODS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "sam",
        "sharpness-aware minimisation",
        "Foret et al., Sharpness-Aware Minimization, ICLR 2021",
        "sam:SAM",
        (
            Parameter("rho", 0.05, "radius of the ball around the weights", 0),
            Parameter("adaptive", False, "scale the ball by the weights (ASAM, Kwon et al. 2021)"),
        ),
        needs=("gradients",),
        why="acts as an optimiser: two gradients per step",
        balanced="unchanged: it uses no counts",
        soft_targets=True,
    ),
    MethodSpec(
        "jtt",
        "just train twice",
        "Liu et al., Just Train Twice, ICML 2021",
        "jtt:JTT",
        (
            Parameter("first_epochs", 5, "epochs of the first stage, whose errors are counted", 1),
            Parameter("up", 5, "how often an error appears in an epoch of the second stage", 1),
            Parameter(
                "errors",
                "training",
                "exact solver: of the first stage on its own images, or on images held out from it",
                choices=("training", "crossfit"),
            ),
        ),
        frozen="exact",
        why="two solves in a row; without errors in the first the second is the plain one",
        balanced="unchanged: it uses errors, not counts",
        soft_targets=True,
    ),
    MethodSpec(
        "drw",
        "deferred re-weighting",
        "Cao et al., Learning Imbalanced Datasets with LDAM Loss, NeurIPS 2019",
        "drw:DRW",
        (
            Parameter("after", 0.8, "part of the epochs that come before the weights", 0, 1),
            Parameter("beta", 0.9999, "effective-number rate of the weights", 0, 0.9999999),
        ),
        needs=("counts",),
        why="a schedule; at the optimum of a convex probe only the last phase matters",
        balanced="exactly its inner loss",
        soft_targets=True,
    ),
    *SECOND_STAGES,
    *CONTRAST_ROWS,
    *EXPERT_ROWS,
)

_BUILT_IN = {spec.name: spec for spec in METHODS}
_ADDED: dict[str, MethodSpec] = {}  # registered, or found in another package


def register(spec: MethodSpec) -> None:
    """Add a method from outside.

    >>> register(MethodSpec("my-method", "a method of mine", "unpublished", MyMethod))
    """
    if spec.name in names():
        raise UserError(f'there is a method "{spec.name}" already; choose another name')
    _ADDED[spec.name] = spec


def specs() -> list[MethodSpec]:
    """Every method around a loss: built in, then registered, then from installed packages."""
    ours = {**_BUILT_IN, **_ADDED}
    taken = {*losses.names(), *ours}
    theirs = plugins.rows("methods", MethodSpec, [name for name in taken if name not in _ADDED])
    return [*ours.values(), *(spec for spec in theirs if spec.name not in ours)]


def names() -> list[str]:
    """Every name that `probe.methods.make` knows: losses, and methods around one."""
    return list(dict.fromkeys([*losses.names(), *_BUILT_IN, *_ADDED, *plugins.names("methods")]))


def _find(name: str) -> MethodSpec | None:
    """The row of a method around a loss; None for a loss, and where there is nothing of that name.

    Other packages are only looked at for a name that is not built in, neither here nor as a loss.
    """
    if name not in _BUILT_IN and name not in _ADDED and not losses.is_known(name):
        found = plugins.find("methods", name, MethodSpec)
        if found is not None:
            _ADDED[name] = found
    return _BUILT_IN.get(name) or _ADDED.get(name)


def info(name: str) -> LossSpec:
    """The row of one method, a loss or not."""
    found = _find(name)
    if found is not None:
        return found
    if not losses.is_known(name):
        raise UserError(f'there is no method "{name}"{nearest(name, names())}')
    return losses.info(name)


def wraps(name: str) -> bool:
    """Is this a method around a loss, and not a loss itself?"""
    return _find(name) is not None


def is_second_stage(name: str) -> bool:
    """Does it change a finished head, so that nothing is trained?"""
    spec = _find(name)
    return spec is not None and FIRST_STAGE in spec.needs


def is_built_in(spec: LossSpec) -> bool:
    """Is this a row of the table above, and not one from outside?"""
    return _BUILT_IN.get(spec.name) is spec


def resolve(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, dict[str, Any]]]:
    """The method's own parameters, and the name and parameters of the loss inside it.

    >>> resolve("drw", {"after": 0.7, "loss": "ldam"})
    ({'after': 0.7, 'beta': 0.9999}, ('ldam', {'max_margin': 0.5, 'scale': 30.0}))
    """
    own, (loss, params) = given_to(name, given)
    return own, (loss, losses.catalogue.resolve(loss, params))


def given_to(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, dict[str, Any]]]:
    """The same with only those parameters of the loss that are given: a loss's defaults depend on its use."""
    spec = _find(name)
    if spec is None:
        info(name)
        if INNER in given:
            wrapping = ", ".join([*_BUILT_IN, *_ADDED])
            raise UserError(f"{name} is a loss and wraps none; those that wrap one: {wrapping}")
        losses.catalogue.resolve(name, given)
        return {}, (name, dict(given))
    own = spec.resolve(given)
    return own, _loss_of(name, own.pop(INNER))


def versions(name: str, given: Mapping[str, Any]) -> dict[str, int]:
    """The version of the method and of the loss inside it, by name, where it is not the first one.

    What a name stood for when a run was stored is part of what that run was. Values do not matter here: they
    may be ranges.
    """
    inside = given.get(INNER, info(name).defaults.get(INNER)) if wraps(name) else None
    loss = inside.get("name") if isinstance(inside, Mapping) else inside and parse(inside)["name"]
    used = {key: info(key) for key in (name, loss) if key is not None}
    return {key: spec.version for key, spec in used.items() if spec.version != 1}


def _loss_of(method: str, given: Any) -> tuple[str, dict[str, Any]]:
    content = parse(given) if isinstance(given, str) else given
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        raise UserError(f"{method}: loss must be a loss's name, or a mapping with its name and parameters")
    if wraps(content["name"]):
        others = [name for name in losses.names() if not wraps(name)]  # supcon is a term, and a method too
        hint = nearest(content["name"], others)
        raise UserError(f"{method} wraps a loss, and {content['name']} is not a loss{hint}")
    params = {key: value for key, value in content.items() if key != "name"}
    losses.catalogue.resolve(content["name"], params)
    return content["name"], params


def inner(name: str, given: Mapping[str, Any]) -> LossSpec:
    """The row of the loss that is minimised: the method's own, or that of a loss by itself."""
    return losses.info(resolve(name, given)[1][0])
