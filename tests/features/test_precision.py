"""Reduced precision: asked for, part of the key, proved on the first batch; and the copies around it."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from probe import features
from probe.cli.options import recipe_from
from probe.core import bfloat16
from probe.errors import UserError
from probe.features import precision, transfers
from tests.support import feature_world as world

OPTIONS = {"shard_rows": 32, "batch_size": 8, "progress": False}
CPU = torch.device("cpu")


@pytest.fixture
def fast_cpu(monkeypatch):
    """A processor with AVX512-BF16; autocast works on any, only slowly."""
    monkeypatch.setattr(bfloat16, "is_native", lambda device: True)


def test_bfloat16_on_a_cpu_gives_nearly_the_same_features_under_a_key_of_its_own(tmp_path, fast_cpu):
    full = features.extract(world.backbone(), world.split(), cache=tmp_path, **OPTIONS)
    low = features.extract(world.backbone(), world.split(), cache=tmp_path, precision="bfloat16", **OPTIONS)
    assert low.key != full.key
    assert not low.cached
    a, b = full.X.tensor(), low.X.tensor()
    assert not torch.equal(a, b)
    assert torch.cosine_similarity(a, b).min() > precision.LEAST_COSINE
    found = features.find(world.backbone(), world.split(), cache=tmp_path, precision="bfloat16")
    assert found is None  # of another shard size
    again = features.extract(world.backbone(), world.split(), cache=tmp_path, precision="bfloat16", **OPTIONS)
    assert again.cached


def test_a_backbone_whose_features_do_not_survive_is_refused_in_one_line(tmp_path, fast_cpu):
    class Offset(nn.Module):
        """Features are small differences of large numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3 * 16 * 16, 32)
            nn.init.constant_(self.linear.bias, 1e4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.flatten(1)) - 1e4

    backbone = world.backbone(encoder=Offset())
    features.extract(backbone, world.split(), cache=tmp_path, **OPTIONS)
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(
        UserError, match=r"bfloat16 features of tiny differ .* use features.precision=float32"
    ):
        features.extract(backbone, world.split(), cache=tmp_path, precision="bfloat16", **OPTIONS)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_the_proof_looks_at_directions_and_at_what_is_not_a_number():
    full = torch.eye(3)
    precision.prove("b", "bfloat16", full * 2, full)
    precision.prove("b", "bfloat16", torch.zeros(2, 3), torch.zeros(2, 3))
    for low in (torch.zeros(3, 3), full.flip(0), full * float("nan")):
        with pytest.raises(UserError, match=r"cosine"):
            precision.prove("b", "bfloat16", low, full)


def test_a_processor_without_units_for_bfloat16_refuses_it_and_is_fastest_in_float32(monkeypatch):
    monkeypatch.setattr(bfloat16, "is_native", lambda device: False)
    assert precision.best(CPU) == "float32"
    with pytest.raises(UserError, match=r"needs AMX or AVX512-BF16; use float32"):
        precision.check("bfloat16", CPU)


@pytest.mark.parametrize(("native", "best"), [(True, "bfloat16"), (False, "float16")])
def test_a_gpu_is_fastest_in_what_its_tensor_cores_have(monkeypatch, native, best):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert precision.best(torch.device("cuda")) == best
    precision.check("float16", torch.device("cuda"))


def test_fast_writes_the_devices_best_into_the_recipe_and_the_default_is_float32(fast_cpu):
    assert recipe_from((), {"fast": True}).features.precision == "bfloat16"
    assert recipe_from((), {"fast": None}).features.precision == "float32"
    assert recipe_from(("features.precision=float32",), {"fast": True}).features.precision == "float32"
    assert recipe_from((), {"fast": True}).digest != recipe_from((), {}).digest


class Recorded:
    """A stream or an event that writes down what is asked of it, in place of a GPU's."""

    log: ClassVar[list[str]] = []
    count = 0

    def __init__(self, device: object = None) -> None:
        self.name = ("in", "out")[Recorded.count]
        Recorded.count += 1

    def __enter__(self):
        self.log.append(f"enter {self.name}")

    def __exit__(self, *error: object):
        self.log.append(f"leave {self.name}")

    def wait_stream(self, other: Recorded):
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        self.log.append(f"event of {self.name}")
        return self

    def synchronize(self):
        self.log.append(f"host waits for {self.name}")


def test_copies_run_on_streams_of_their_own_and_only_the_collector_waits(monkeypatch):
    Recorded.log, Recorded.count = [], 0
    computing = Recorded.__new__(Recorded)
    computing.name = "computing"
    monkeypatch.setattr(torch, "Stream", Recorded)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, s: Recorded.log.append(f"kept for {s.name}"))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    lanes = transfers.Streams(CPU)
    sent = lanes.to_device(torch.ones(2, 3, 4, 4, dtype=torch.uint8))
    collected = lanes.to_host(sent.flatten(1)[:, :5])
    assert Recorded.log == [
        *("enter in", "leave in", "computing waits for in", "kept for computing"),
        *("out waits for computing", "enter out", "kept for out", "event of out", "leave out"),
    ]
    assert torch.equal(collected(), torch.ones(2, 5))
    assert Recorded.log[-1] == "host waits for out"


def test_a_batch_is_sent_before_the_one_before_it_is_collected():
    from collections import deque

    from probe.features.batches import DecodedBatch
    from probe.features.pipeline import _one_behind
    from probe.features.shared_pixels import PixelBuffers

    log = []

    class Encoder:
        def begin(self, pixels):
            number = int(pixels[0, 0, 0, 0])
            log.append(f"sent {number}")
            return lambda: log.append(f"collected {number}") or torch.full((1, 1), float(number))

    buffers = PixelBuffers.for_batches(4, 1, 2)
    buffers.free = deque()
    for i in range(3):
        buffers.places[i] = i
    batches = [DecodedBatch(0, 1, [i], torch.empty(0), {}, place=i) for i in range(3)]
    stream = _one_behind(batches, buffers, Encoder())
    assert [(batch.rows, float(x)) for batch, x in stream] == [([0], 0.0), ([1], 1.0), ([2], 2.0)]
    assert log == ["sent 0", "sent 1", "collected 0", "sent 2", "collected 1", "collected 2"]
    assert list(buffers.free) == [0, 1, 2]
