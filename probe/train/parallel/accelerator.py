"""Accelerate, asked for exactly what was started: the device, the processes, the precision."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probe.core.collectives import leave_at_exit
from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.system import world
from probe.train.parallel import deepspeed_config, fsdp_config
from probe.train.parallel.engine import Engine, Sharded
from probe.train.parallel.launch import check_world

if TYPE_CHECKING:
    from probe.train.parallel.dry_run import Rehearsed

TRACKING = "tracking"
PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerator(settings: TrainConfig, folder: Path | None = None) -> Any:
    """An Accelerator for these settings; raises when it sees another world than the launcher started.
    What trackers write goes to `folder`, where they can be told.

    Batch-norm and class statistics are equal on all processes already, so buffers are not broadcast.
    """
    from accelerate import DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    for tracker in settings.trackers:
        if find_spec(tracker) is None:
            raise UserError(f"the tracker {tracker} is not installed; pip install {tracker}, or leave it out")
    plugin = fsdp_config.check(settings) if fsdp_config.asked() else None
    if deepspeed_config.asked() is not None:
        fsdp_config.check_recipe(settings)
    # Accelerate imports DeepSpeed wherever it is installed, which then says on stdout what it found.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    AcceleratorState._reset_state()  # a process may train several times, in different precisions
    found = _made(
        # Without this word a CPU world of many processes silently becomes many worlds of one.
        cpu=not torch.cuda.is_available(),
        mixed_precision=PRECISION[settings.precision],
        dynamo_backend="no",  # `train.compile` says it; a configuration file would compile what is wrapped
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        log_with=list(settings.trackers) or None,
        project_dir=(folder or Path()) / TRACKING if settings.trackers else None,
    )
    if plugin is not None:
        fsdp_config.honour(found, plugin)
    fsdp_config.check_kind(found.distributed_type.value)
    if found.distributed_type.value == "DEEPSPEED":
        raise UserError("start DeepSpeed with --accelerate-config FILE, not by Accelerate's own launcher")
    leave_at_exit()
    check_world()
    started = world.size()
    if found.num_processes != started:
        raise UserError(
            f"{started} processes were started but {found.num_processes} see each other; see `launch`"
        )
    return found


def _made(**options: Any) -> Any:
    """Accelerate's object; what it does not understand of the environment is one line."""
    from accelerate import Accelerator

    try:
        return Accelerator(**options)
    except ValueError as error:
        raise UserError(f"Accelerate cannot start: {error}; check ACCELERATE_* in the environment") from error


def engine(
    accelerator: Any, objective: Any, optimizer: Any, *, clip: float | None, rehearsed: Rehearsed | None
) -> Engine:
    """What trains `objective` in the way that this world was started."""
    zero = deepspeed_config.asked()
    if zero is not None and rehearsed is not None:
        from probe.train.parallel.deepspeed import Zero

        if accelerator.native_amp:
            objective.forward = accelerator.autocast()(objective.forward)
        return Zero(accelerator, objective, optimizer, clip=clip, zero=zero, idle=rehearsed.idle)
    accelerator.ddp_handler.find_unused_parameters = rehearsed is not None and rehearsed.unused
    if accelerator.is_fsdp2:
        return Sharded(accelerator, *_shard(accelerator, objective, optimizer), clip=clip)
    with warnings.catch_warnings():  # torch's note about a word that Accelerate passes on
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        return Engine(accelerator, *accelerator.prepare(objective, optimizer), clip=clip)


def _shard(accelerator: Any, objective: Any, optimizer: Any) -> tuple[Any, Any]:
    """Split the weights in place; evaluation gathers them as a training step does."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    fsdp_config.check_weights(objective, accelerator.state.fsdp_plugin)
    if accelerator.native_amp:  # Accelerate leaves it to a policy, see `sharding.honour`
        objective.forward = accelerator.autocast()(objective.forward)
    split, prepared = accelerator.prepare(objective, optimizer)
    register_fsdp_forward_method(split, "scores")
    return split, prepared
