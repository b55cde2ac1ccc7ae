"""Run on every process of a world whose weights are split: trains several ways, then is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from probe import heads
from probe.errors import UserError
from probe.system.world import rank
from probe.train.loop import Training
from probe.train.lr_search import Search
from probe.train.model import encoder_options
from probe.train.model import tuned_weights as tuned
from probe.train.parallel import dtensor, fsdp_config, launch
from tests.support.seam_method import everything
from tests.support.training_world import (
    Pictures,
    feature_training,
    image_training,
    tiny_convnet,
    tiny_resnet,
    tiny_vit,
    weights,
)

UNEVEN = 43  # pictures: two processes have 22 and 21 of them
CHUNK = 7  # so that they need four and three calls to see theirs
KILLED_AT = 4

CONFIGS = {
    "fsdp": """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
""",
    "zero": """\
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
""",
}


def cases(kind: str, models: Path) -> dict[str, tuple[str, Callable[[], Training]]]:
    """Ways of training, and the layers that become units of their own ("" for none)."""

    def vit(*args: Any, **options: Any) -> Training:
        return image_training(tiny_vit(models / "vit"), *args, pictures=Pictures(UNEVEN), **options)

    def cosine() -> Training:
        head = heads.make("cosine", 12, 5, learn_scale=True)
        return feature_training("ldam", head=head, held=True, keep="best", ema=0.9)

    def found_rate() -> Training:
        training = vit("mr2", {"lam": 0.01}, epochs=1, clip=1.0, ema=0.9, lr=None)
        kept, held = np.arange(0, UNEVEN, 2), np.arange(1, UNEVEN, 2)
        training.search = Search(
            (1e3, 1e-2, 1e-3), *(part(training.task.train, rows) for rows in (kept, held)), {}
        )
        return training

    rows = {
        "vit-found-rate": ("Block", found_rate),
        "vit-erm": ("Block", lambda: vit(epochs=1, clip=1.0, ema=0.9, micro_batch=4)),
        "vit-mr2": ("Block", lambda: vit("mr2", {"lam": 0.01}, epochs=1, clip=1.0)),
        "resnet-frozen-norm": (
            "BasicBlock",
            lambda: image_training(tiny_resnet(models / "rn"), epochs=1, batch_norm="frozen", lr=1e-3),
        ),
        "cosine-best": ("", cosine),
        "unused-layer": ("", lambda: feature_training(encoder=spare_layer(), weight_decay=0.5)),
        "jtt": ("", lambda: feature_training("jtt", {"first_epochs": 1}, epochs=1)),
        "own-networks": ("Block", lambda: vit(method=everything(4), epochs=1, clip=1.0, lr=1e-3)),
        "two-stages": ("", lambda: image_training(tiny_convnet(), "supcon", {"stage": "two"}, lr=1e-3)),
        "vit-sam": ("", lambda: vit("sam", {"adaptive": True}, epochs=1)),
    }
    # SAM adds to the weights what it finds in whole gradients, of which DeepSpeed keeps stretches; DeepSpeed
    # also drops weights that the first stage leaves alone.
    refused = {"zero": ("vit-sam", "two-stages"), "fsdp": ()}[kind]
    return {name: row for name, row in rows.items() if name not in refused}


def part(loader: Any, rows: Any) -> Any:
    """Some rows of a loader of pictures."""
    pictures = Pictures(UNEVEN)
    pictures.labels, pictures.pixels = pictures.labels[rows], pictures.pixels[rows]
    return replace(loader, split=pictures)


def spare_layer() -> nn.Module:
    """An encoder with weights that nothing uses: without a gradient they must not decay either."""
    torch.manual_seed(1)
    used, spare = nn.Linear(12, 12), nn.Linear(12, 12)
    used.register_module("spare", spare)
    return used


def fragile(folder: Path | None, models: Path) -> Training:
    """Adam's memory, an average, class statistics, stochastic depth, recomputed activations."""
    backbone = tiny_vit(models / "vit")
    encoder_options.drop_paths(backbone.encoder, 0.3)
    encoder_options.checkpoint_activations(backbone.encoder)
    return image_training(
        backbone, "mr2", folder=folder, epochs=2, optimizer="adamw", ema=0.9, precision="bf16"
    )


def train(kind: str, out: Path, models: Path) -> None:
    """Every case, to files that process 0 writes."""
    for name, (layers, build) in cases(kind, models).items():
        cut_at(layers)
        training = build()
        progress = training.run()
        scores = training.evaluate(replace(training.task.train, eval_batch_size=CHUNK))
        state = weights(training)
        held = {"weights": list(training.objective.parameters()), "memory": memories(training)}
        numbers = {what: sum(dtensor.local(t).numel() for t in tensors) for what, tensors in held.items()}
        given = training.release().network
        assert not any(vars(parameter) for parameter in given.parameters())  # nothing is tied to them
        if rank() == 0:
            save_file({**state, "scores": scores}, out / f"{name}.safetensors")
            (out / f"{name}.json").write_text(json.dumps({"epochs": progress.epochs, "held": numbers}))
            save_file({k: t.contiguous() for k, t in given.state_dict().items()}, out / f"{name}.given")
            tuned.save(SimpleNamespace(name=name, encoder=given.encoder), out / name / tuned.FILE)


def memories(training: Training) -> list[torch.Tensor]:
    """What the optimiser remembers in this process."""
    kept = training.engine.optimizer.state.values()
    return [value for memory in kept for value in memory.values() if isinstance(value, torch.Tensor)]


def cut_at(layers: str) -> None:
    os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP" if layers else "NO_WRAP"
    os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = layers


def finish(training: Training, path: Path) -> None:
    training.run()
    state = weights(training)
    if rank() == 0:
        save_file(state, path)


def die(training: Training) -> None:
    """kill -9 of every process in the middle of a step."""
    make = training.make_step

    def lethal(*parts: Any) -> Any:
        made = make(*parts)
        if training.state.position.steps == KILLED_AT:
            made.gradients()
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    training.make_step = lethal  # type: ignore[method-assign]
    training.run()


class Spoilt(nn.Linear):
    """From the sixth batch on its gradient is not finite, though the loss is."""

    batches = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.batches += self.training
        if self.batches > 5:
            y.register_hook(lambda gradient: gradient * float("nan"))
        return y


def diverge(out: Path) -> None:
    """Every process says what stopped it."""
    cut_at("")
    training = feature_training(encoder=Spoilt(12, 12))
    try:
        training.run()
    except UserError as error:
        fine = all(t.isfinite().all() for t in weights(training).values())
        (out / f"said-{rank()}").write_text(f"{error}; the weights are {'' if fine else 'not '}finite")


def main(phase: str, kind: str, out: Path, models: Path) -> None:
    if phase == "train":
        train(kind, out, models)
        cut_at("Block")
        finish(fragile(None, models), out / "uninterrupted.safetensors")
        die(fragile(out / "run", models))
    elif phase == "resume":
        finish(fragile(out / "run", models), out / "resumed.safetensors")
    else:
        diverge(out)


def member(number: int, port: int, config: Path, *what: Any) -> None:
    """One of two processes, told what a launcher would tell it."""
    world = {"WORLD_SIZE": 2, "RANK": number, "LOCAL_RANK": number, "MASTER_PORT": port, launch.ASKED: 2}
    os.environ.update({name: str(value) for name, value in world.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **fsdp_config.environment(config)})
    torch.set_num_threads(1)
    main(*what)
