"""`probe doctor`: does this machine have what a run needs? One line per question, each with what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probe.errors import UserError


@dataclass(frozen=True)
class Finding:
    """The answer to one question; `ok` is None for a note that is neither good nor bad."""

    question: str
    ok: bool | None
    answer: str


def examine(cache: Path | None = None) -> Iterator[Finding]:
    """Ask every question, in the order in which a run would need the answers."""
    for question, ask in QUESTIONS.items():
        try:
            ok, answer = ask(cache)
        except (UserError, ImportError, OSError, RuntimeError) as error:
            ok, answer = False, str(error).splitlines()[0]
        yield Finding(question, ok, answer)


def _torch(_: Path | None) -> tuple[bool | None, str]:
    import torch

    from probe.report.text.format import plural

    return True, f"torch {torch.__version__}, {plural(torch.get_num_threads(), 'thread')}"


def _devices(_: Path | None) -> tuple[bool | None, str]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return (True, ", ".join(names)) if names else (None, "none: everything runs on the CPU")


def _libraries(_: Path | None) -> tuple[bool | None, str]:
    from backbones.torchvision_ops import ensure_torchvision

    ensure_torchvision()
    import open_clip
    import timm
    import transformers

    modules = {"timm": timm, "open_clip": open_clip, "transformers": transformers}
    return True, ", ".join(f"{name} {module.__version__}" for name, module in modules.items())


def _default(_: Path | None) -> tuple[bool | None, str]:
    import backbones

    backbone = backbones.load("effnet-lite0")
    return True, f"effnet-lite0 loads, fingerprint {backbone.fingerprint[:12]}"


def _hub(_: Path | None) -> tuple[bool | None, str]:
    from backbones import hub

    if hub.offline():
        return None, "HF_HUB_OFFLINE is set: only cached and local weights and data can be used"
    endpoint = hub.endpoint()
    if hub.reachable(endpoint):
        return True, endpoint
    return None, f"{endpoint} does not answer: only cached and local weights and data can be used"


def _cache(cache: Path | None) -> tuple[bool | None, str]:
    from probe.system.cache_dir import cache_root

    root = cache_root(cache)
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(there).free / 1e9
    if not os.access(there, os.W_OK):
        return False, f"{root} is not writable; give --cache or set PROBE_CACHE"
    return free > 1, f"{root}, {free:,.0f} GB free"


QUESTIONS: dict[str, Callable[[Path | None], tuple[bool | None, str]]] = {
    "torch": _torch,
    "GPUs": _devices,
    "libraries": _libraries,
    "default backbone": _default,
    "Hub": _hub,
    "cache": _cache,
}
