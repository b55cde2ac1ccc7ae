"""torchvision without its compiled operators: enough of it for the libraries that only want its transforms.

A torchvision built for another torch (a CPU torch beside a CUDA torchvision, a nightly, an unusual
architecture) cannot load its C++ library, and then `import torchvision` fails on the first operator that it
wants to describe. timm, open_clip and transformers all import it, for transforms that need no operator.
Declaring the two operators' signatures is enough; calling one still fails, as it should.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

OPERATORS = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_declared: list[Any] = []  # a torch Library takes its operators back when it is collected


def ensure_torchvision() -> None:
    """Import torchvision; only where it fails for want of `nms`, declare that operator and try again."""
    if "torchvision" in sys.modules:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare()
        import_module("torchvision")


def _declare() -> None:
    import torch

    for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[module]  # the failed import left its finished parts behind
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(operator + SIGNATURE)
    _declared.append(library)
