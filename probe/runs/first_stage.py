"""The first stage that a method's `first` names: a finished run, reloaded and frozen.

Its encoder (the tuned one, where it was fine-tuned) gives the features, its head is what the second stage
starts from, and its groups are kept: an encoder that has learnt from every training image cannot rank classes
by them. Nothing of it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backbones.backbone import Backbone
from backbones.reading import expanded
from probe import methods
from probe.data import Dataset
from probe.errors import UserError
from probe.heads.fitted import FittedHead
from probe.methods.second_stage_rows import FIRST
from probe.probing.refits import Refit
from probe.probing.second_stage import STAGES
from probe.probing.settings import LossChoice
from probe.probing.stage import FirstHead, StageSettings
from probe.recipe import MethodConfig, Recipe, build
from probe.recipe.grammar import INNER
from probe.runs.folder import RunFolder, understood
from probe.runs.predict import load_backbone_of

TEACHER = "teacher"  # the parameter of a method that names a run to distil from


@dataclass(frozen=True)
class FirstStage:
    """A run that a second stage builds on."""

    folder: RunFolder

    @cached_property
    def _stored(self) -> tuple[FittedHead, dict[str, Any]]:
        head, about = self.folder.head()
        if "backbone" not in about:
            raise UserError(f"{self.folder.path} holds a head but no backbone; give the folder of a run")
        return head, about

    @cached_property
    def result(self) -> dict[str, Any]:
        """Its result.json."""
        return self.folder.result()

    @property
    def name(self) -> str:
        """What results call it."""
        return self.folder.name

    @property
    def head(self) -> FittedHead:
        """Its head, that of the first seed, with the scaling that belongs to it."""
        return self._stored[0]

    @property
    def tuned(self) -> bool:
        """Was its encoder trained?"""
        return bool(self._stored[1].get("tuned"))

    @cached_property
    def recipe(self) -> Recipe:
        """What it ran."""
        with understood(self.folder.path):
            return build(self.result["recipe"])

    @property
    def saw_holdout(self) -> bool:
        """Has it learnt from the images that would validate? All but trainings that keep the best epoch."""
        return not (self.recipe.trains and self.recipe.train.selects)

    def backbone(self, device: str) -> Backbone:
        """Its encoder, with the weights that its head belongs to."""
        about = self._stored[1]
        found = load_backbone_of(about, self.folder if self.tuned else None, device)
        found.source = str(self.folder.path)
        return found

    def as_head(self) -> FirstHead:
        """As a second stage takes it."""
        return FirstHead(self.name, self.head, self.saw_holdout)

    def check(self, recipe: Recipe) -> None:
        """Refuse a run of another backbone, or with other held-out images."""
        mine, theirs = recipe.backbone, self.recipe.backbone
        if [p.model_dump() for p in mine.parts] != [p.model_dump() for p in theirs.parts]:
            raise UserError(
                f"method.first: {self.name} has the backbone {theirs.title}, this recipe {mine.title}; "
                "give the same, with its weights, tap and size"
            )
        if recipe.data.val_fraction != self.recipe.data.val_fraction:
            raise UserError(
                f"method.first: {self.name} held out another part of the training images; "
                f"say data.val_fraction={self.recipe.data.val_fraction:g}"
            )
        if recipe.first_seed != self.recipe.first_seed:
            raise UserError(
                f"method.first: {self.name} held out the images of another seed; "
                f"say first_seed={self.recipe.first_seed}"
            )

    def check_data(self, data: Dataset, role: str = FIRST.name) -> None:
        """Refuse a run on other training images: it might have learnt from those that test here."""
        with understood(self.folder.path):
            theirs = self.result["data"]["fingerprints"]
        for split in (name for name in data.splits if name != "test"):
            if theirs.get(split) != data[split].fingerprint:
                raise UserError(
                    f"method.{role}: {self.name} has learnt from other {split} images than these; "
                    "give the data set that it was run on"
                )


def named(method: MethodConfig) -> str | None:
    """The run folder that a method's `first` names."""
    given = method.params.get(FIRST.name) if methods.catalogue.wraps(method.name) else None
    if given is not None and not isinstance(given, str):
        raise UserError(f"{method.name}: first must be the folder of a run, not {given!r:.80}")
    return given


def of(recipe: Recipe) -> FirstStage | None:
    """The first stage that a recipe names; None where it names none."""
    path = named(recipe.method)
    return None if path is None else FirstStage(RunFolder(expanded(path)))


def check_teacher(recipe: Recipe, data: Dataset) -> None:
    """Refuse a teacher that has learnt from other images than the student will."""
    path = recipe.method.params.get(TEACHER)
    if path is not None:
        FirstStage(RunFolder(expanded(str(path)))).check_data(data, TEACHER)


def is_exact(method: MethodConfig) -> bool:
    """Is it more than a loss, and solved exactly all the same?"""
    return method.name in STAGES


def settings(method: MethodConfig, first: FirstStage | None = None) -> StageSettings:
    """What a second stage is told by a recipe's method."""
    own, (loss, params) = methods.catalogue.given_to(method.name, method.params)
    own.pop(FIRST.name, None)
    head = None if first is None else first.as_head()
    return StageSettings(method.name, own, LossChoice(loss, params), head)


def check_method(method: MethodConfig) -> None:
    """Refuse parameters that nothing would read."""
    if method.name == "jtt" and "first_epochs" in method.params:
        raise UserError("jtt: first_epochs is for trainings; the exact solver has no epochs, so leave it out")
    if named(method) is not None and INNER in method.params and not refits(method):
        raise UserError(f"{method.name}: the first stage is a run, so a loss has no effect; leave it out")


def refits(method: MethodConfig) -> bool:
    """Is a new head solved for, so that l2 plays a part whatever came before?"""
    return issubclass(STAGES[method.name], Refit)
