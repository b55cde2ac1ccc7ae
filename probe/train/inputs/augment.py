"""Augmentations by name; the operations are torchvision's.

An image passes these stages in order: crop (with its flip), policy, erase, each on one image in a loader
process; mix works on a batch, on the device, and turns labels into probabilities. A method may ask for views
of several kinds (`KINDS`), each a variation of the view that the settings describe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backbones.preprocess import AUGMENTATIONS, Preprocessing, to_bytes
from backbones.torchvision_ops import ensure_torchvision
from probe.errors import UserError, nearest
from probe.recipe.train_settings import AugmentConfig
from probe.train.inputs.batch import Batch

Change = Callable[[Any], Any]


def _transforms() -> Any:
    ensure_torchvision()
    from torchvision.transforms import v2

    return v2


COLOURS = "colours"  # a policy of views for contrast, not of settings


def _colours() -> Change:
    """Jitter and sometimes grey, as contrastive methods draw their views (Chen et al. 2020); no blur."""
    v2 = _transforms()
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    return v2.Compose([jitter, v2.RandomGrayscale(p=0.2)])


def _fill(numbers: Preprocessing) -> list[float]:
    """The colour that normalises to zero."""
    return [255 * m for m in numbers.mean]


POLICIES: dict[str, Callable[[AugmentConfig, Preprocessing], Change]] = {
    "autoaugment": lambda a, p: _transforms().AutoAugment(
        # 25 pairs of operations, learnt for CIFAR-10 or ImageNet (Cubuk et al. 2019)
        _transforms().AutoAugmentPolicy.CIFAR10 if p.size <= 64 else _transforms().AutoAugmentPolicy.IMAGENET,
        fill=_fill(p),
    ),
    "randaugment": lambda a, p: _transforms().RandAugment(a.operations, a.magnitude, fill=_fill(p)),
    "trivialaugment": lambda a, p: _transforms().TrivialAugmentWide(fill=_fill(p)),
    COLOURS: lambda a, p: _colours(),
}

ERASERS: dict[str, Callable[[Preprocessing], Change]] = {
    "erasing": lambda p: _transforms().RandomErasing(p=0.25, value=_fill(p)),
    # DeVries and Taylor 2017: one square of half the side, always; here it lies wholly inside the image.
    "cutout": lambda p: _transforms().RandomErasing(
        p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0), value=_fill(p)
    ),
}


@dataclass(frozen=True)
class RandomView:
    """PIL image -> uint8 C x H x W tensor, drawn from the global generators (the caller seeds them)."""

    settings: AugmentConfig
    numbers: Preprocessing
    crop: str  # a key of AUGMENTATIONS, or "none"
    policy: str | None = None  # a key of POLICIES instead of the settings' own

    def __call__(self, image: Any) -> Tensor:
        for change in self._changes():
            image = change(image)
        return image

    def _changes(self) -> list[Change]:
        if self not in _BUILT:  # built once per process; workers inherit their parent's
            _BUILT[self] = list(self._build())
        return _BUILT[self]

    def _build(self) -> list[Change]:
        a, p = self.settings, self.numbers
        changes: list[Change] = [_rgb]
        changes.append(p.view if self.crop == "none" else AUGMENTATIONS[self.crop](p))
        policy = self.policy or a.policy
        if policy != "none":
            changes.append(POLICIES[policy](a, p))
        changes.append(to_bytes)
        if a.erase != "none":
            changes.append(ERASERS[a.erase](p))
        return changes


_BUILT: dict[RandomView, list[Change]] = {}


def _strong(view: RandomView) -> RandomView:
    return view if view.settings.policy != "none" else replace(view, policy="randaugment")


def _weak(view: RandomView) -> RandomView:
    plain = view.settings.model_copy(update={"policy": "none", "erase": "none"})
    return replace(view, settings=plain)


# What a method may call a view: a variation of the one that the recipe's settings describe.
KINDS: dict[str, Callable[[RandomView], RandomView]] = {
    "own": lambda view: view,
    "weak": _weak,  # the crop and its flip alone
    "strong": _strong,  # with the settings' policy; RandAugment where they have none
    "contrast": lambda view: replace(_weak(view), policy=COLOURS),
}


def kind(view: Any, name: str) -> Any:
    """The variation `name` of a random view."""
    if name not in KINDS:
        raise UserError(f'there is no view "{name}"{nearest(name, KINDS)}')
    return view if name == "own" else KINDS[name](view)


def _rgb(image: Any) -> Any:
    return image if image.mode == "RGB" else image.convert("RGB")


def random_view(settings: AugmentConfig, numbers: Preprocessing, own: str | None) -> RandomView:
    """The random view of these settings; `own` is the backbone's crop, which `crop: auto` stands for."""
    return RandomView(settings, numbers, (own or "none") if settings.crop == "auto" else settings.crop)


def mixer(settings: AugmentConfig, num_classes: int) -> Callable[[Batch], Batch] | None:
    """Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019), or either at random; None for no mixing."""
    if settings.mix == "none":
        return None
    v2 = _transforms()
    both = {"mixup": v2.MixUp, "cutmix": v2.CutMix}
    chosen = [both[settings.mix]] if settings.mix in both else list(both.values())
    ways = [way(alpha=settings.alpha, num_classes=num_classes) for way in chosen]

    def mix(batch: Batch) -> Batch:
        way = ways[int(torch.randint(len(ways), ())) if len(ways) > 1 else 0]
        # all views of a sample with all views of its partner: one draw, over their stacked channels
        sizes = [view.shape[1] for view in batch.views]
        inputs, targets = way(torch.cat(batch.views, dim=1), batch.targets)
        # Both ways roll the batch by one: image i is mixed with the one before it.
        labels = (batch.targets, batch.targets.roll(1, 0))
        return replace(batch, views=inputs.split(sizes, dim=1), targets=targets, mixed=labels)

    return mix
