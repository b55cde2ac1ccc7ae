"""A short training of every method of the catalogue on tiny images. As a script, on every process of a small
world, it runs all of them and lets process 0 write what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from probe import methods
from probe.recipe import MethodConfig
from probe.recipe.grammar import parse
from probe.recipe.train_settings import TrainConfig
from probe.system.world import rank
from probe.train.build import make_head, make_method
from probe.train.loop import Training
from probe.train.model.network import Network
from probe.train.task import Task
from tests.support.training_world import Pictures, image_loader, tiny_convnet, whole_state

CLASSES = 4
NEEDED = {"ef": {"frequency": [1.0, 0.4, 0.6, 0.8]}}  # without held-out images nothing measures them
TRAINED = [name for name in methods.names() if not methods.catalogue.is_second_stage(name)]


def training(
    method: str, folder: Path | None = None, *, batch_size: int = 14, lr: float = 0.05, epochs: int = 3
) -> Training:
    """A few epochs on unequal classes, with the head that the method, `name(key=value)`, takes."""
    whole, net = Pictures(48, 16), tiny_convnet()
    rows = np.flatnonzero((whole.labels > 0) | (np.arange(48) < 24))  # half of the first class is left out
    whole.labels, whole.pixels = whole.labels[rows], whole.pixels[rows]
    settings = TrainConfig(batch_size=batch_size, lr=lr, checkpoint_minutes=1e-9)
    given = parse(method)
    choice = MethodConfig(**{**NEEDED.get(given["name"], {}), **given})
    made = make_method(choice, num_classes=CLASSES, labels=whole.labels, dim=net.dim, scratch=True)
    made.from_scratch = True
    torch.manual_seed(1)
    head = make_head(made, settings, dim=net.dim, num_classes=CLASSES, seed=0)
    loader = image_loader(whole, net, settings)
    task = Task(Network(net.encoder, head), made, loader, CLASSES, "sgd", epochs)
    return Training(task, settings, folder=folder, digest=method, show=False)


# What a default does not reach: other stages, terms, memories and statistics of the same methods.
FORMS = [
    "supcon(stage=two)",
    "fairdro(every=pass)",
    "mr2(scale=spread)",
    "mr2(scale=none, statistic=moment, lam=0.001)",
    "drw(ldam, after=0.5)",
    "drw(elm, after=0.5)",
    "jtt(mr2, first_epochs=1)",
    "sam(mr2, adaptive=true)",
    "ef(form=weights)",
    "eql(threshold=0.5, gamma=0.5)",
    "lgm(diagonal=true)",
    "ncl(experts=2, hard=2, contrast=0.5)",
    "paco(queue=24, hidden=16, embedding=8)",
    "gpaco(queue=24, hidden=16, embedding=8, smoothing=0.1)",
    "gml(queue=24, hidden=16, embedding=8)",
]
# Angles times 30 blow rounding errors up at larger rates; fairdro's weights, directions of class losses, at
# smaller ones, where these still agree.
LR = {"fairdro": 0.01}
UNEVEN = 15  # samples of a batch: two processes have 8 and 7, and 6 each of the last


def outcome(method: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The losses of the epochs and the number of processes; the weights, the memories and the scores."""
    made = training(method, batch_size=UNEVEN, lr=LR.get(method, 1e-3), epochs=2)
    progress = made.run()
    told = {"processes": made.processes, "losses": [row["loss"] for row in progress.epochs]}
    return told, {**whole_state(made), "scores": made.evaluate(made.task.train)}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for number, method in enumerate([*TRAINED, *FORMS]):
        told, tensors = outcome(method)
        if rank() == 0:
            save_file(tensors, out / f"{number}.safetensors")
            (out / f"{number}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
