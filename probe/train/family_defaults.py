"""Defaults of fine-tuning: one row for each family of networks and optimiser.

The row of convnets under AdamW was chosen on held-out training images of pets and digits; what it gives is
measured by `benchmarks/finetuning.py`. The others follow published fine-tuning and are not measured here:
CLIP as in the MR² release and WiSE-FT, transformers as in MAE and DINOv2, nets from scratch as on CIFAR, on
ImageNet (convnets: He et al. 2016, Goyal et al. 2017) and as DeiT (transformers: Touvron et al. 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from backbones import catalogue
from backbones.sources import Scratch
from probe.errors import UserError
from probe.recipe.train_settings import OPEN, TrainConfig
from probe.train.model import tuning

if TYPE_CHECKING:
    from torch import nn

    from backbones.backbone import Backbone

Family = Literal["convnet", "transformer", "clip", "scratch", "scratch-convnet", "scratch-transformer"]

SCRATCHES: tuple[Family, ...] = ("scratch", "scratch-convnet", "scratch-transformer")  # not pretrained
CONVOLVED: tuple[Family, ...] = (
    "convnet",
    "scratch",
    "scratch-convnet",
)  # whose steps are faster with channels last

SMALLEST_BATCH = 16  # images: below it a step's gradient is mostly noise
BATCHES = 32  # in an epoch, where the data are too few for the largest batch
STEPS = 200  # at least in a training: fewer cannot follow a schedule
LONGEST = 20  # epochs that a small data set is seen to reach them


@dataclass(frozen=True)
class Defaults:
    """The value of each setting that a recipe leaves open."""

    lr: float
    tried: bool  # is it tried first, and lowered where it does harm (`probe.train.lr_search`)?
    weight_decay: float
    layer_decay: float
    warmup: float  # part of all steps
    epochs: int  # more where the data are few
    batch_size: int  # at most; less where the data are few
    clip: float | None
    batch_norm: Literal["train", "frozen"]
    crop: str | None = None  # None: the backbone's own random view


# A pretrained net has seen strong crops already. A mild one keeps objects about as large as in the centre
# crop of evaluation (Touvron et al. 2019), and is close to what the probe, the start, was fitted to.
PRETRAINED: dict[str, Any] = {
    "tried": True,
    "warmup": 0.1,
    "batch_size": 256,
    "clip": 1.0,
    "batch_norm": "frozen",
    "crop": "mild-crop",
}
SCRATCH: dict[str, Any] = {
    "tried": False,  # a few steps say nothing about the rate of a hundred epochs
    "weight_decay": 5e-4,
    "layer_decay": 1.0,
    "warmup": 0.05,
    "epochs": 30,
    "batch_size": 128,
    "clip": None,
    "batch_norm": "train",
}

LARGE: dict[str, Any] = {**SCRATCH, "weight_decay": 1e-4, "epochs": 90, "batch_size": 256}  # images

# Few weights, or a head alone, need longer steps than a whole pretrained net; LoRA's usual rates are about
# ten times those of full fine-tuning. Not measured here, but tried before they are used.
FASTER = {"head": 10.0, "norms": 10.0, "lora": 10.0}
LOWERED = (1.0, 1 / 3, 1 / 9)  # parts of the default rate, tried in this order

# By (family, optimiser); a family's first row has its default optimiser.
ROWS: dict[tuple[Family, str], Defaults] = {
    ("convnet", "adamw"): Defaults(2e-4, weight_decay=0.01, layer_decay=1.0, epochs=5, **PRETRAINED),
    ("convnet", "sgd"): Defaults(3e-3, weight_decay=1e-4, layer_decay=1.0, epochs=5, **PRETRAINED),
    ("transformer", "adamw"): Defaults(3e-5, weight_decay=0.05, layer_decay=0.75, epochs=5, **PRETRAINED),
    ("transformer", "sgd"): Defaults(1e-3, weight_decay=0.0, layer_decay=0.75, epochs=5, **PRETRAINED),
    ("clip", "adamw"): Defaults(1e-5, weight_decay=0.1, layer_decay=1.0, epochs=5, **PRETRAINED),
    ("clip", "sgd"): Defaults(3e-4, weight_decay=0.0, layer_decay=1.0, epochs=5, **PRETRAINED),
    ("scratch", "sgd"): Defaults(0.1, **SCRATCH),
    ("scratch", "adamw"): Defaults(1e-3, **{**SCRATCH, "weight_decay": 0.05}),
    ("scratch-convnet", "sgd"): Defaults(0.1, **LARGE),
    ("scratch-convnet", "adamw"): Defaults(1e-3, **{**LARGE, "weight_decay": 0.05}),
    ("scratch-transformer", "adamw"): Defaults(
        2.5e-4, **{**LARGE, "weight_decay": 0.05, "warmup": 5 / 300, "epochs": 300, "clip": 1.0}
    ),
    ("scratch-transformer", "sgd"): Defaults(0.03, **{**LARGE, "clip": 1.0}),
}


def family(backbone: Backbone) -> Family:
    """The family of a loaded backbone, by the source of its weights and by its layers."""
    if backbone.source == str(Scratch()):
        large = catalogue.find(backbone.name).family in ("timm", "effnet")
        return UNTRAINED[structure(backbone.encoder)] if large else "scratch"
    return "clip" if catalogue.find(backbone.name).family == "clip" else structure(backbone.encoder)


UNTRAINED: dict[Family, Family] = {"convnet": "scratch-convnet", "transformer": "scratch-transformer"}


def structure(encoder: nn.Module) -> Family:
    """The family of a pretrained encoder. A single layer of attention is a convnet's pooling."""
    layers = sum("attention" in type(module).__name__.lower() for module in encoder.modules())
    return "transformer" if layers > 1 else "convnet"


