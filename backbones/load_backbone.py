"""One way from a name to a backbone: find the row, fetch its weights, let the family load them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import catalogue, reading
from backbones.errors import UserError, nearest, reason
from backbones.quiet import quietly
from backbones.sources import SCRATCH, Scratch
from backbones.spec import Family, Spec

if TYPE_CHECKING:
    import torch

    from backbones.backbone import Backbone, Parts

# The families of this package and their modules; those that wrap a library must not have its name.
FAMILIES = {
    "clip": "open_clip_models",
    "timm": "timm_models",
    "hf": "transformers_models",
    "effnet": "effnet",
    "moco": "moco",
    "cifar": "cifar",
}


def load(
    name: str,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "cpu",
    tap: str | None = None,
    image_size: int | None = None,
    seed: int = 0,
) -> Backbone:
    """Load a backbone by name, frozen and in evaluation mode, with every weight accounted for.

    `weights` is a local file or folder in the family's format, instead of the registered source, or
    "scratch": the architecture with random weights (a folder of that name is "./scratch"); `tap` is where
    features are taken (`Spec.taps`); `image_size` is the side of the square input.
    A net without weights draws them from `seed` and its name, whatever the state of torch's own generator,
    which is left as it was: the same call gives the same net and the same fingerprint.
    Call `.requires_grad_(True)` to train it.

    >>> features = backbones.load("effnet-lite0")(images)  # N x 3 x H x W -> N x dim
    """
    spec = catalogue.find(name)
    if tap is not None and tap not in spec.taps:
        raise UserError(f'{name} has no tap "{tap}"{nearest(tap, spec.taps)}')
    if image_size is not None and image_size < 1:
        raise UserError(f"image_size must be a positive number of pixels, not {image_size}")
    spec = untrained(spec) if weights == SCRATCH else spec
    path = weights_path(spec, weights)  # before the heavy imports: offline users learn it

    from backbones.backbone import Backbone

    place = _device(device)
    with quietly(), _drawing_from(spec.name, seed):
        build = _from_outside if from_outside(spec) else _built_in
        parts = build(spec, path, tap=tap, image_size=image_size)
        return Backbone(name, parts, augmentation=spec.augmentation).to(place)


BUILDS_UNTRAINED = ("timm", "effnet", "cifar")  # families whose architectures are known without a file


def untrained(spec: Spec) -> Spec:
    """The same row without weights."""
    if spec.family not in BUILDS_UNTRAINED and not isinstance(spec.source, Scratch):
        raise UserError(
            f"{spec.name} cannot be built without its weights; to train from scratch use timm:<name>, "
            "such as timm:resnet50, or a cifar- net"
        )
    return replace(spec, source=Scratch())


def from_outside(spec: Spec) -> bool:
    """Is the network built by somebody else's code?"""
    return not (isinstance(spec.family, str) and spec.family in FAMILIES)


def _built_in(spec: Spec, weights: Path | None, **options: Any) -> Parts:
    assert isinstance(spec.family, str)
    return import_module(f"backbones.families.{FAMILIES[spec.family]}").load(spec, weights, **options)


def _from_outside(spec: Spec, weights: Path | None, **options: Any) -> Parts:
    """What a function from outside builds; whatever goes wrong in it is one line that names it."""
    from backbones.backbone import Parts

    where = f'the family "{spec.family_name}" of {spec.name}'
    try:
        if isinstance(spec.family, str):
            module, _, function = spec.family.partition(":")
            family: Family = getattr(import_module(module), function or "load")
        else:
            family = spec.family
        parts = family(spec, weights, **options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where} fails: {type(error).__name__}: {reason(error)}") from error
    if not isinstance(parts, Parts):
        raise UserError(f"{where} must return backbones.Parts, not {type(parts).__name__}")
    return parts


@contextmanager
def _drawing_from(name: str, seed: int) -> Iterator[None]:
    """Random weights follow the name and the seed; the caller's generator is handed back untouched."""
    import torch

    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    with torch.random.fork_rng(devices=[]):  # nets are built on the CPU, then moved
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        yield


def weights_path(spec: Spec, weights: str | Path | None) -> Path | None:
    """The weights on this machine; None for a net without any, or a name that a library resolves."""
    if weights == SCRATCH:
        return None
    if weights is None and spec.open:
        folder = reading.expanded(spec.architecture)
        return folder if folder.is_dir() else None
    if weights is None:
        return spec.source.fetch()
    path = reading.expanded(weights)
    if not path.exists():
        raise UserError(f"there is no file or folder {path} to read weights from")
    return path


def _device(device: str | torch.device) -> torch.device:
    import torch

    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:  # an unknown word, or a device this torch cannot use
        raise UserError(f'cannot use the device "{device}": {str(error).splitlines()[0]}') from error
    return place
