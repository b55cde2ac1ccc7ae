"""What almost every torture needs loaded, before processes are forked; nothing is computed here."""

from importlib import import_module

from backbones.torchvision_ops import ensure_torchvision

ensure_torchvision()  # before timm, which wants torchvision
for library in (
    "torch",
    "timm",
    "accelerate",
    "probe.cli",
    "probe.compare",
    "probe.run",
    "probe.train.learning",
):
    import_module(library)
