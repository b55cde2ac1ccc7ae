"""Accelerate, asked for exactly what was started: the device, the processes, the precision."""

from __future__ import annotations

import os
import warnings
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probe.core.collectives import leave_at_exit
from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.system import devices, world
from probe.system.allocator import keep_freed_memory
from probe.train.model import batchnorm
from probe.train.parallel import deepspeed_config, dtensor, fsdp_config
from probe.train.parallel.engine import Engine, Sharded
from probe.train.parallel.launch import check_world

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from probe.train.parallel.dry_run import DryRun
    from probe.train.step import Objective

TRACKING = "tracking"
PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerator(
    settings: TrainConfig, folder: Path | None = None, device: str | torch.device | None = None
) -> Accelerator:
    """An Accelerator for these settings; raises when it sees another number of processes than were started.
    Trackers that can be told where to write do so in `folder`. `device`: as in a recipe.

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
    where = devices.chosen(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)  # Accelerate takes the current one
    # Accelerate imports DeepSpeed wherever it is installed, which then prints on stdout what it found.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if where.type == "cuda" else "cpu")
    AcceleratorState._reset_state()  # a process may train several times, in different precisions
    found = _made(
        # Without this flag several CPU processes silently train on their own.
        cpu=where.type == "cpu",
        mixed_precision=PRECISION[settings.precision],
        dynamo_backend="no",  # `train.compile` decides; a configuration file would compile the wrapper
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        log_with=list(settings.trackers) or None,
        project_dir=(folder or Path()) / TRACKING if settings.trackers else None,
    )
    if plugin is not None:
        fsdp_config.honour(found, plugin)
    fsdp_config.check_kind(found.distributed_type.value)
    if found.distributed_type.value == "DEEPSPEED":
        raise UserError("start DeepSpeed with --accelerate-config FILE, not by Accelerate's own launcher")
    if found.device.type != where.type:
        raise UserError(
            f"device: Accelerate trains on {found.device.type} here, not on {where.type}; use device=auto"
        )
    if found.device.type == "cpu":
        keep_freed_memory()
    leave_at_exit()
    check_world()
    started = world.size()
    if found.num_processes != started:
        raise UserError(
            f"{started} processes were started but {found.num_processes} see each other; see `launch`"
        )
    return found


def _made(**options: Any) -> Accelerator:
    """Accelerate's object; what it does not understand of the environment is a one-line error."""
    from accelerate import Accelerator

    try:
        return Accelerator(**options)
    except ValueError as error:
        raise UserError(f"Accelerate cannot start: {error}; check ACCELERATE_* in the environment") from error


def splits_weights() -> bool:
    """Was this process started to hold a part of the weights only?"""
    return fsdp_config.asked() or deepspeed_config.asked() is not None


def place(given: Objective, settings: TrainConfig, accelerator: Accelerator) -> Objective:
    """The objective on the device. To be sharded, it is a copy: what was given stays whole, on the CPU."""
    # A method's own networks have batch-norms that learn, whatever those of the network do.
    batchnorm.join(given.method if settings.batch_norm == "frozen" else given)
    if accelerator.is_fsdp2:
        dtensor.agree(given, accelerator.device)
        objective = deepcopy(given)
    else:
        objective = given.to(accelerator.device)
    if settings.channels_last:
        objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.compile:
        objective.network.encoder.compile()
    return objective


def engine(
    accelerator: Accelerator,
    objective: Objective,
    optimizer: Optimizer,
    *,
    clip: float | None,
    dry_run: DryRun | None,
) -> Engine:
    """What trains `objective` in the way that these processes were started."""
    zero = deepspeed_config.asked()
    if zero is not None and objective.method.trains_later:
        raise UserError(
            "this method's second stage trains weights that the first one leaves alone, and DeepSpeed drops "
            "those; use FSDP"
        )
    if zero is not None and dry_run is not None:
        from probe.train.parallel.deepspeed import Zero

        if accelerator.native_amp:
            objective.forward = accelerator.autocast()(objective.forward)  # type: ignore[method-assign]
        return Zero(accelerator, objective, optimizer, clip=clip, zero=zero, unused=dry_run.unused)
    accelerator.ddp_handler.find_unused_parameters = dry_run is not None and dry_run.some_unused
    if accelerator.is_fsdp2:
        return Sharded(accelerator, *_shard(accelerator, objective, optimizer), clip=clip)
    with warnings.catch_warnings():  # torch's note about an argument that Accelerate passes on
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        return Engine(accelerator, *accelerator.prepare(objective, optimizer), clip=clip)


def _shard(accelerator: Accelerator, objective: Objective, optimizer: Optimizer) -> tuple[Any, Any]:
    """Shard the weights in place; evaluation gathers them as a training step does."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    fsdp_config.check_weights(objective, accelerator.state.fsdp_plugin)
    if accelerator.native_amp:  # Accelerate leaves it to a policy, see `fsdp_config.honour`
        objective.forward = accelerator.autocast()(objective.forward)  # type: ignore[method-assign]
    split, prepared = accelerator.prepare(objective, optimizer)
    for name in ("scores", "features", "embedded"):
        register_fsdp_forward_method(split, name)
    return split, prepared
