"""Augmentations by name; the operations are torchvision's.

An image passes these stages in order: crop (with its flip), policy, erase, each on one image in a loader
process; mix works on a batch, on the device, and turns labels into probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backbones.preprocess import AUGMENTATIONS, Preprocessing, to_bytes
from backbones.torchvision_ops import ensure_torchvision
from probe.recipe.train_settings import AugmentConfig
from probe.train.inputs.batch import Batch

Change = Callable[[Any], Any]


def _transforms() -> Any:
    ensure_torchvision()
    from torchvision.transforms import v2

    return v2


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

    def __call__(self, image: Any) -> Tensor:
        for change in self._changes():
            image = change(image)
        return image

    def _changes(self) -> list[Change]:
        key = (self.settings, self.numbers, self.crop)
        if key not in _BUILT:  # built once per process; workers inherit their parent's
            _BUILT[key] = list(self._build())
        return _BUILT[key]

    def _build(self) -> list[Change]:
        a, p = self.settings, self.numbers
        changes: list[Change] = [_rgb]
        changes.append(p.view if self.crop == "none" else AUGMENTATIONS[self.crop](p))
        if a.policy != "none":
            changes.append(POLICIES[a.policy](a, p))
        changes.append(to_bytes)
        if a.erase != "none":
            changes.append(ERASERS[a.erase](p))
        return changes


_BUILT: dict[Any, list[Change]] = {}


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
        inputs, targets = way(batch.inputs, batch.targets)
        # Both roll the batch by one: image i is mixed with the one before it.
        return replace(
            batch, views=(inputs,), targets=targets, mixed=(batch.targets, batch.targets.roll(1, 0))
        )

    return mix