def row(kind: Family, optimizer: str | None) -> tuple[str, Defaults]:
    """The optimiser (the family's own where none is given) and its defaults."""
    chosen = optimizer or next(name for of, name in ROWS if of == kind)
    if (kind, chosen) not in ROWS:
        raise UserError(f"there are no defaults for {chosen} on a {kind}; give train.lr")
    return chosen, ROWS[kind, chosen]


def resolve(settings: TrainConfig, kind: Family, images: int, *, split: bool = False) -> TrainConfig:
    """The settings with every open one filled in, for this many training images; only `lr` may stay open,
    to be tried first. `split`: are weights split over processes?"""
    optimizer, defaults = row(kind, settings.optimizer)
    if optimizer == "adamw" and settings.momentum != TrainConfig().momentum:
        raise UserError(
            f"train.momentum={settings.momentum} would change nothing: adamw has none; leave it out"
        )
    batch = settings.batch_size or batch_size(images, defaults.batch_size)
    if isinstance(settings.micro_batch, int) and settings.micro_batch > batch:
        raise UserError(
            f"train.micro_batch={settings.micro_batch} would change nothing: "
            f"a batch of these {images} images is {batch}; give at most that, or train.batch_size"
        )
    per_epoch = max(1, math.ceil(images / batch))
    epochs = settings.epochs or max(defaults.epochs, min(LONGEST, math.ceil(STEPS / per_epoch)))
    augment = settings.augment
    if augment.crop == "auto" and defaults.crop is not None:
        augment = augment.model_copy(update={"crop": defaults.crop})
    filled = {
        "optimizer": optimizer,
        "lr": settings.lr if settings.lr is not None or defaults.tried else defaults.lr,
        "weight_decay": _first(settings.weight_decay, defaults.weight_decay),
        "layer_decay": _first(settings.layer_decay, defaults.layer_decay),
        "warmup_epochs": _first(settings.warmup_epochs, defaults.warmup * epochs),
        "clip": _first(settings.clip, defaults.clip),
        "batch_norm": defaults.batch_norm if settings.batch_norm == "auto" else settings.batch_norm,
        "epochs": epochs,
        "batch_size": batch,
        "augment": augment,
        "channels_last": _first(settings.channels_last, kind in CONVOLVED and not split),
    }
    return settings.model_copy(update=filled)


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given


def batch_size(images: int, largest: int) -> int:
    """A power of 2 that leaves an epoch about 32 steps or more, between 16 and the largest.

    >>> [batch_size(n, 256) for n in (64, 150, 1347, 3680, 50_000)]
    [16, 16, 32, 64, 256]
    """
    fitting = 2 ** int(math.log2(max(1, images / BATCHES)))
    return max(1, min(largest, max(SMALLEST_BATCH, fitting)))


def rates(settings: TrainConfig, kind: Family) -> tuple[float, ...]:
    """The learning rates to try, falling, for the weights that are trained (`train.tune`)."""
    factor = FASTER.get(tuning.kind(settings.tune), 1.0)
    return tuple(factor * part * row(kind, settings.optimizer)[1].lr for part in LOWERED)


def described(settings: TrainConfig, kind: Family) -> dict[str, Any]:
    """The resolved settings as plain values, for log.jsonl and result.json."""
    values = {name: getattr(settings, name) for name in (*OPEN, "batch_norm", "start", "tune")}
    return {"family": kind, **values, "crop": settings.augment.crop}
