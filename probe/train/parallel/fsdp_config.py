"""FSDP as an Accelerate configuration file asks for it: what is honoured, and what is refused in one line.

Version 2 only (torch's `fully_shard`): version 1 flattens the parameters of a block into one vector, so that
neither a parameter group, nor an average, nor a checkpoint could still name a weight.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from probe.errors import UserError
from probe.train.parallel import deepspeed_config

if TYPE_CHECKING:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from torch import nn

    from probe.recipe.train_settings import TrainConfig

ASKED = "ACCELERATE_USE_FSDP"  # set by Accelerate's launcher
# Every process loads its own weights; otherwise transformers would leave them empty on all but one.
LOADS_EVERYWHERE = {"fsdp_cpu_ram_efficient_loading": "false"}
SPLITTING = ("FSDP", "DEEPSPEED")
REFUSED = ("MEGATRON_LM", "TP")
RENAMED = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}

# What is not supported, and what to do instead: in the configuration, and in the recipe.
Refusals = Mapping[str, Callable[[Any], bool]]
PLUGIN: Refusals = {
    "fsdp_version 1 keeps no names of weights; set fsdp_version: 2": lambda p: p.fsdp_version != 2,
    "fsdp_offload_params is not supported; leave it out, and use more processes": lambda p: (
        type(p.cpu_offload).__name__ == "CPUOffloadPolicy"  # its opposite is an object too
    ),
    "fsdp_auto_wrap_policy SIZE_BASED_WRAP also cuts out modules that are not called as modules; use "
    "TRANSFORMER_BASED_WRAP with fsdp_transformer_layer_cls_to_wrap, or NO_WRAP": lambda p: (
        getattr(p.auto_wrap_policy, "__name__", "") == "size_based_auto_wrap_policy"
    ),
    "fsdp_activation_checkpointing would rename weights; leave it out and set "
    "train.grad_checkpointing=true": lambda p: p.activation_checkpointing,
    "fsdp_ignored_modules would be trained by each process for itself; leave it out": lambda p: (
        p.ignored_modules is not None
    ),
}
RECIPE: Refusals = {
    "split weights train in fp32 or bf16 here; set train.precision=bf16": lambda s: s.precision == "fp16",
    "split weights are laid out plainly; set train.channels_last=false": lambda s: s.channels_last,
    "what fits into memory cannot be tried out with split weights; set train.micro_batch to a number": (
        lambda s: s.micro_batch == "auto"
    ),
    "split weights are all trained; set train.tune=all, or train on whole weights": lambda s: s.tune != "all",
}


def asked() -> bool:
    """Was this process started with an FSDP configuration?"""
    return os.environ.get(ASKED, "").lower() == "true"


def read(config: Path) -> tuple[str, Any]:
    """How an Accelerate configuration file wants to train, and all that it says."""
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        reading.content(config)
        given = load_config_from_file(str(config))
    except Exception as error:  # a YAML error, an unknown key, a missing file: whatever its reader finds
        raise UserError(
            f"{config} is not an Accelerate configuration: {str(error).splitlines()[0]}"
        ) from error
    kind = str(getattr(given.distributed_type, "value", given.distributed_type))
    check_kind(kind)
    if given.parallelism_config:
        raise UserError(
            f"{config}: parallelism_config is not supported; leave it out, FSDP splits the weights"
        )
    return kind, given


def check_file(config: Path, processes: int) -> None:
    """Refuse a configuration that this many processes cannot have."""
    kind, given = read(config)
    if kind in SPLITTING and processes < 2:
        raise UserError(
            f"{config} asks for {kind}, which splits weights between processes; use --gpus 2 or more"
        )
    if kind == "DEEPSPEED":
        deepspeed_config.environment(config, given.deepspeed_config or {})


def check_kind(kind: str) -> None:
    """Refuse the ways of splitting weights that are not supported."""
    if kind in REFUSED:
        raise UserError(
            f"distributed_type: {kind} is not supported; use distributed_type: FSDP with fsdp_version: 2"
        )


def environment(config: Path) -> dict[str, str]:
    """Environment variables about splitting, as Accelerate's launcher would set them on GPUs."""
    kind, given = read(config)
    if kind == "DEEPSPEED":
        return deepspeed_config.environment(config, given.deepspeed_config or {})
    if kind != "FSDP":
        raise UserError(
            f"{config} says distributed_type: {kind}; this machine has no GPU, and on CPUs only FSDP and "
            "DEEPSPEED are taken from a configuration file"
        )
    words = {**(given.fsdp_config or {}), **LOADS_EVERYWHERE}
    return {ASKED: "true", **{RENAMED.get(name, name.upper()): str(value) for name, value in words.items()}}


def flags(config: Path) -> list[str]:
    """More words for Accelerate's launcher; DeepSpeed is started by the processes themselves, not by it."""
    if read(config)[0] == "DEEPSPEED":
        os.environ.update(environment(config))
        return ["--multi_gpu"]
    return [word for name, value in LOADS_EVERYWHERE.items() for word in (f"--{name}", value)]


def check_recipe(settings: TrainConfig) -> None:
    """Refuse what a recipe cannot have when weights are split."""
    _refuse(RECIPE, settings)


def _refuse(refusals: Refusals, given: Any) -> None:
    for why, present in refusals.items():
        if present(given):
            raise UserError(why)


def check(settings: TrainConfig) -> FullyShardedDataParallelPlugin:
    """What the configuration asks for, as Accelerate's plugin; raises where this recipe cannot have it."""
    from accelerate import FullyShardedDataParallelPlugin

    try:
        plugin = FullyShardedDataParallelPlugin()
    except ValueError as error:
        raise UserError(f"the configuration's fsdp_config: {str(error).splitlines()[0]}") from error
    _refuse(PLUGIN, plugin)
    check_recipe(settings)
    plugin.cpu_ram_efficient_loading = False
    # Autocast rounds what a layer computes, as without FSDP; a policy would round class statistics as well.
    plugin.mixed_precision_policy = None
    return plugin


def honour(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin) -> None:
    """Make `accelerator` shard as the plugin says.

    Accelerate looks for one on GPUs only, and only at a process's first Accelerator; torch shards on any
    device, so that a configuration can be tried anywhere.
    """
    from accelerate import DistributedType

    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin


def check_weights(objective: nn.Module, plugin: FullyShardedDataParallelPlugin) -> None:
    """Refuse what torch cannot split, and layers that are not there."""
    for name, parameter in objective.named_parameters():
        if parameter.ndim == 0:
            raise UserError(f"FSDP cannot split {name}, a weight without dimensions; train without FSDP")
    kinds = Counter(type(module).__name__ for module in objective.modules() if list(module.children()))
    for name in plugin.transformer_cls_names_to_wrap or ():
        if name not in kinds:
            repeated = ", ".join(kind for kind, times in kinds.most_common() if times > 1) or "none"
            raise UserError(
                f"fsdp_transformer_layer_cls_to_wrap: {name} is not a layer of this network; "
                f"those that it repeats: {repeated}"
            )
