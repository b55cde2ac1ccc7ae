"""What `probe improve` tries: levers, each a change of the recipe, in three rounds. No torch here.

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
Kind = Literal["selection", "margins", "weights", "views", "size", "taps", "backbones", "training"]
# What is tried together, on top of the same recipe; the best of a round is kept.
LOSSES: tuple[Kind, ...] = ("selection", "margins", "weights")
FEATURES: tuple[Kind, ...] = ("views", "size", "taps", "backbones")
TRAININGS: tuple[Kind, ...] = ("training",)

UNBALANCED = 1.5  # largest class / smallest class from which class sizes are worth a lever
LARGER = (1.15, 1.3)  # steps of the input size: side / the backbone's own
LARGEST = 640  # pixels: beyond, one image costs as much as ten
GRID = 32  # input sizes are multiples of it, or of a transformer's patch
CROPS = 2


@dataclass(frozen=True)
class Lever:
    """One thing to try: `change` edits the content of a recipe, or returns False where it changes nothing."""

    name: str
    kind: Kind
    change: Callable[[Content], bool]
    after: str = ""  # the lever of which it is a longer step: where that gains nothing, this is not tried

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
    """Every lever of this situation, in the order of its rounds."""
    return [*_losses(s), *_views(), *_sizes(s), *_taps(s), *_further(s), *_trainings()]


# -- what is minimised, and what it is chosen for ------------------------------------------------------------


def _losses(s: Situation) -> Iterator[Lever]:
    if s.recipe.solver.l2 is None:
        yield _loss("choice of l2", "selection", {"name": "erm"}, s)
    yield _loss("margins", "margins", {"name": "mr2", "power": [1 / 3, 2 / 3, 1.0]}, s)
    yield _loss("effective frequency", "weights", {"name": "ef", "tau": [0.25, 0.5, 1.0]}, s)
    present = s.counts[s.counts > 0]
    if present.max() >= UNBALANCED * present.min():
        yield _loss("class weights", "weights", {"name": "cb", "beta": [0.9, 0.99, 0.999]}, s)
        yield _loss("logit adjustment", "weights", {"name": "la", "tau": [0.5, 1.0]}, s)
    yield _loss("worst classes (DRO)", "weights", {"name": "dro", "sharpness": [4.0]}, s)


def _loss(name: str, kind: Kind, method: Content, s: Situation) -> Lever:
    """A method whose parameters, l2 among them, are chosen for hard classes within the budget."""

    def change(content: Content) -> bool:
        content["method"], content["select"] = dict(method), {"name": "budget", "budget": s.budget}
        return not content["finetune"] and content["solver"]["name"] == "lbfgs"

    return Lever(name, kind, change)


# -- what features are made of -------------------------------------------------------------------------------


def _views() -> Iterator[Lever]:
    for name, views in (("mirror images", "flip"), (f"{CROPS} more crops", CROPS)):

        def change(content: Content, views: str | int = views) -> bool:
            fresh = content["features"]["views"] == "center"
            content["features"]["views"] = views
            return fresh and not content["finetune"]

        yield Lever(name, "views", change)


def _sizes(s: Situation) -> Iterator[Lever]:
    before = ""
    for step in LARGER:
        name = f"input x {step:g}"
        yield Lever(name, "size", partial(_enlarge, s.recipe, step), after=before)
        before = name


def _enlarge(plain: Recipe, step: float, content: Content) -> bool:
    """Every part larger than the plain probe, or the catalogue, has it: steps do not add up. What was kept
    larger stays so: a shorter step is only for parts that came later."""
    given = {part.name: part.image_size for part in plain.backbone.parts}
    parts = [content["backbone"], *content["backbone"]["also"]]
    before = [part["image_size"] or 0 for part in parts]
    after = [larger(part["name"], step, given.get(part["name"])) or 0 for part in parts]
    for part, now, then in zip(parts, before, after, strict=True):
        part["image_size"] = max(now, then)
    grown = any(then > now for now, then in zip(before, after, strict=True))
    return grown and not content["finetune"] and min(after) > 0 and max(before + after) <= LARGEST


def larger(name: str, step: float, side: int | None = None) -> int | None:
    """The size of a backbone's input nearest to `step` x `side` (its own by default) that it can take; each
    step is another one, also where the multiples are far apart."""
    spec = backbones.catalogue.find(name)
    side = side or spec.size
    if side is None:
        return None
    patch = re.search(r"(?:patch|ViT-[A-Za-z]+-)(\d+)", spec.architecture)
    grid = int(patch[1]) if patch else GRID
    shorter = sum(other < step for other in LARGER)
    return max(round(step * side / grid), side // grid + 1 + shorter) * grid


def _taps(s: Situation) -> Iterator[Lever]:
    own = s.recipe.backbone
    used, *others = backbones.catalogue.find(own.name).taps
    for tap in others if own.tap in (None, used) else ():
        yield Lever(f"features {tap} too", "taps", partial(_tap, tap))


def _tap(tap: str, content: Content) -> bool:
    """The same network, weights and size included, at another place, where it is not there already."""
    first = {key: value for key, value in content["backbone"].items() if key != "also"}
    also = content["backbone"]["also"]
    there = any((part["name"], part["tap"]) == (first["name"], tap) for part in also)
    content["backbone"]["also"] = [{**first, "tap": tap}, *also]
    return not there and not content["finetune"]


def _further(s: Situation) -> Iterator[Lever]:
    own = {part.name for part in s.recipe.backbone.parts}
    names = [name for name in dict.fromkeys(s.backbones) if name not in own]
    for name in names:
        yield Lever(f"with {name}", "backbones", partial(_with, [name], names))
    if len(names) > 1:  # together they may help where none does alone
        yield Lever("with all further backbones", "backbones", partial(_with, names, names))


def _with(added: Sequence[str], names: Sequence[str], content: Content) -> bool:
    """These beside what is there; further backbones in one order, however they came, to be judged once."""
    also = {part["name"]: part for part in content["backbone"]["also"] if part["name"] in names}
    others = [part for part in content["backbone"]["also"] if part["name"] not in names]
    fresh = {name: {"name": name} for name in added if name not in also}
    also |= fresh
    content["backbone"]["also"] = [*others, *(also[name] for name in names if name in also)]
    return bool(fresh) and not content["finetune"]


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
