"""What a result depends on besides its recipe: versions, device and threads; nothing that names a machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]  # or site-packages

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
        "commit": commit(CHECKOUT),
        "devices": gpus or ["cpu"],
        "threads": torch.get_num_threads(),
    }


@cache
def commit(checkout: Path) -> str | None:
    """The commit of this program, with "-dirty" behind it where files differ; None where it was installed."""
    if not (checkout / ".git").exists():
        return None
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
