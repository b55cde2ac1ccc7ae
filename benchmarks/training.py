"""What the training loop costs over a bare one, and what indexing a tensor saves over a DataLoader.

overhead   the same model, loss, data and optimiser in a bare torch loop and in `probe.train`; target <= 5 %
probing    epochs per second of SGD probing on cached features, against a DataLoader over a TensorDataset with
           two workers (shuffled, default collation); target >= 10 x

Both sides alternate on the same threads (a user's default: one a core); medians count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from probe import heads, losses, methods
from probe.recipe.train_settings import TrainConfig
from probe.report.text.format import signed
from probe.train.inputs.loaders import FeatureLoader
from probe.train.loop import Training
from probe.train.model.network import Network
from probe.train.schedule import factor
from probe.train.sgd import frozen_loss
from probe.train.task import Task

CLASSES = 37
RATE = 0.05


def data(n: int, dim: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, dim, generator=rng), torch.randint(CLASSES, (n,), generator=rng)


def encoder(dim: int, width: int) -> nn.Module:
    """A small perceptron: enough arithmetic that a step is a step, little enough that overhead would show."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(dim, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, dim)
    )


def ours(
    X: Tensor, y: Tensor, batch: int, epochs: int, model: nn.Module, *, frozen: bool = False
) -> Callable[[], float]:
    network = Network(model, heads.make("linear", X.shape[1], CLASSES))
    loader = FeatureLoader(X, y.numpy(), [str(i) for i in range(len(y))])
    loss = losses.make("erm", num_classes=CLASSES)
    method = methods.around(frozen_loss(loss) if frozen else loss, "erm", {})  # as `probe_sgd` does
    task = Task(network, method, loader, CLASSES, "sgd", epochs)
    training = Training(task, TrainConfig(batch_size=batch, lr=RATE), show=False)

    def run() -> float:
        begin = time.perf_counter()
        training.run()
        return time.perf_counter() - begin

    return run


def bare(X: Tensor, y: Tensor, batch: int, epochs: int, model: nn.Module) -> Callable[[], float]:
    """The loop that anyone would write first, with a schedule and a shuffled index."""
    head, criterion = nn.Linear(X.shape[1], CLASSES), losses.make("erm", num_classes=CLASSES)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def run() -> float:
        begin, step, curve = time.perf_counter(), 0, []
        total = epochs * -(-len(y) // batch)
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(batch):
                for group in optimizer.param_groups:
                    group["lr"] = RATE * factor(step, total, 0)
                optimizer.zero_grad(set_to_none=True)
                loss = criterion(head(model(X.index_select(0, rows))), y.index_select(0, rows))
                loss.backward()
                optimizer.step()
                curve.append(loss.item())
                step += 1
        return time.perf_counter() - begin

    return run


def loaded(X: Tensor, y: Tensor, batch: int, epochs: int, model: nn.Module) -> Callable[[], float]:
    """The same training, fed by a DataLoader with two workers."""
    head = nn.Linear(X.shape[1], CLASSES)
    optimizer = torch.optim.SGD(head.parameters(), lr=RATE, momentum=0.9, nesterov=True)
    loader = DataLoader(TensorDataset(X, y), batch, shuffle=True, num_workers=2)

    def run() -> float:
        begin = time.perf_counter()
        for _ in range(epochs):
            for rows, labels in loader:
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(head(model(rows)), labels).backward()
                optimizer.step()
        return time.perf_counter() - begin

    return run


def race(
    first: Callable[[], Callable[[], float]], second: Callable[[], Callable[[], float]], rounds: int
) -> tuple[float, float]:
    """The median time of each, alternating; a fresh training every round, and one before that to warm up."""
    times = np.array([(first()(), second()()) for _ in range(rounds + 1)])[1:]
    return float(np.median(times[:, 0])), float(np.median(times[:, 1]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)

    X, y = data(2048, 512)
    a, b = race(
        lambda: ours(X, y, 128, 3, encoder(512, 1024)),
        lambda: bare(X, y, 128, 3, encoder(512, 1024)),
        given.rounds,
    )
    step_a, step_b = 1e3 * a / 48, 1e3 * b / 48
    print(f"overhead   bare {step_b:.2f} ms per step, ours {step_a:.2f} ms: {signed(a / b - 1)} %")

    X, y = data(3680, 1280)
    a, b = race(
        lambda: ours(X, y, 256, 8, nn.Identity(), frozen=True),
        lambda: loaded(X, y, 256, 2, nn.Identity()),
        given.rounds,
    )
    print(f"probing    DataLoader {2 / b:.2f} epochs/s, ours {8 / a:.2f} epochs/s: {(8 / a) / (2 / b):.1f} x")


if __name__ == "__main__":
    main()
