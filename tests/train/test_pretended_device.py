"""A training on a device gives the bits of the same training on the CPU, for every method of the catalogue:
no tensor is made, remembered or read on the wrong device, whatever the numbers decide."""

from __future__ import annotations

import pytest
import torch

from probe import heads, losses
from probe.core import bfloat16
from probe.core.class_stats import ClassStats
from probe.probing.classifier import ProbeClassifier
from probe.solve import basis, knn
from tests.support import every_method, training_world
from tests.support.pretended_device import DEVICE, OnDevice, pretended_device, training_there

EXACT = [name for name in losses.names() if losses.info(name).frozen == "exact"]


def test_two_devices_in_one_operation_are_found_and_what_cuda_takes_is_not():
    with pretended_device() as device:
        x = torch.arange(6.0).view(3, 2).to(device)
        assert (x[torch.tensor([2, 0])] * torch.tensor(2.0)).tolist() == [[8.0, 10.0], [0.0, 2.0]]
        assert x.cpu().tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        joined = lambda: torch.stack([x.sum(), torch.tensor(1.0)])  # noqa: E731
        for mixed in (lambda: x + torch.ones(2), lambda: torch.cat([x, torch.ones(1, 2)]), joined):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(3)[torch.zeros(1, dtype=torch.int64, device=device)]


@pytest.mark.parametrize("method", [*every_method.TRAINED, *every_method.FORMS])
def test_every_method_trains_on_a_device_to_the_same_bits(method):
    losses_here, here = outcome(method)
    with training_there():
        losses_there, there = outcome(method, DEVICE)
    assert losses_there == losses_here
    assert there.keys() == here.keys()
    assert [key for key in here if not torch.equal(here[key], there[key])] == []


def outcome(method, device=None):
    """The losses of the epochs; the weights, the memories and the scores."""
    made = every_method.training(method, epochs=2)
    assert made.device == (device or torch.device("cpu"))
    progress = made.run()
    state = {**training_world.whole_state(made), "scores": made.evaluate(made.task.train)}
    return [row["loss"] for row in progress.epochs], {key: _plain(x) for key, x in state.items()}


def _plain(x):
    return x.held if isinstance(x, OnDevice) else x


@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({"ema": 0.9, "clip": 1.0}, "sgd"),
        ({"micro_batch": 4, "keep": "best"}, "adamw"),
        ({"batch_norm": "frozen", "sampler": "balanced"}, "adamw"),
    ],
)
def test_averages_validation_and_resuming_are_the_same_on_a_device(tmp_path, settings, optimizer):
    def trained(folder):
        options = {"held": True, "encoder": training_world.wobbly_encoder(), "optimizer": optimizer}
        for epochs in (1, 2):  # the second one begins at the first one's checkpoint
            made = training_world.feature_training("mr2", folder=folder, epochs=epochs, **options, **settings)
            progress = made.run()
        return progress.epochs, {key: _plain(x) for key, x in training_world.whole_state(made).items()}

    epochs_here, here = trained(tmp_path / "here")
    with training_there():
        epochs_there, there = trained(tmp_path / "there")
    assert epochs_there == epochs_here
    assert [key for key in here if not torch.equal(here[key], there[key])] == []


@pytest.mark.parametrize(("name", "small"), [*((name, 0) for name in EXACT), ("erm", basis.SMALL)])
def test_every_exact_probe_has_the_same_solution_on_a_device(monkeypatch, name, small):
    monkeypatch.setattr(basis, "SMALL", small)  # 0: passes in float32, judged in float64
    monkeypatch.setattr(bfloat16, "is_native", lambda device: True)  # and rounded on the way, on both
    X, y = training_world.blobs()
    params = {"ef": {"frequency": [0.9, 0.3, 0.5, 0.7, 0.2]}}.get(name)
    here = ProbeClassifier(name, params, device="cpu").fit(X, y).decision_function(X)
    with training_there():
        there = ProbeClassifier(name, params, device="cuda").fit(X, y).decision_function(X)
    assert abs(there - here).max() < 1e-4 * abs(here).max()


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("robust", [False, True])
def test_class_statistics_are_the_same_on_a_device(p, robust):
    X, labels = training_world.blobs()
    here = ClassStats.from_features(X, torch.as_tensor(labels), training_world.K, p=p, robust=robust)
    with pretended_device() as device:
        y = torch.as_tensor(labels).to(device)
        there = ClassStats.from_features(X.to(device), y, training_world.K, p=p, robust=robust)
        assert there.spread2.device == device
        assert there.second_moment.cpu().tolist() == here.second_moment.tolist()


@pytest.mark.parametrize("weighted", [True, False])
def test_nearest_neighbours_are_the_same_on_a_device(weighted):
    X, labels = training_world.blobs()
    X[1] = X[0]  # a tie, which is decided by looking at the numbers
    y = torch.as_tensor(labels)
    options = {"num_classes": training_world.K, "k": 1, "weighted": weighted}
    here = knn.votes(X, y, X, **options)
    with pretended_device() as device:
        there = knn.votes(X.to(device), y.to(device), X.to(device), **options)
        assert there.device == device
        assert there.cpu().tolist() == here.tolist()


@pytest.mark.parametrize("kind", ["linear", "cosine", "etf", "adapter"])
def test_a_head_scores_and_learns_the_same_on_a_device(kind):
    X, labels = training_world.blobs()
    y = torch.as_tensor(labels)
    head = heads.make(kind, training_world.D, training_world.K)

    def gradients(x, y):
        x.requires_grad_()
        torch.nn.functional.cross_entropy(head(x), y).backward()
        return [t.grad.tolist() for t in (x, *head.parameters()) if t.grad is not None]

    here = gradients(X.clone(), y)
    head.zero_grad()
    with pretended_device() as device:
        head.to(device)
        assert gradients(X.to(device), y.to(device)) == here
