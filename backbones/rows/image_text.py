"""Encoders trained on images with text. Names, tags and repositories are open_clip's own."""

from __future__ import annotations

from backbones.sources import Hub
from backbones.spec import OPEN_CLIP_FILES, Spec

LAION = "laion/CLIP-ViT"
TIMM_CLIP = "timm/vit_{}_clip_224"


def _open_clip(
    name: str, model: str, repo: str, taps: tuple[int, int | None], licence: str, *, size: int = 224
) -> Spec:
    """`taps`: the dimension of the space shared with text, and before the projection if there is one."""
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
    )


def _clip(name: str, model: str, repo: str, *taps: int) -> Spec:
    return _open_clip(name, f"{model}-quickgelu/openai", repo, (taps[0], taps[1]), "mit")


def _metaclip(name: str, model: str, patches: str, *taps: int) -> Spec:
    repo = f"{TIMM_CLIP.format(patches)}.metaclip_2pt5b"
    architecture = f"{model}-quickgelu/metaclip_fullcc"
    return _open_clip(name, architecture, repo, (taps[0], taps[1]), "cc-by-nc-4.0")


def _laion(name: str, model: str, tag: str, repo: str, *taps: int) -> Spec:
    return _open_clip(name, f"{model}/{tag}", f"{LAION}-{repo}", (taps[0], taps[1]), "mit")


def _siglip2(name: str, model: str, dim: int, size: int) -> Spec:
    return _open_clip(name, f"{model}/webli", f"timm/{model}", (dim, None), "apache-2.0", size=size)


def _mobile(name: str, model: str, projected: int, pooled: int, size: int) -> Spec:
    architecture, repo = f"{model}/dfndr2b", f"timm/{model}-OpenCLIP"
    return _open_clip(name, architecture, repo, (projected, pooled), "apple-amlr", size=size)


def _pe(name: str, model: str, projected: int, pooled: int, size: int) -> Spec:
    return _open_clip(name, f"{model}/meta", f"timm/{model}", (projected, pooled), "apache-2.0", size=size)


def _eva02(name: str, model: str, tag: str, repo: str, *taps: int) -> Spec:
    return _open_clip(name, f"{model}/{tag}", f"timm/{repo}.{tag}", (taps[0], taps[1]), "mit")


OPENAI = (
    _clip("clip-rn50", "RN50", "timm/resnet50_clip.openai", 1024, 2048),
    _clip("clip-rn101", "RN101", "timm/resnet101_clip.openai", 512, 2048),
    _clip("clip-vit-b32", "ViT-B-32", f"{TIMM_CLIP.format('base_patch32')}.openai", 512, 768),
    _clip("clip-vit-b16", "ViT-B-16", f"{TIMM_CLIP.format('base_patch16')}.openai", 512, 768),
    _clip("clip-vit-l14", "ViT-L-14", f"{TIMM_CLIP.format('large_patch14')}.openai", 768, 1024),
)
B32, B16, L14 = "ViT-B-32", "ViT-B-16", "ViT-L-14"
ROWS = (
    _laion("laion2b-vit-b32", B32, "laion2b_s34b_b79k", "B-32-laion2B-s34B-b79K", 512, 768),
    _laion("laion2b-vit-b16", B16, "laion2b_s34b_b88k", "B-16-laion2B-s34B-b88K", 512, 768),
    _laion("laion2b-vit-l14", L14, "laion2b_s32b_b82k", "L-14-laion2B-s32B-b82K", 768, 1024),
    _laion("datacomp-vit-b32", B32, "datacomp_xl_s13b_b90k", "B-32-DataComp.XL-s13B-b90K", 512, 768),
    _laion("datacomp-vit-b16", B16, "datacomp_xl_s13b_b90k", "B-16-DataComp.XL-s13B-b90K", 512, 768),
    _laion("datacomp-vit-l14", L14, "datacomp_xl_s13b_b90k", "L-14-DataComp.XL-s13B-b90K", 768, 1024),
    _metaclip("metaclip-vit-b32", B32, "base_patch32", 512, 768),
    _metaclip("metaclip-vit-b16", B16, "base_patch16", 512, 768),
    _metaclip("metaclip-vit-l14", L14, "large_patch14", 768, 1024),
    _siglip2("siglip2-vit-b16", "ViT-B-16-SigLIP2", 768, 224),
    _siglip2("siglip2-vit-l16", "ViT-L-16-SigLIP2-256", 1024, 256),
    _siglip2("siglip2-so400m-14", "ViT-SO400M-14-SigLIP2", 1152, 224),
    _eva02("eva02-clip-b16", "EVA02-B-16", "merged2b_s8b_b131k", "eva02_base_patch16_clip_224", 512, 768),
    _eva02("eva02-clip-l14", "EVA02-L-14", "merged2b_s4b_b131k", "eva02_large_patch14_clip_224", 768, 1024),
    _mobile("mobileclip2-s0", "MobileCLIP2-S0", 512, 1024, 256),
    _mobile("mobileclip2-s2", "MobileCLIP2-S2", 512, 1280, 256),
    _mobile("mobileclip2-b", "MobileCLIP2-B", 512, 768, 224),
    _mobile("mobileclip2-s4", "MobileCLIP2-S4", 768, 4096, 256),
    _pe("pe-core-s16", "PE-Core-S-16-384", 512, 384, 384),
    _pe("pe-core-b16", "PE-Core-B-16", 1024, 768, 224),
    _pe("pe-core-l14", "PE-Core-L-14-336", 1024, 1024, 336),
)
