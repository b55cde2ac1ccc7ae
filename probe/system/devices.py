"""The device of a run, chosen in one place: for extraction, exact solves and training alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from probe.errors import UserError
from probe.system import world

if TYPE_CHECKING:
    import torch

NAMES = re.compile(r"auto|cpu|mps|(cuda|xpu)(:[0-9]+)?")
WRITTEN = "auto, cpu, cuda, cuda:1 (or another number), xpu, mps"
# What "auto" may be. Encoding needs no float64; exact solves do, which Apple's and many of Intel's GPUs lack:
# those fit a head or train a network only when they are named.
FOR_ENCODING = ("cuda", "xpu", "mps")
FOR_FITTING = ("cuda",)


def chosen(device: str | torch.device | None, auto: tuple[str, ...] = FOR_FITTING) -> torch.device:
    """The named device, or for "auto" this process's own of the first kind in `auto` that is there.

    "cuda" gives each process of this machine its own. What the machine does not have is refused in one line.
    """
    import torch

    named = str(device or "auto")
    check_name(named)
    kind, _, number = named.partition(":")
    if kind == "auto":
        kind = next((other for other in auto if _available(other)), "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    if not _available(kind):
        raise UserError(f"device: torch sees no {kind} device here; use device=auto, or see `probe doctor`")
    if kind == "mps":
        return torch.device("mps")
    count = torch.get_device_module(kind).device_count()
    if not number:
        return torch.device(kind, world.local_rank() % count)
    if int(number) >= count:
        raise UserError(f"device: there is no {named}, only {count} of them; the first is {kind}:0")
    if world.size() > 1:
        raise UserError(
            f"device: {named} is one device for {world.size()} processes; use device={kind}: one for each"
        )
    return torch.device(kind, int(number))


def check_name(named: str) -> None:
    """Refuse what is no device's name, whatever this machine has."""
    if NAMES.fullmatch(named) is None:
        raise UserError(f'device: "{named:.40}" is none of {WRITTEN}')


def _available(kind: str) -> bool:
    import torch

    return bool(torch.get_device_module(kind).is_available())
