"""What `probe improve` tries: levers, each a change of the recipe, from cheap to dear. No torch here.

A lever is applied to whatever has been kept so far. Levers of a loss cost a few solves on cached features,
levers of features one more pass over the images, levers of training a training for every fold that judges
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import backbones
from backbones.sources import Package
from probe.recipe import Recipe, build

Content = dict[str, Any]  # of a recipe, as YAML holds it
Kind = Literal["loss", "features", "training"]

UNBALANCED = 1.5  # largest class / smallest class from which class sizes are worth a lever
LARGER = 1.25  # side of the next input size / side of this one, at least
LARGEST = 640  # pixels: beyond, one image costs as much as ten
GRID = 32  # input sizes are multiples of it, or of a transformer's patch
CROPS = 2


@dataclass(frozen=True)
class Lever:
    """One thing to try: `change` edits the content of a recipe, or returns False where it changes nothing."""

    name: str
    kind: Kind
    change: Callable[[Content], bool]

    def applied(self, recipe: Recipe) -> Recipe | None:
        """The recipe with this lever; None where there is nothing to change."""
        content = recipe.model_dump()
        return build(content) if self.change(content) else None


@dataclass(frozen=True)
class Situation:
    """What decides which levers there are."""

    recipe: Recipe  # the plain probe
    counts: NDArray[np.int64]  # K: training images of each class
    budget: float  # percentage points of the mean per class that hard classes may cost
    backbones: Sequence[str] = field(default_factory=tuple)  # that may be added


def levers(s: Situation) -> list[Lever]:
    """Every lever of this situation, cheap ones first."""
    return [*_losses(s), *_views(), *_sizes(), *_taps(s), *_further(s), *_trainings()]


# -- what is minimised, and what it is chosen for ------------------------------------------------------------


def _losses(s: Situation) -> Iterator[Lever]:
    if s.recipe.solver.l2 is None:
        yield _loss("choice of l2", {"name": "erm"}, s)
    yield _loss("margins", {"name": "mr2", "power": [1 / 3, 2 / 3, 1.0]}, s)
    yield _loss("effective frequency", {"name": "ef", "tau": [0.25, 0.5, 1.0]}, s)
    present = s.counts[s.counts > 0]
    if present.max() >= UNBALANCED * present.min():
        yield _loss("class weights", {"name": "cb", "beta": [0.9, 0.99, 0.999]}, s)
        yield _loss("logit adjustment", {"name": "la", "tau": [0.5, 1.0]}, s)
    yield _loss("worst classes (DRO)", {"name": "dro", "sharpness": [4.0]}, s)


def _loss(name: str, method: Content, s: Situation) -> Lever:
    """A method whose parameters, l2 among them, are chosen for hard classes within the budget."""

    def change(content: Content) -> bool:
        content["method"], content["select"] = dict(method), {"name": "budget", "budget": s.budget}
        return not content["finetune"] and content["solver"]["name"] == "lbfgs"

    return Lever(name, "loss", change)


# -- what features are made of -------------------------------------------------------------------------------


def _views() -> Iterator[Lever]:
    for name, views in (("mirror images", "flip"), (f"{CROPS} more crops", CROPS)):

        def change(content: Content, views: str | int = views) -> bool:
            fresh = content["features"]["views"] == "center"
            content["features"]["views"] = views
            return fresh and not content["finetune"]

        yield Lever(name, "features", change)


def _sizes() -> Iterator[Lever]:
    yield Lever("larger input", "features", _enlarge)


def _enlarge(content: Content) -> bool:
    """The next size of the first backbone; which the others have they keep."""
    own = content["backbone"]
    spec = backbones.catalogue.find(own["name"])
    side = own["image_size"] or spec.size
    if side is None or content["finetune"]:
        return False
    patch = re.search(r"(?:patch|ViT-[A-Za-z]+-)(\d+)", spec.architecture)
    step = int(patch[1]) if patch else GRID
    own["image_size"] = -(-int(LARGER * side) // step) * step
    return own["image_size"] <= LARGEST


def _taps(s: Situation) -> Iterator[Lever]:
    own = s.recipe.backbone
    used, *others = backbones.catalogue.find(own.name).taps
    for tap in others if own.tap in (None, used) else ():
        yield Lever(f"features {tap} too", "features", partial(_tap, tap))


def _tap(tap: str, content: Content) -> bool:
    """The same network, weights and size included, at another place."""
    first = {key: value for key, value in content["backbone"].items() if key != "also"}
    return _adding({**first, "tap": tap})(content)


def _further(s: Situation) -> Iterator[Lever]:
    for name in s.backbones:
        if name != s.recipe.backbone.name:
            yield Lever(f"with {name}", "features", _adding({"name": name}))


def _adding(part: Content) -> Callable[[Content], bool]:
    def change(content: Content) -> bool:
        content["backbone"]["also"] = [*content["backbone"]["also"], dict(part)]
        return not content["finetune"]

    return change


def installed() -> list[str]:
    """Backbones whose weights are on this machine because a package brought them."""
    return [spec.name for spec in backbones.catalogue.specs() if _here(spec.source)]


def _here(source: Any) -> bool:
    if not isinstance(source, Package):
        return False
    try:
        return source.fetch() is not None
    except backbones.UserError:
        return False


# -- training ------------------------------------------------------------------------------------------------


def _trainings() -> Iterator[Lever]:
    yield Lever("adapter with margins", "training", _adapter)
    yield Lever("fine-tuning", "training", _tune)


def _adapter(content: Content) -> bool:
    """A small residual layer on the features, pulled together by MR²'s representation term."""
    content["solver"] = {"name": "sgd"}
    content["train"]["head"], content["method"] = "adapter", {"name": "mr2"}
    content["select"] = "auto"
    return not content["finetune"]


def _tune(content: Content) -> bool:
    """LP-FT of the first backbone under MR²; views, parts and solvers belong to frozen features."""
    content["finetune"], content["method"] = True, {"name": "mr2"}
    content["backbone"]["also"] = []
    content["features"] |= {"views": "center", "test_views": "auto"}
    content["solver"], content["train"]["head"], content["select"] = {}, "auto", "auto"
    return True
