"""DeepSpeed as an Accelerate configuration file asks for it: what is honoured, what is refused in one line.

The file says how the optimiser's state is split (ZeRO stage 1, or 2 for gradients as well) and how that is
communicated. All that decides the result is in the recipe. For stage 3, which splits weights too, use FSDP.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError, nearest

ASKED = "PROBE_ZERO"  # tells the processes: DeepSpeed's `zero_optimization`, as JSON
AUTO: tuple[Any, ...] = (None, "auto", "none", False, {})
HARMLESS = (
    "deepspeed_multinode_launcher",  # the processes are started as without DeepSpeed
    "steps_per_print",
    "wall_clock_breakdown",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)
RECIPE = {  # what to set instead
    "bf16": "train.precision",
    "fp16": "train.precision",
    "gradient_accumulation_steps": "train.micro_batch",
    "gradient_clipping": "train.clip",
    "optimizer": "train.optimizer",
    "scheduler": "train.warmup_epochs",
    "train_batch_size": "train.batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
}
COMMUNICATION: dict[str, type] = {  # how the parts travel; results do not depend on it
    "allgather_bucket_size": int,
    "allgather_partitions": bool,
    "contiguous_gradients": bool,
    "overlap_comm": bool,
    "reduce_bucket_size": int,
    "reduce_scatter": bool,
}
STAGES = (1, 2)
NO_GRADIENTS = (
    "it works on whole gradients, of which DeepSpeed leaves each process a part; train it with "
    "distributed_type: FSDP, or without splitting"
)


def asked() -> dict[str, Any] | None:
    """What this process was told by its launcher; None without DeepSpeed."""
    return json.loads(os.environ[ASKED]) if ASKED in os.environ else None


def environment(config: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """What to tell the processes of a configuration's `deepspeed_config`."""
    if find_spec("deepspeed") is None:
        raise UserError(f"{config} asks for DeepSpeed, which is not installed; pip install deepspeed")
    return {ASKED: json.dumps(zero(config, given))}


def zero(config: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section `zero_optimization`, checked, of Accelerate's words and of the file that they may name."""
    words = dict(_table(config, "deepspeed_config", given))
    name, stage = words.pop("deepspeed_config_file", None), words.pop("zero_stage", None)
    where = config
    if name is not None:  # Accelerate looks for it in the working folder; most people mean the file's own
        where = Path(str(name)) if Path(str(name)).exists() else config.parent / str(name)
        words.update(_json(where))
    section = dict(_table(where, "zero_optimization", words.pop("zero_optimization", {})))
    default = 2 if name is None else 0  # Accelerate's, DeepSpeed's
    if stage is not None and str(section.setdefault("stage", stage)) != str(stage):
        raise UserError(f"{config} asks for ZeRO stage {stage}, {where} for stage {section['stage']}")
    section.setdefault("stage", default)
    for device in ("offload_optimizer", "offload_param"):
        to = words.pop(f"{device}_device", None)
        section.setdefault(device, {} if to in AUTO else {"device": to})
    for word, value in words.items():
        if word in RECIPE:
            _leave_out(where, word, value)
        elif word not in HARMLESS:
            meant = nearest(word, ["zero_stage", "deepspeed_config_file", "zero_optimization", *RECIPE])
            raise UserError(f"{where}: {word} is not supported, leave it out{meant}")
    return _checked(where, section)


def _table(where: Path, name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: {name} is not a table of settings")
    return given


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(reading.text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a DeepSpeed configuration: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a DeepSpeed configuration: it holds no table of settings")
    return content


def _leave_out(where: Path, word: str, value: Any) -> None:
    open_ = value.get("enabled", True) if isinstance(value, dict) and value else value
    if open_ not in AUTO and (word, value) != ("gradient_accumulation_steps", 1):
        raise UserError(f"{where}: {word} is the recipe's to say; leave it out and set {RECIPE[word]}")


def _checked(where: Path, section: dict[str, Any]) -> dict[str, Any]:
    for device in ("offload_optimizer", "offload_param"):
        to = section.pop(device)
        if (to.get("device") if isinstance(to, dict) else to) not in AUTO:
            raise UserError(f"{where}: {device} is not supported; leave it out, and use more processes")
    stage = str(section.pop("stage"))
    if stage == "3":
        raise UserError(
            f"{where}: ZeRO stage 3 splits weights, which FSDP does here; use distributed_type: FSDP with "
            "fsdp_version: 2, or stage 2"
        )
    if stage not in map(str, STAGES):
        raise UserError(f"{where}: ZeRO stage {stage} splits nothing; use stage 1 or 2, or no DeepSpeed")
    chosen = {word: value for word, value in section.items() if value is False or value not in AUTO}
    return {"stage": int(stage), **{word: _word(where, word, value) for word, value in chosen.items()}}


def _word(where: Path, word: str, value: Any) -> bool | int:
    """One of the words about communication, of the right type."""
    if word not in COMMUNICATION:
        meant = nearest(word, COMMUNICATION)
        raise UserError(f"{where}: zero_optimization.{word} is not supported, leave it out{meant}")
    if COMMUNICATION[word] is bool and isinstance(value, bool):
        return value
    if COMMUNICATION[word] is int and type(value) in (int, float) and value >= 1:
        return int(value)
    wanted = "true or false" if COMMUNICATION[word] is bool else "a number"
    raise UserError(f"{where}: zero_optimization.{word} is {value!r}; give {wanted}")
