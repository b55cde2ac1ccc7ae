"""Everything that trains or encodes keeps to the device of its input: shown on a device that is fake."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from probe import heads, losses, methods
from probe.core.class_stats import ClassStats
from probe.features.encoder import BatchEncoder, device_of
from probe.features.transfers import transfers
from probe.losses.base import Loss
from probe.train.inputs.batch import Batch
from probe.train.model.network import Network
from probe.train.step import Objective
from tests.support import feature_world
from tests.support.fake_device import DEVICE, fake_device, moved, sent

N, D, K = 12, 8, 6
LABELS = np.arange(N) % K
PARAMS = {"ef": {"frequency": [0.9, 0.3, 0.5, 0.7, 0.2, 0.6]}}


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def stats() -> ClassStats:
    return ClassStats.from_features(torch.randn(N, D), torch.as_tensor(LABELS), K)


def made(name: str) -> methods.base.Method:
    params = PARAMS.get(name, {})
    return methods.make(name, params, num_classes=K, class_counts=np.bincount(LABELS), dim=D)


def test_an_operation_on_two_devices_is_found():
    with fake_device() as mode:
        x = sent(torch.ones(3), mode)
        assert (x + x)[torch.arange(2)].device == DEVICE
        with pytest.raises(RuntimeError, match="device"):
            x + torch.ones(3)


class Forgetful(torch.autograd.Function):
    """A hand-written backward pass that makes a tensor without a device."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.ones(3)


def test_an_operation_on_two_devices_is_found_in_a_backward_pass():
    with fake_device() as mode:
        x = sent(torch.ones(3), mode).requires_grad_()
        (2 * x).sum().backward()
        assert x.grad.device == DEVICE
        with pytest.raises(RuntimeError, match="two devices"):
            Forgetful.apply(x).sum().backward()


def test_afterwards_there_is_no_accelerator_and_gradients_are_as_before():
    before = torch.accelerator.current_accelerator()
    with fake_device():
        pass
    assert torch.accelerator.current_accelerator() == before
    x = torch.ones(3, requires_grad=True)
    x.square().sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", losses.names())
def test_a_loss_keeps_to_the_device_of_its_logits(name):
    loss: Loss = made(name).loss
    if loss.wanted_stats() is not None:
        loss.prepare(stats())
    loss.train()
    with fake_device() as mode:
        moved(loss, mode)
        logits = sent(torch.randn(N, K).tanh(), mode).requires_grad_()
        features = sent(torch.randn(N, D), mode).requires_grad_()
        value = loss(logits, sent(torch.as_tensor(LABELS), mode), features)
        assert value.device == DEVICE
        value.backward()
        assert {x.grad.device for x in (logits, features) if x.grad is not None} == {DEVICE}


@pytest.mark.parametrize("kind", ["linear", "cosine", "etf", "adapter"])
def test_a_head_keeps_to_the_device_of_its_features(kind):
    head = heads.make(kind, D, K)
    with fake_device() as mode, torch.no_grad():
        moved(head, mode)
        x = sent(torch.randn(N, D), mode)
        assert head(x).device == DEVICE
        assert kind not in ("cosine", "etf") or head.cosines(x).device == DEVICE
        head.start_from_means(sent(torch.randn(K, D), mode))
        assert {p.device for p in head.parameters()} <= {DEVICE}


def trained(name: str) -> list[str]:
    """Two steps of a method on the fake device; the parameters and buffers that are not there in the end."""
    method = made(name)
    wanted = method.head or ("cosine" if method.takes == "cosines" else "linear")
    network = Network(nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D)), heads.make(wanted, D, K))
    method.build(network, LABELS)
    if method.wanted_stats() is not None:
        method.prepare(stats())
    objective = Objective(network, method)
    objective.train()
    with fake_device() as mode:
        moved(objective, mode)
        method.start_epoch(0, 2)
        method.set_strength(1.0)
        views = tuple(sent(torch.randn(N, D), mode) for _ in method.views)
        batch = Batch(views, sent(torch.as_tensor(LABELS), mode), torch.arange(N))
        optimizer = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = objective(batch)
            assert loss.device == DEVICE
            loss.backward()
            optimizer.step()
            method.after_step(network)
        tensors = {**dict(objective.named_parameters()), **dict(objective.named_buffers())}
        return [key for key, x in tensors.items() if x.device != DEVICE]


@pytest.mark.parametrize("name", [row.name for row in methods.catalogue.METHODS])
def test_a_method_with_its_networks_and_memories_trains_on_the_device(name):
    assert trained(name) == []


class Lane(torch.Stream):
    """A stream of the fake device, whose events have always happened already."""

    def record_event(self, event=None):
        return SimpleNamespace(synchronize=lambda: None)


def test_the_encoder_works_on_the_device_and_gives_its_features_to_the_cpu(monkeypatch):
    monkeypatch.setattr(torch, "Stream", Lane)
    backbone = feature_world.backbone()
    encoder = BatchEncoder(backbone, batch_size=4, precision="float32", compile=False)
    with fake_device() as mode:
        moved(backbone, mode)
        encoder.device, encoder._transfers = device_of(backbone), transfers(DEVICE)
        assert encoder.device == DEVICE
        found = encoder(torch.zeros(4, 3, 16, 16, dtype=torch.uint8))
        assert (found.device.type, tuple(found.shape)) == ("cpu", (4, 32))
