"""Two processes give the losses, statistics and gradients of one process on the joined batch."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import probe.losses
from probe.core import collectives
from probe.core.class_stats import ClassStats
from tests.support.loss_cases import PARAMS

K, D, STEPS = 5, 4, 2
COUNTS = [200.0, 5.0, 60.0, 9.0, 30.0]
PARTS = (slice(0, 9), slice(9, 14))  # uneven: 9 and 5 rows
SETTINGS = {
    **PARAMS,
    "ef": {"frequency": [0.9, 0.3, 0.5, 0.7, 0.2]},
    "eql": {"gamma": 0.5, "threshold": 0.1},
    "dro": {"eta": 0.5},
    "lgm": {"dim": D, "diagonal": True},
}


class Model(torch.nn.Module):
    """One trainable map to features and one to logits, and the loss's own parameters."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Linear(6, D, dtype=torch.float64)
        self.head = torch.nn.Linear(D, K, dtype=torch.float64)
        self.loss = probe.losses.make(
            name, num_classes=K, class_counts=COUNTS, **SETTINGS.get(name, {})
        ).double()
        self.cosines = probe.losses.info(name).takes == "cosines"

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x)
        logits = self.head(features)
        return self.loss(torch.tanh(logits) if self.cosines else logits, y, features)


def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(14, 6, generator=g, dtype=torch.float64), torch.randint(0, K, (14,), generator=g)


def course(name: str, rank: int | None) -> dict[str, torch.Tensor]:
    """Losses and gradients of each step, and the state at the end."""
    model: torch.nn.Module = Model(name)
    inner = model
    if rank is not None:
        model = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=True)
    seen = {}
    for step in range(STEPS):
        x, y = batches(step)
        if rank is not None:
            x, y = x[PARTS[rank]], y[PARTS[rank]]
        model.zero_grad()
        torch.manual_seed(step + 100 * (rank or 0))  # as in a training: the generators of processes differ
        value = model(x, y)
        value.backward()
        seen[f"loss {step}"] = value.detach()
        for key, parameter in inner.named_parameters():
            seen[f"gradient {step} {key}"] = (
                torch.zeros(1) if parameter.grad is None else parameter.grad.clone()
            )
    return {**seen, **{k: v.double() for k, v in inner.state_dict().items()}}


def work(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    result = {name: course(name, rank) for name in probe.losses.names()}
    x, y = batches(0)
    result["statistics"] = {}
    for p in (2, 5):
        part = ClassStats.from_features(x[PARTS[rank]], y[PARTS[rank]], K, p, across_processes=True)
        for field in ("count", "mean", "mean_norm2", "spread2"):
            result["statistics"][f"{field} {p}"] = getattr(part, field)
    (joined,) = collectives.gather(x[PARTS[rank]])
    result["statistics"]["gathered"] = joined
    result["statistics"]["mean"] = collectives.mean(x[PARTS[rank], 0])
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two gloo processes saw."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", probe.losses.names())
def test_losses_state_and_averaged_gradients_equal_one_process(two, name):
    alone = course(name, None)
    for rank in range(2):
        seen = two[rank][name]
        assert seen.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(
                seen[key], value, rtol=1e-10, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}"
            )


def test_statistics_of_parts_are_those_of_the_whole(two):
    x, y = batches(0)
    for rank in range(2):
        seen = two[rank]["statistics"]
        for p in (2, 5):
            whole = ClassStats.from_features(x, y, K, p)
            for field in ("count", "mean", "mean_norm2", "spread2"):
                torch.testing.assert_close(
                    seen[f"{field} {p}"], getattr(whole, field), rtol=1e-10, atol=1e-10
                )
        assert torch.equal(seen["gathered"], x)
        torch.testing.assert_close(seen["mean"], x[:, 0].mean())
