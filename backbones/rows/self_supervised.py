"""Encoders trained on images without labels. Names are timm's own, but for files of the authors."""

from __future__ import annotations

from backbones.preprocess import Preprocessing
from backbones.rows import timm_row
from backbones.sources import Url
from backbones.spec import Spec

# MAE and DINOv2 evaluate at 256 -> 224, bicubic (util/datasets.py and dinov2/data/transforms.py of the
# authors); timm's own numbers for the same weights differ. MoCo: main_lincls.py, torchvision's bilinear.
BICUBIC_256 = Preprocessing(size=224, resize=256, interpolation="bicubic")
BILINEAR_256 = Preprocessing(size=224, resize=256, interpolation="bilinear")

PUBLIC = "https://dl.fbaipublicfiles.com"  # where FAIR's authors keep their files
NO_CHECKSUM = "no checksum is known"


# Top-1 on ImageNet: the tables of models in README.md of facebookresearch/dino, dinov2, moco,
# moco-v3, swav and barlowtwins.
def _accuracy(knn: float, linear: float) -> dict[str, float]:
    return {"k-NN": knn, "linear": linear}


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


def _moco(name: str, folder: str, md5: str, note: str, linear: float) -> Spec:
    file = f"{PUBLIC}/moco/moco_checkpoints/{folder}/{folder}_pretrain.pth.tar"
    return Spec(
        name,
        "moco",
        "resnet50",
        Url(file, f"md5:{md5}"),
        taps={"pooled": 2048},
        size=224,
        licence="cc-by-nc-4.0",
        note=note,
        imagenet={"linear": linear},
        preprocessing=BILINEAR_256,
    )


def _mocov3(name: str, architecture: str, file: str, dim: int, note: str, linear: float) -> Spec:
    return Spec(
        name,
        "moco",
        architecture,
        Url(f"{PUBLIC}/moco-v3/{file}/{file}.pth.tar", name=f"mocov3-{file}.pth.tar"),
        taps={"pooled" if dim == 2048 else "cls": dim},
        size=224,
        licence="cc-by-nc-4.0",
        note=f"{note}; {NO_CHECKSUM}",
        imagenet={"linear": linear},
        preprocessing=BILINEAR_256,
    )


def _plain_rn50(
    name: str, source: Url, licence: str, note: str, linear: float, ignored: tuple[str, ...] = ()
) -> Spec:
    # VICReg and SwAV pad before their first convolution and by one less in it: a plain ResNet-50, no fc.
    return Spec(
        name,
        "timm",
        "resnet50",
        source,
        taps={"pooled": 2048},
        size=224,
        licence=licence,
        note=note if source.checksum else f"{note}; {NO_CHECKSUM}",
        imagenet={"linear": linear},
        preprocessing=BILINEAR_256,
        ignored=ignored,
    )


def _dinov2(name: str, architecture: str, dim: int, knn: float, linear: float) -> Spec:
    return timm_row(
        name,
        architecture,
        dim,
        "apache-2.0",
        "class token; position embedding resampled from 518 pixels",
        imagenet=_accuracy(knn, linear),
        preprocessing=BICUBIC_256,
        ignored=("mask_token",),
    )


def _dino(name: str, size: str, patch: int, dim: int, knn: float, linear: float) -> Spec:
    architecture = f"vit_{size}_patch{patch}_224.dino"
    accuracy = _accuracy(knn, linear)
    return timm_row(name, architecture, dim, "apache-2.0", CLASS_TOKEN, imagenet=accuracy)


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
    _moco("mocov2-rn50", "moco_v2_800ep", "a04e12f8", "800 epochs", 71.1),
    _dinov2("dinov2-vit-s14", "vit_small_patch14_dinov2.lvd142m", 384, 79.0, 81.1),
    _dinov2("dinov2-vit-b14", "vit_base_patch14_dinov2.lvd142m", 768, 82.1, 84.5),
)
ROWS = (
    _dinov2("dinov2-vit-l14", "vit_large_patch14_dinov2.lvd142m", 1024, 83.5, 86.3),
    _dinov2("dinov2-reg-vit-s14", "vit_small_patch14_reg4_dinov2.lvd142m", 384, 79.1, 80.9),
    _dinov2("dinov2-reg-vit-b14", "vit_base_patch14_reg4_dinov2.lvd142m", 768, 82.0, 84.6),
    _dinov2("dinov2-reg-vit-l14", "vit_large_patch14_reg4_dinov2.lvd142m", 1024, 83.8, 86.7),
    _dinov3_vit("s", "small", 384),
    _dinov3_vit("b", "base", 768),
    _dinov3_vit("l", "large", 1024),
    _dinov3_convnext("tiny", 768),
    _dinov3_convnext("small", 768),
    _dinov3_convnext("base", 1024),
    _dinov3_convnext("large", 1536),
    _dino("dino-vit-s16", "small", 16, 384, 74.5, 77.0),
    _dino("dino-vit-b16", "base", 16, 768, 76.1, 78.2),
    _dino("dino-vit-s8", "small", 8, 384, 78.3, 79.7),
    _dino("dino-vit-b8", "base", 8, 768, 77.4, 80.1),
    _moco("mocov1-rn50", "moco_v1_200ep", "b251726a", "200 epochs", 60.6),
    _moco("mocov2-rn50-200ep", "moco_v2_200ep", "59fd9945", "200 epochs", 67.7),
    _plain_rn50(
        "vicreg-rn50",
        Url(
            f"{PUBLIC}/vicreg/resnet50.pth",
            "sha256:c843e7652491ff2f712734619fd74d85e5e92ac902615665ad3fd50dc6ada591",
            "vicreg-resnet50.pth",
        ),
        "cc-by-nc-4.0",
        "1,000 epochs",
        73.2,
    ),
    _plain_rn50(
        "swav-rn50",
        Url(f"{PUBLIC}/deepcluster/swav_800ep_pretrain.pth.tar"),
        "cc-by-nc-4.0",
        "800 epochs",
        75.3,
        ignored=("projection_head.", "prototypes."),
    ),
    _plain_rn50(
        "barlowtwins-rn50",
        Url(
            f"{PUBLIC}/barlowtwins/ep1000_bs2048_lrw0.2_lrb0.0048_lambd0.0051/resnet50.pth",
            "sha256:cf015f40cc",
            "barlowtwins-resnet50.pth",
        ),
        "mit",
        "1,000 epochs",
        73.5,
    ),
    _mocov3("mocov3-rn50", "resnet50", "r-50-1000ep", 2048, "1,000 epochs", 74.6),
    _mocov3("mocov3-vit-b16", "vit_base_patch16_224", "vit-b-300ep", 768, "class token, 300 epochs", 76.7),
    timm_row("aimv2-vit-l14", "aimv2_large_patch14_224.apple_pt", 1024, "apple-ascl", "mean of the patches"),
    timm_row("eva02-vit-b14", "eva02_base_patch14_224.mim_in22k", 768, "mit", "masked images, ImageNet-22k"),
    timm_row("eva02-vit-l14", "eva02_large_patch14_224.mim_m38m", 1024, "mit", "masked images, Merged-38M"),
)
