"""Encoders trained on images with text. Names, tags and repositories are open_clip's own."""

from __future__ import annotations

from backbones.sources import Hub
from backbones.spec import OPEN_CLIP_FILES, Spec

LAION = "laion/CLIP-ViT"
TIMM_CLIP = "timm/vit_{}_clip_224"


def _open_clip(
    name: str,
    model: str,
    repo: str,
    taps: tuple[int, int | None],
    licence: str,
    *,
    size: int = 224,
    zero_shot: float | None = None,
) -> Spec:
    """`taps`: the dimension of the space shared with text, and before the projection if there is one.

    `zero_shot`: top-1 on ImageNet. That of MetaCLIP is in the authors' README.md; all others are open_clip's
    (docs/openclip_results.csv), whose authors trained the LAION and DataComp models.
    """
    projected, pooled = taps
    return Spec(
        name,
        "clip",
        model,
        Hub(repo, OPEN_CLIP_FILES),
        taps={"projected": projected} | ({} if pooled is None else {"pooled": pooled}),
        size=size,
        licence=licence,
        note="image and text, zero-shot",
        imagenet={} if zero_shot is None else {"zero-shot": zero_shot},
    )


# OpenAI's repository is MIT, and so timm says of the ResNets; its ViTs, made anew in timm, say apache-2.0.
def _clip(name: str, model: str, repo: str, projected: int, pooled: int, zero_shot: float) -> Spec:
    model = f"{model}-quickgelu/openai"
    return _open_clip(name, model, repo, (projected, pooled), "mit", zero_shot=zero_shot)


def _metaclip(name: str, model: str, patches: str, projected: int, pooled: int, zero_shot: float) -> Spec:
    repo = f"{TIMM_CLIP.format(patches)}.metaclip_2pt5b"
    architecture = f"{model}-quickgelu/metaclip_fullcc"
    return _open_clip(name, architecture, repo, (projected, pooled), "cc-by-nc-4.0", zero_shot=zero_shot)


# The repositories' own pages say mit: read for B/16 and B/32 of DataComp and B/16 of LAION-2B; for both L/14
# and B/32 of LAION-2B read in copies of them on the hub. timm's repackaged image towers say apache-2.0.
def _laion(name: str, model: str, tag: str, repo: str, projected: int, pooled: int, zero_shot: float) -> Spec:
    taps = (projected, pooled)
    return _open_clip(name, f"{model}/{tag}", f"{LAION}-{repo}", taps, "mit", zero_shot=zero_shot)


def _siglip2(name: str, model: str, dim: int, size: int) -> Spec:
    return _open_clip(name, f"{model}/webli", f"timm/{model}", (dim, None), "apache-2.0", size=size)


def _mobile(name: str, model: str, projected: int, pooled: int, size: int) -> Spec:
    architecture, repo = f"{model}/dfndr2b", f"timm/{model}-OpenCLIP"
    return _open_clip(name, architecture, repo, (projected, pooled), "apple-amlr", size=size)


def _pe(name: str, model: str, projected: int, pooled: int, size: int) -> Spec:
    return _open_clip(name, f"{model}/meta", f"timm/{model}", (projected, pooled), "apache-2.0", size=size)


def _eva02(name: str, model: str, tag: str, repo: str, projected: int, pooled: int, zero_shot: float) -> Spec:
    taps = (projected, pooled)
    return _open_clip(name, f"{model}/{tag}", f"timm/{repo}.{tag}", taps, "mit", zero_shot=zero_shot)


OPENAI = (
    _clip("clip-rn50", "RN50", "timm/resnet50_clip.openai", 1024, 2048, 59.82),
    _clip("clip-rn101", "RN101", "timm/resnet101_clip.openai", 512, 2048, 62.28),
    _clip("clip-vit-b32", "ViT-B-32", f"{TIMM_CLIP.format('base_patch32')}.openai", 512, 768, 63.32),
    _clip("clip-vit-b16", "ViT-B-16", f"{TIMM_CLIP.format('base_patch16')}.openai", 512, 768, 68.34),
    _clip("clip-vit-l14", "ViT-L-14", f"{TIMM_CLIP.format('large_patch14')}.openai", 768, 1024, 75.54),
)
B32, B16, L14 = "ViT-B-32", "ViT-B-16", "ViT-L-14"
ROWS = (
    _laion("laion2b-vit-b32", B32, "laion2b_s34b_b79k", "B-32-laion2B-s34B-b79K", 512, 768, 66.56),
    _laion("laion2b-vit-b16", B16, "laion2b_s34b_b88k", "B-16-laion2B-s34B-b88K", 512, 768, 70.23),
    _laion("laion2b-vit-l14", L14, "laion2b_s32b_b82k", "L-14-laion2B-s32B-b82K", 768, 1024, 75.25),
    _laion("datacomp-vit-b32", B32, "datacomp_xl_s13b_b90k", "B-32-DataComp.XL-s13B-b90K", 512, 768, 69.17),
    _laion("datacomp-vit-b16", B16, "datacomp_xl_s13b_b90k", "B-16-DataComp.XL-s13B-b90K", 512, 768, 73.49),
    _laion("datacomp-vit-l14", L14, "datacomp_xl_s13b_b90k", "L-14-DataComp.XL-s13B-b90K", 768, 1024, 79.21),
    _metaclip("metaclip-vit-b32", B32, "base_patch32", 512, 768, 67.6),
    _metaclip("metaclip-vit-b16", B16, "base_patch16", 512, 768, 72.1),
    _metaclip("metaclip-vit-l14", L14, "large_patch14", 768, 1024, 79.2),
    _siglip2("siglip2-vit-b16", "ViT-B-16-SigLIP2", 768, 224),
    _siglip2("siglip2-vit-l16", "ViT-L-16-SigLIP2-256", 1024, 256),
    _siglip2("siglip2-so400m-14", "ViT-SO400M-14-SigLIP2", 1152, 224),
    _eva02(
        "eva02-clip-b16", "EVA02-B-16", "merged2b_s8b_b131k", "eva02_base_patch16_clip_224", 512, 768, 74.72
    ),
    _eva02(
        "eva02-clip-l14", "EVA02-L-14", "merged2b_s4b_b131k", "eva02_large_patch14_clip_224", 768, 1024, 79.77
    ),
    _mobile("mobileclip2-s0", "MobileCLIP2-S0", 512, 1024, 256),
    _mobile("mobileclip2-s2", "MobileCLIP2-S2", 512, 1280, 256),
    _mobile("mobileclip2-b", "MobileCLIP2-B", 512, 768, 224),
    _mobile("mobileclip2-s4", "MobileCLIP2-S4", 768, 4096, 256),
    _pe("pe-core-s16", "PE-Core-S-16-384", 512, 384, 384),
    _pe("pe-core-b16", "PE-Core-B-16", 1024, 768, 224),
    _pe("pe-core-l14", "PE-Core-L-14-336", 1024, 1024, 336),
)
