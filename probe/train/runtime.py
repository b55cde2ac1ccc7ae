"""Accelerate, asked for exactly what was started: the device, the processes, the precision."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from probe.distributed import leave_at_exit
from probe.errors import UserError
from probe.train.launch import check_world
from probe.train.settings import Train

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")  # averages, snapshots and checkpoints need whole weights
TRACKING = "tracking"
PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerator(settings: Train, folder: Path | None = None) -> Any:
    """An Accelerator for these settings; raises when it sees another world than the launcher started.
    What trackers write goes to `folder`, where they can be told.

    Batch-norm and class statistics are equal on all processes already, so buffers are not broadcast.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise UserError(f"the tracker {tracker} is not installed; pip install {tracker}, or leave it out")
    AcceleratorState._reset_state()  # a process may train several times, in different precisions
    found = Accelerator(
        # Without this word a CPU world of many processes silently becomes many worlds of one.
        cpu=not torch.cuda.is_available(),
        mixed_precision=PRECISION[settings.precision],
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        log_with=list(settings.trackers) or None,
        project_dir=(folder or Path()) / TRACKING if settings.trackers else None,
    )
    if found.distributed_type.value in SHARDED:
        raise UserError(
            f"the Accelerate configuration asks for {found.distributed_type.value}, which splits weights "
            "between processes; here every process holds the whole model: use a configuration without it"
        )
    leave_at_exit()
    check_world()
    world = int(os.environ.get("WORLD_SIZE", 1))
    if found.num_processes != world:
        raise UserError(
            f"{world} processes were started but {found.num_processes} see each other; see `launch`"
        )
    return found


def prepare(accelerator: Any, objective: Any, optimizer: Any) -> tuple[Any, Any]:
    """Accelerate's wrappers around both, without torch's note about a word that Accelerate passes on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        return accelerator.prepare(objective, optimizer)


def stepper(accelerator: Any, prepared: Any) -> Callable[[], Any]:
    """What makes an update: the wrapper where it has work to do (scaling, sharding), else the optimiser.

    (The wrapper looks for absent libraries on the disk at every step.)
    """
    from accelerate.optimizer import AcceleratedOptimizer

    plain = type(prepared) is AcceleratedOptimizer and accelerator.scaler is None
    return prepared.optimizer.step if plain else prepared.step
