"""What a result depends on besides its recipe: versions, device and threads; nothing that names a machine."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

PACKAGES = (
    "mr2-probe",
    "torch",
    "torchvision",
    "timm",
    "open_clip_torch",
    "transformers",
    "accelerate",
    "scikit-learn",
    "numpy",
)


def describe() -> dict[str, Any]:
    """For `environment` in result.json."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "devices": gpus or ["cpu"],
        "threads": torch.get_num_threads(),
    }
