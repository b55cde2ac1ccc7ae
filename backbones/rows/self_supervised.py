"""Encoders trained on images without labels. Names are timm's own, but for MoCo's checkpoint."""

from __future__ import annotations

from backbones.preprocess import Preprocessing
from backbones.rows import timm_row
from backbones.sources import Url
from backbones.spec import Spec

# MAE and DINOv2 evaluate at 256 -> 224, bicubic (util/datasets.py and dinov2/data/transforms.py of the
# authors); timm's own numbers for the same weights differ. MoCo: main_lincls.py, torchvision's bilinear.
BICUBIC_256 = Preprocessing(size=224, resize=256, interpolation="bicubic")
BILINEAR_256 = Preprocessing(size=224, resize=256, interpolation="bilinear")


def _mae(name: str, architecture: str, dim: int) -> Spec:
    return timm_row(
        name,
        architecture,
        dim,
        "cc-by-nc-4.0",
        "class token, no masking; standardised before probing",
        preprocessing=BICUBIC_256,
        standardise=True,  # MAE's linear probe puts a BatchNorm without affine before the classifier (A.1)
        ignored=("decoder", "mask_token"),
    )


def _dinov2(name: str, architecture: str, dim: int) -> Spec:
    note = "class token; position embedding resampled from 518 pixels"
    return timm_row(
        name, architecture, dim, "apache-2.0", note, preprocessing=BICUBIC_256, ignored=("mask_token",)
    )


def _dinov3_vit(letter: str, size: str, dim: int) -> Spec:
    # The authors probe the class token; timm's own pooling is the mean of the patches.
    name, architecture = f"dinov3-vit-{letter}16", f"vit_{size}_patch16_dinov3.lvd1689m"
    return timm_row(name, architecture, dim, DINOV3, "LVD-1689M", size=256, taps=("cls", "pooled"))


def _dinov3_convnext(size: str, dim: int) -> Spec:
    name, architecture = f"dinov3-convnext-{size}", f"convnext_{size}.dinov3_lvd1689m"
    return timm_row(name, architecture, dim, DINOV3, "distilled, LVD-1689M")


DINOV3 = "dinov3-license"
CLASS_TOKEN = "class token; ImageNet-1k without labels"
FIRST = (
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
)
ROWS = (
    _dinov2("dinov2-vit-l14", "vit_large_patch14_dinov2.lvd142m", 1024),
    _dinov3_vit("s", "small", 384),
    _dinov3_vit("b", "base", 768),
    _dinov3_vit("l", "large", 1024),
    _dinov3_convnext("tiny", 768),
    _dinov3_convnext("small", 768),
    _dinov3_convnext("base", 1024),
    _dinov3_convnext("large", 1536),
    timm_row("dino-vit-s16", "vit_small_patch16_224.dino", 384, "apache-2.0", CLASS_TOKEN),
    timm_row("dino-vit-b16", "vit_base_patch16_224.dino", 768, "apache-2.0", CLASS_TOKEN),
    timm_row("aimv2-vit-l14", "aimv2_large_patch14_224.apple_pt", 1024, "apple-ascl", "mean of the patches"),
    timm_row("eva02-vit-b14", "eva02_base_patch14_224.mim_in22k", 768, "mit", "masked images, ImageNet-22k"),
    timm_row("eva02-vit-l14", "eva02_large_patch14_224.mim_m38m", 1024, "mit", "masked images, Merged-38M"),
)
