"""What a contrast costs beside its passes: a step of `bcl` against plain cross-entropy on the same views.

Both sides train a CIFAR ResNet-32 on the same three views of a batch of 128 images of 32 pixels, by the same
training step (forward pass of all views at once, loss, backward pass, update); only the loss differs. Steps
alternate on the same threads and medians count. Target: at most 1.15 x. `--methods` measures others, against
cross-entropy on as many views as they draw.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import backbones
from probe import heads, methods
from probe.methods.base import Method
from probe.methods.networks import joined
from probe.methods.protocols import BatchLike, NetworkLike
from probe.recipe.train_settings import TrainConfig
from probe.train.inputs.batch import Batch
from probe.train.loop import Training
from probe.train.model.network import Network
from probe.train.task import Task

CLASSES, PIXELS = 100, 32


class EveryView(Method):
    """Plain cross-entropy of all views that another method draws."""

    def objective(self, network: NetworkLike, batch: BatchLike) -> Tensor:
        scores, features = network.parts(joined(batch.views), self.takes)
        return self.loss(scores, batch.targets.repeat(len(batch.views)), features)


@dataclass(frozen=True)
class Noise:
    """Images in memory, the same for both sides: no loader is measured."""

    n: int
    eval_batch_size: int = 256
    draws_views: bool = True
    groups: Tensor | None = None

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.arange(self.n) % CLASSES

    @property
    def ids(self) -> list[str]:
        return [str(i) for i in range(self.n)]

    def train_batches(
        self, epoch: int, parts: Sequence[NDArray[np.int64]], views: Sequence[str]
    ) -> Iterator[Batch]:
        rng = torch.Generator().manual_seed(epoch)
        for part in parts:
            drawn = tuple(torch.randn(len(part), 3, PIXELS, PIXELS, generator=rng) for _ in views)
            index = torch.from_numpy(np.ascontiguousarray(part))
            yield Batch(drawn, torch.as_tensor(self.labels[part]), index)

    def eval_batches(self, parts: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        return self.train_batches(0, parts, ("own",))


def training(name: str, batch: int, *, plain: bool) -> Training:
    """The method, or cross-entropy on its views."""
    data = Noise(batch)
    backbone = backbones.load("cifar-resnet32", seed=0)
    backbone.encoder.requires_grad_(True)
    counts = np.bincount(data.labels, minlength=CLASSES)
    method = methods.make(name, {}, num_classes=CLASSES, class_counts=counts, dim=backbone.dim)
    if plain:
        views = method.views
        method = EveryView(methods.make("erm", {}, num_classes=CLASSES).loss)
        method.views = views
    head = heads.make("linear" if method.takes == "logits" else "cosine", backbone.dim, CLASSES)
    task = Task(Network(backbone.encoder, head), method, data, CLASSES, "sgd", 1)
    return Training(task, TrainConfig(batch_size=batch, lr=0.1), show=False)


def race(name: str, batch: int, rounds: int) -> tuple[float, float]:
    """Median seconds of a step with the method, and with plain cross-entropy."""
    sides = [training(name, batch, plain=plain) for plain in (False, True)]
    steps = [next(side.steps(side.task.train, side.make_sampler(), 0)) for side in sides]
    times = np.empty((rounds + 1, 2))
    for row in times:
        for i, (side, step) in enumerate(zip(sides, steps, strict=True)):
            begin = time.perf_counter()
            side.move(step)
            row[i] = time.perf_counter() - begin
    ours, plain = np.median(times[1:], axis=0)  # the first round warms up
    return float(ours), float(plain)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", default=["bcl"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(argv)
    for name in given.methods:
        ours, plain = race(name, given.batch, given.rounds)
        print(
            f"{name}: {1000 * ours:.0f} ms a step, cross-entropy on the same views {1000 * plain:.0f} ms, "
            f"{ours / plain:.2f} x" + (" (target <= 1.15 x)" if name == "bcl" else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
