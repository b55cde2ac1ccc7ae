"""What is probed: a name becomes a frozen or trainable image encoder.

    import backbones
    b = backbones.load("clip-rn50")                    # or weights="path/to/file-or-folder"
    features = b(images)                               # N x b.dim
    b.transform(pil_image); b.preprocessing.pixels(pil_image); b.fingerprint

Three open prefixes reach everything the libraries know: `timm:<name>`, `open_clip:<model>/<tag>` and
`hf:<repository>`; each also takes a local folder in that library's own format (`hf:./my-vit`).

Adding a backbone
-----------------
A backbone is one row of `backbones/catalogue.py`. When a family already knows the architecture, the row is
all there is to write:

    Spec("deit3-vit-s16", "timm", "deit3_small_patch16_224.fb_in1k",
         Hub("timm/deit3_small_patch16_224.fb_in1k", TIMM_FILES),
         taps={"pooled": 384}, size=224, licence="apache-2.0")

`taps` names the places where features can be taken (the first is the default) and their dimension;
`preprocessing` overrides the library's numbers where the authors used others; `ignored` lists the prefixes
of keys that a checkpoint may carry beside the encoder (decoders, projection heads): every other missing or
unexpected key is an error.

A new family is one more module with `load(spec, weights, *, tap, image_size) -> Parts`, named by the row;
`weights` is the local path that was given or that the row's source fetched.

From outside the package, `backbones.register(Spec(...))` does the same, and so does an installed package
whose entry point names its `Spec`:

    [project.entry-points."mr2_probe.backbones"]
    my-net = "my_package:MY_NET"

There `family` is the function that builds the network and returns `backbones.Parts`, or its place,
"my_package.module:function".

Listing names imports no deep-learning library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backbones.lazy import attributes

if TYPE_CHECKING:
    from backbones.backbone import Parts
    from backbones.catalogue import Spec, names, register, specs
    from backbones.errors import UserError
    from backbones.load_backbone import load
    from backbones.preprocess import Preprocessing

__all__ = ["Parts", "Preprocessing", "Spec", "UserError", "load", "names", "register", "specs"]

if not TYPE_CHECKING:  # a checker would believe every name
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "Parts": "backbones.backbone",
            "Preprocessing": "backbones.preprocess",
            "UserError": "backbones.errors",
            "load": "backbones.load_backbone",
            **dict.fromkeys(("Spec", "names", "register", "specs"), "backbones.catalogue"),
        },
    )
