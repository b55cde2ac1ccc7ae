"""Run on every process of a small world: trains several ways and lets process 0 write what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from probe.system.world import rank
from probe.train.loop import Training
from tests.support.seam_method import everything
from tests.support.training_world import (
    feature_training,
    image_training,
    tiny_convnet,
    tiny_resnet,
    tiny_vit,
    whole_state,
)


class Little(nn.Linear):
    """Process 0 has no room for more than five samples."""

    def __init__(self) -> None:
        super().__init__(12, 12)
        nn.init.eye_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 5 and rank() == 0 and self.training:
            raise RuntimeError("CUDA out of memory.")
        return super().forward(x)


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
        "one-has-little-memory": lambda: feature_training(encoder=Little(), micro_batch="auto"),
        "resnet-own-networks": lambda: image_training(
            tiny_resnet(models / "rn"), method=everything(4), epochs=1, lr=1e-3
        ),
        "features-lff": lambda: feature_training("lff", epochs=2),
        "vit-ncl": lambda: image_training(
            tiny_vit(models / "vit"), "ncl", {"experts": 2, "hard": 2, "contrast": 0.5}, epochs=1
        ),
        "vit-dbm-ncl": lambda: image_training(
            tiny_vit(models / "vit"), "dbm-ncl", {"experts": 2, "hard": 2}, epochs=1, kind="cosine", lr=1e-3
        ),
        "supcon": lambda: contrast("supcon"),
        "supcon-two-stages": lambda: contrast("supcon", stage="two"),  # each leaves some weights alone
        "bcl": lambda: contrast("bcl"),
        "paco": lambda: contrast("paco", queue=24),
        "gpaco": lambda: contrast("gpaco", queue=24),
        "gml": lambda: contrast("gml", queue=24),
    }


def contrast(name: str, **params: Any) -> Training:
    """Projections, copies and queues; queues that are full after two of the six steps."""
    return image_training(
        tiny_convnet(), name, {"hidden": 16, "embedding": 8, **params}, epochs=2, lr=1e-3, ema=0.9
    )


def main(out: Path, models: Path) -> None:
    torch.set_num_threads(1)
    for name, build in cases(models).items():
        training = build()
        progress = training.run()
        scores = training.evaluate(training.task.train)
        state = whole_state(training)  # of shards: by all processes together
        if rank() == 0:
            save_file({**state, "scores": scores}, out / f"{name}.safetensors")
            rows = {"processes": training.processes, "epochs": progress.epochs}
            (out / f"{name}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
