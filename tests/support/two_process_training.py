"""Run on every process of a small world: trains several ways and lets process 0 write what came out."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from probe.system.world import rank
from tests.support.training_world import feature_training, image_training, tiny_resnet, tiny_vit, weights


class Little(nn.Linear):
    """Process 0 has no room for more than five samples."""

    def __init__(self) -> None:
        super().__init__(12, 12)
        nn.init.eye_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 5 and rank() == 0 and self.training:
            raise RuntimeError("CUDA out of memory.")
        return super().forward(x)


def _lora(models: Path) -> object:
    return image_training(tiny_vit(models / "vit"), epochs=1, tune="lora:2")


def cases(models: Path) -> dict[str, object]:
    """Every way of training that must not depend on the number of processes."""
    no_luck = {"crop": "none"}
    return {
        "features-erm": lambda: feature_training(held=True),
        "features-mr2": lambda: feature_training("mr2", momentum=0.5),
        "features-cb": lambda: feature_training("cb", sampler="sqrt"),
        "features-pairs-in-parts": lambda: feature_training(sampler="pairs", micro_batch=4),
        "features-sam": lambda: feature_training("sam"),
        "features-jtt": lambda: feature_training("jtt", {"first_epochs": 1}),
        "vit-erm": lambda: image_training(tiny_vit(models / "vit"), epochs=1, clip=1.0),
        "vit-mr2": lambda: image_training(tiny_vit(models / "vit"), "mr2", {"lam": 0.01}, epochs=1, clip=1.0),
        "resnet-joined-norm": lambda: image_training(
            tiny_resnet(models / "rn"), epochs=1, augment=no_luck, lr=1e-3
        ),
        "resnet-frozen-norm": lambda: image_training(
            tiny_resnet(models / "rn"), epochs=1, batch_norm="frozen", lr=1e-3
        ),
        "vit-last-layer": lambda: image_training(tiny_vit(models / "vit"), epochs=1, tune="last:1"),
        "resnet-norms": lambda: image_training(
            tiny_resnet(models / "rn"), epochs=1, batch_norm="frozen", tune="norms", ema=0.5
        ),
        **({"vit-lora": lambda: _lora(models)} if find_spec("peft") else {}),
        "one-has-little-memory": lambda: feature_training(encoder=Little(), micro_batch="auto"),
        "supcon-unused-head": lambda: image_training(tiny_vit(models / "vit"), "supcon", epochs=1, clip=1.0),
    }


def main(out: Path, models: Path) -> None:
    torch.set_num_threads(1)
    for name, build in cases(models).items():
        training = build()
        progress = training.run()
        scores = training.evaluate(training.task.train)
        state = weights(training)  # of shards: by all processes together
        if rank() == 0:
            save_file({**state, "scores": scores}, out / f"{name}.safetensors")
            rows = {"processes": training.processes, "epochs": progress.epochs}
            (out / f"{name}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
