"""What is probed: a name becomes a frozen or trainable image encoder.

    import backbones
    b = backbones.load("clip-rn50")                    # or weights="path/to/file-or-folder"
    features = b(images)                               # N x b.dim
    b.transform(pil_image); b.preprocessing.pixels(pil_image); b.fingerprint

Three open prefixes reach everything the libraries know: `timm:<name>`, `open_clip:<model>/<tag>` and
`hf:<repository>`; each also takes a local folder in that library's own format (`hf:./my-vit`).

Adding a backbone
-----------------
A backbone is one row of `backbones/registry.py`. When a family already knows the architecture, the row is
all there is to write:

    Spec("deit3-vit-s16", "timm", "deit3_small_patch16_224.fb_in1k",
         Hub("timm/deit3_small_patch16_224.fb_in1k", TIMM_FILES),
         taps={"pooled": 384}, size=224, licence="apache-2.0")

`taps` names the places where features can be taken (the first is the default) and their dimension;
`preprocessing` overrides the library's numbers where the authors used others; `ignored` lists the prefixes
of keys that a checkpoint may carry beside the encoder (decoders, projection heads): every other missing or
unexpected key is an error. From outside the package, `backbones.register(Spec(...))` does the same.

A new family is one more module with `load(spec, weights, *, tap, image_size) -> Parts`, named by the row;
`weights` is the local path that was given or that the row's source fetched.

Listing names imports no deep-learning library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backbones.errors import UserError
from backbones.registry import Spec, names, register, specs

if TYPE_CHECKING:
    import torch

    from backbones.module import Backbone

__all__ = ["Spec", "UserError", "load", "names", "register", "specs"]


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

    `weights` is a local file or folder in the family's format, instead of the registered source; `tap` is
    where features are taken (`Spec.taps`); `image_size` is the side of the square input.
    A net without weights draws them from `seed` and its name, whatever the state of torch's own generator,
    which is left as it was: the same call gives the same net and the same fingerprint.
    Call `.requires_grad_(True)` to train it.
    """
    from backbones.loading import load as load_backbone

    return load_backbone(name, weights=weights, device=device, tap=tap, image_size=image_size, seed=seed)
