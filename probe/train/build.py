"""Method, head and network of a recipe, checked before anything expensive happens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe import heads, losses, methods
from probe.errors import UserError
from probe.heads import Head
from probe.losses.base import Loss
from probe.methods.base import Method
from probe.recipe import MethodConfig, Recipe
from probe.recipe.train_settings import TrainConfig
from probe.train import schedule
from probe.train.model import tuning
from probe.train.model.network import OwnHead
from probe.train.parallel import deepspeed_config
from probe.train.seeding import derive_seed


def check(method: MethodConfig, settings: TrainConfig) -> None:
    """Refuse at once what could only fail after minutes."""
    loss = methods.inner(method.name, method.params)
    if method.groups != "class":
        losses.catalogue.check_groups(method.name)
        if settings.augment.mix != "none":
            raise UserError(
                "images that are mixed belong to no group: leave out method.groups or augment.mix"
            )
    if loss.takes == "cosines" and settings.head == "linear":
        raise UserError(f"{method.name} works on cosines, and a linear head has none; use train.head=cosine")
    if loss.fixed_head and settings.head in ("linear", "cosine"):
        raise UserError(
            f"{method.name} only attracts features to class vectors, which must be fixed; use train.head=etf"
        )
    if settings.augment.mix != "none" and "views" in methods.info(method.name).needs:
        raise UserError(
            f"{method.name} contrasts images by their labels, and train.augment.mix={settings.augment.mix} "
            "mixes those; use mix=none"
        )
    mixes = methods.info(method.name).soft_targets or not methods.catalogue.wraps(method.name)
    if settings.augment.mix != "none" and not mixes:  # a loss by itself takes them (`Loss.mixed`)
        raise UserError(
            f"{method.name} takes labels, and train.augment.mix={settings.augment.mix} makes probabilities; "
            "use mix=none, or a method that takes those, such as erm"
        )
    if "gradients" in methods.info(method.name).needs and deepspeed_config.asked() is not None:
        raise UserError(f"{method.name}: {deepspeed_config.NO_GRADIENTS}")
    schedule.check(settings)
    tuning.check(settings.tune)
    if tuning.kind(settings.tune) == tuning.LORA and settings.wise:
        raise UserError(
            f"train.wise goes between the weights of start and end, and train.tune={settings.tune} trains "
            "products of weights; leave out one of the two"
        )
    if settings.start == "probe" and settings.head in ("cosine", "etf"):
        raise UserError(f"start: probe is a linear solution; a {settings.head} head cannot begin with it")


def check_recipe(recipe: Recipe) -> None:
    """The same for a whole recipe, of fine-tuning or of `solver: sgd`."""
    check(recipe.method, recipe.train)
    loss = methods.inner(recipe.method.name, recipe.method.params)
    if recipe.train.start in ("means", "probe") and recipe.from_scratch:
        # Each seed draws its own weights, and the cached features are those of none of them.
        raise UserError(
            f"start: {recipe.train.start} needs features worth having, and {recipe.backbone.name} is trained "
            "from scratch; use train.start=random"
        )
    if recipe.from_scratch and recipe.train.tune != "all":
        raise UserError(
            f"train.tune={recipe.train.tune} would leave random weights of {recipe.backbone.name} as they are"
            ", since it is trained from scratch; use train.tune=all"
        )
    frozen = not recipe.finetune or recipe.train.tune == "head"
    for spec in (methods.info(recipe.method.name), loss):
        if frozen and spec.frozen == "no effect" and recipe.train.head != "adapter":
            raise UserError(
                f"{recipe.method.name} has no effect on frozen features: {spec.why}; "
                "fine-tune, or use train.head=adapter"
            )


def make_method(
    choice: MethodConfig,
    *,
    num_classes: int,
    labels: NDArray[np.int64],
    dim: int,
    loss: Loss | None = None,
    scratch: bool = False,
    group_counts: NDArray[np.int64] | None = None,
) -> Method:
    """The method, with the class counts of the N labels it is trained on; around `loss`, if that is given.
    `scratch`: with the defaults for networks from scratch. `group_counts` are those of groups to act on.

    Training takes the statistics that it starts from over its whole set (`probe.train.class_pass`).
    """
    counts = np.bincount(labels, minlength=num_classes)
    if loss is not None:
        return methods.around(loss, choice.name, choice.params, class_counts=counts)
    return methods.make(
        choice.name,
        choice.params,
        num_classes=num_classes,
        class_counts=counts,
        dim=dim,
        whole_set=True,
        scratch=scratch,
        group_counts=group_counts,
    )


def make_head(method: Method, settings: TrainConfig, *, dim: int, num_classes: int, seed: int) -> Head:
    """The head that the settings name, or the one that the method's loss takes."""
    if method.loss.spec.owns_head:
        return OwnHead(method.loss, dim)
    kind: str = settings.head
    angular = "etf" if method.loss.spec.fixed_head else "cosine"
    if kind == "auto":
        cosine = method.takes == "cosines" or settings.start == "zeroshot"
        kind = angular if cosine else method.head or "linear"
    params: dict[str, Any] = {} if kind == "linear" else {"seed": derive_seed(seed, "head") % 2**31}
    if kind == "adapter":
        params = {"head": angular, **params} if method.takes == "cosines" else {}
    return heads.make(kind, dim, num_classes, **params)
