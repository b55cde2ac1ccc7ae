"""Checkpoints: a folder of tensors and JSON that appears whole or not at all; the last two are kept.

    checkpoints/00001234/
        tensors.safetensors    network.*, method.*, average.*, best.*, optimizer.<parameter>.<name>
        state.json             the recipe's digest, the position, the history, the optimiser's numbers;
                               sealed, with the checksum of the tensors: one changed byte is noticed

What is inside is `probe.train.state.TrainState`. No generator's state is saved: every random draw is a
function of the position (`probe.train.seeding`).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from accelerate import Accelerator

    from probe.train.state import TrainState

log = logging.getLogger("probe.train")

FORMAT = 2
KEPT = 2
FOLDER = "checkpoints"  # in that of the training
TENSORS, STATE = "tensors.safetensors", "state.json"
OS_ERROR = re.compile(r"os error (\d+)")


@dataclass
class Checkpoint:
    """The content of one: a `TrainState`, and which training it is of."""

    about: dict[str, Any]  # JSON
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by part: network, method, ...


class Checkpoints:
    """The checkpoints of one training. All of its processes call each method; process 0 writes."""

    def __init__(self, folder: Path | None, digest: str, accelerator: Accelerator) -> None:
        """`folder` is the training's, None to save nothing; `digest` that of all that decides its result."""
        self.folder, self.digest, self.accelerator = folder, digest, accelerator
        self._saved_at = time.monotonic()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Only one training at a time works in a folder; a second one is told so, on all of its processes."""
        with ExitStack() as stack:
            taken = False
            if self.folder is not None and self.accelerator.process_index == 0:
                make_folder(self.folder)
                taken = not stack.enter_context(FolderLocks(self.folder)).acquire(0)
            if any(collectives.largest(int(taken), device=self.accelerator.device)):
                raise UserError(
                    f"another training is at work in {self.folder}; wait for it, stop it, or choose another "
                    "--out"
                )
            yield

    def restart_clock(self) -> None:
        """As if a checkpoint had been saved just now."""
        self._saved_at = time.monotonic()

    def older_than(self, seconds: float) -> bool:
        """Is the last one this old, by this process's clock? Never where nothing is saved."""
        return self.folder is not None and time.monotonic() - self._saved_at >= seconds

    def save(self, state: TrainState, *, micro_batch: int | None, logged: int) -> Path | None:
        """Save the state; returns where, on process 0. `logged`: lines of the log that belong to it."""
        path, first = None, self.accelerator.process_index == 0
        if self.folder is not None and (first or state.engine.partitioned):
            values, tensors = state.state_dict()
            if first:
                about = {
                    "digest": self.digest,
                    "processes": self.accelerator.num_processes,
                    "threads": torch.get_num_threads(),
                    "micro_batch": micro_batch,
                    "logged": logged,
                }
                content = Checkpoint({**about, **values}, tensors)
                path = save(self.folder / FOLDER, content, step=state.position.steps)
        self.restart_clock()
        self.accelerator.wait_for_everyone()
        return path

    def resume(self, state: TrainState) -> int | None:
        """Load the last one into `state`; returns the log's lines up to then, or None where there is none."""
        found = None if self.folder is None else latest(self.folder / FOLDER, self.digest)
        step = -1 if found is None else found.about["position"]["steps"]
        device = self.accelerator.device
        last, least = collectives.largest(step, -step, device=device)
        if last != -least:
            raise UserError(
                f"not every process finds the checkpoint of step {last} in {self.folder}; "
                "give all machines the same folder"
            )
        if found is None:
            return None
        if found.about["processes"] == self.accelerator.num_processes and device.type == "cpu":
            # How sums are split between threads decides their last bits.
            torch.set_num_threads(found.about.get("threads", torch.get_num_threads()))
        state.load_state_dict(found.about, found.tensors)
        return found.about["logged"]


def save(folder: Path, content: Checkpoint, *, step: int) -> Path:
    """Write a checkpoint beside the older ones, then drop all but the last two."""
    flat = {
        f"{part}.{name}": t.contiguous() for part, ts in content.tensors.items() for name, t in ts.items()
    }
    bad = next((n for n, t in flat.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
    if bad is not None:
        raise Diverged(f"{bad} is not finite after step {step}; nothing was saved. Try a smaller train.lr")
    final = folder / f"{step:08d}"
    with staged_folder(final) as staged:
        with named_failures(final / TENSORS, sum(t.nbytes for t in flat.values())):
            _write_tensors(staged / TENSORS, flat)
        about = {"format": FORMAT, "tensors": file_digest(staged / TENSORS), **content.about}
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


def latest(folder: Path, digest: str) -> Checkpoint | None:
    """The newest checkpoint that is intact; None where there is none. Leftovers of a kill are removed."""
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
            log.warning("the checkpoint %s is damaged (%s); resuming from the one before it", path, error)
            continue
        if (about.get("format"), about.get("digest")) != (FORMAT, digest):
            raise UserError(
                f"{path} belongs to another recipe; train in another folder, or remove {folder} to start anew"
            )
        tensors: dict[str, dict[str, Tensor]] = {}
        for name, tensor in flat.items():
            part, _, rest = name.partition(".")
            tensors.setdefault(part, {})[rest] = tensor
        return Checkpoint(about, tensors)
    return None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's two files; ValueError if they are not as they were written, or another step's."""
    about = unsealed(reading.text(path / STATE))
    if about["position"]["steps"] != int(path.name):
        raise ValueError("it is the checkpoint of another step")
    if file_digest(path / TENSORS) != about["tensors"]:
        raise ValueError(f"the bytes of {TENSORS} do not match their checksum")
    with safe_open(path / TENSORS, framework="pt") as file:
        return about, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdigit())
