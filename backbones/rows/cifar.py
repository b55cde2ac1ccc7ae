"""Small nets for 32-pixel images, trained from scratch."""

from __future__ import annotations

from backbones.preprocess import CIFAR_MEAN, CIFAR_STD, Preprocessing
from backbones.sources import Scratch
from backbones.spec import Spec

OPTION_B = "1 x 1 convolutions as shortcuts"
CIFAR = Preprocessing(size=32, resize=32, interpolation="bilinear", mean=CIFAR_MEAN, std=CIFAR_STD)


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
