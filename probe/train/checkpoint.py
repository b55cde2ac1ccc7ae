"""Checkpoints: a folder of tensors and JSON that appears whole or not at all; the last two are kept.

    checkpoints/00001234/
        tensors.safetensors    network.*, method.*, average.*, best.*, optimizer.<parameter>.<name>
        state.json             the recipe's digest, the position, the history, the optimiser's numbers;
                               sealed, with the checksum of the tensors: one changed byte is noticed

No generator's state is saved: every random draw is a function of the position (`probe.train.seeding`).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backbones import reading
from probe.core import collectives
from probe.errors import UserError
from probe.system.atomic import TEMPORARY, abandoned, make_folder, named_failures, staged_folder, write_atomic
from probe.system.cache_dir import OTHER_RUN, check_owner
from probe.system.checksums import file_digest
from probe.system.locks import FolderLocks
from probe.system.sealed_json import sealed, unsealed
from probe.train.step import Diverged

log = logging.getLogger("probe.train")

FORMAT = 2
KEPT = 2
TENSORS, STATE = "tensors.safetensors", "state.json"
OS_ERROR = re.compile(r"os error (\d+)")


@dataclass
class State:
    """Everything a training is at one moment."""

    about: dict[str, Any]  # JSON
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by part: network, method, ...


@contextmanager
def claimed(folder: Path | None, rank: int, device: torch.device) -> Iterator[None]:
    """Only one training at a time works in a folder; a second one is told so, on all of its processes."""
    with ExitStack() as stack:
        taken = False
        if folder is not None and rank == 0:
            make_folder(folder)
            taken = not stack.enter_context(FolderLocks(folder)).acquire(0)
        if any(collectives.largest(int(taken), device=device)):
            raise UserError(
                f"another training is at work in {folder}; wait for it, stop it, or choose another --out"
            )
        yield


def save(folder: Path, state: State, *, step: int) -> Path:
    """Write a checkpoint beside the older ones, then drop all but the last two."""
    flat = {f"{part}.{name}": t.contiguous() for part, ts in state.tensors.items() for name, t in ts.items()}
    bad = next((n for n, t in flat.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
    if bad is not None:
        raise Diverged(f"{bad} is not finite after step {step}; nothing was saved. Try a smaller train.lr")
    final = folder / f"{step:08d}"
    with staged_folder(final) as staged:
        with named_failures(final / TENSORS, sum(t.nbytes for t in flat.values())):
            _write_tensors(staged / TENSORS, flat)
        about = {"format": FORMAT, "tensors": file_digest(staged / TENSORS), **state.about}
        write_atomic(staged / STATE, sealed(about))
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except SafetensorError as error:  # the operating system's reason is only in its text
        number = OS_ERROR.search(str(error))
        raise OSError(int(number[1]) if number else 0, str(error)) from error


def latest(folder: Path, digest: str) -> State | None:
    """The newest checkpoint that is sound; None where there is none. Leftovers of a kill are swept."""
    if not folder.is_dir():
        return None
    check_owner(folder, way_out=OTHER_RUN)
    for leftover in filter(abandoned, folder.glob(f"{TEMPORARY}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in reversed(_all(folder)):
        check_owner(path, path / STATE, path / TENSORS, way_out=OTHER_RUN)
        try:
            about, flat = _read(path)
        except (OSError, ValueError, SafetensorError) as error:
            log.warning("the checkpoint %s is damaged (%s); going on from the one before it", path, error)
            continue
        if (about.get("format"), about.get("digest")) != (FORMAT, digest):
            raise UserError(
                f"{path} belongs to another recipe; train in another folder, or remove {folder} to start anew"
            )
        tensors: dict[str, dict[str, Tensor]] = {}
        for name, tensor in flat.items():
            part, _, rest = name.partition(".")
            tensors.setdefault(part, {})[rest] = tensor
        return State(about, tensors)
    return None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's two files; ValueError if they are not as they were written, or another step's."""
    about = unsealed(reading.text(path / STATE))
    if about["position"]["steps"] != int(path.name):
        raise ValueError("it is that of another step")
    if file_digest(path / TENSORS) != about["tensors"]:
        raise ValueError(f"the bytes of {TENSORS} do not match their checksum")
    with safe_open(path / TENSORS, framework="pt") as file:
        return about, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdigit())
