"""Checkpoints: a folder of tensors and JSON that appears whole or not at all; the last two are kept.

    checkpoints/00001234/
        tensors.safetensors    network.*, method.*, average.*, best.*, optimizer.<parameter>.<name>
        state.json             the recipe's digest, the position, the history, the optimiser's numbers

No generator's state is saved: every random draw is a function of the position (`probe.train.streams`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from probe.errors import UserError
from probe.files import TEMPORARY, staged_folder
from probe.train.window import Diverged

FORMAT = 1
KEPT = 2
TENSORS, STATE = "tensors.safetensors", "state.json"
OS_ERROR = re.compile(r"os error (\d+)")


@dataclass
class State:
    """Everything a training is at one moment."""

    about: dict[str, Any]  # JSON
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by part: network, method, ...


def save(folder: Path, state: State, *, step: int) -> Path:
    """Write a checkpoint beside the older ones, then drop all but the last two."""
    flat = {f"{part}.{name}": t.contiguous() for part, ts in state.tensors.items() for name, t in ts.items()}
    bad = next((n for n, t in flat.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
    if bad is not None:
        raise Diverged(f"{bad} is not finite after step {step}; nothing was saved. Try a smaller train.lr")
    final = folder / f"{step:08d}"
    with staged_folder(final) as staged:
        _write_tensors(staged / TENSORS, flat)
        with (staged / STATE).open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **state.about}, file)
            file.flush()
            os.fsync(file.fileno())
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
    """The newest checkpoint that can be read; None where there is none. Leftovers of a kill are swept."""
    if not folder.is_dir():
        return None
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in reversed(_all(folder)):
        try:
            about = json.loads((path / STATE).read_text(encoding="utf-8"))
            with safe_open(path / TENSORS, framework="pt") as file:
                flat = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError):
            continue  # damaged after it was written; the one before it is whole
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


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


def of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's memory as tensors `<parameter>.<name>` and plain numbers."""
    tensors, numbers = {}, {}
    for parameter, memory in optimizer.state_dict()["state"].items():
        for name, value in memory.items():
            key = f"{parameter}.{name}"
            if isinstance(value, Tensor):
                tensors[key] = value.detach().cpu()
            elif value is not None:
                numbers[key] = value
    return tensors, numbers


def into_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """The inverse of `of_optimizer`."""
    memory: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        parameter, _, name = key.partition(".")
        memory.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": memory, "param_groups": optimizer.state_dict()["param_groups"]})
