"""The estimate of memory counts what a step really holds, and touches nothing."""

from __future__ import annotations

import torch
from click.testing import CliRunner
from torch import nn

from probe.train import memory


def test_every_byte_of_a_small_net_by_hand():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found = memory.estimate(net, 7, 2, optimizer="adamw")
    weights = 4 * (12 * 5 + 5 * 2)
    assert (found.weights, found.gradients, found.optimizer) == (weights, weights, 2 * weights)
    assert found.activations == 4 * 7 * (12 + 5)  # the input of the first layer; ReLU's output, kept once
    assert found.total == 4 * weights + 4 * 7 * 17
    assert memory.estimate(net, 7, 2, optimizer="sgd", average=True).weights == 2 * weights
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_frozen_weights_need_no_gradient_and_the_images_count_linearly():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    whole = memory.estimate(net, 4, 8, optimizer="sgd")
    assert memory.estimate(net, 8, 8, optimizer="sgd").activations == 2 * whole.activations
    net[0].requires_grad_(False)
    part = memory.estimate(net, 4, 8, optimizer="sgd")
    assert part.gradients < whole.gradients
    assert part.activations < whole.activations
    assert part.weights == whole.weights


def test_the_real_pass_keeps_as_many_bytes_as_the_rehearsal_says():
    import backbones

    net = backbones.load("cifar-resnet20").requires_grad_(True).train()
    rehearsed = memory.estimate(net, 4, 32, optimizer="sgd").activations
    real = memory.kept_for_backward(net, torch.randn(4, 3, 32, 32))
    assert abs(rehearsed - real) <= 0.02 * real


def test_the_command_prints_it_without_training(tmp_path):
    from probe.cli import main

    words = ["rehearse", "--finetune", "--backbone", "cifar-resnet20", "--data", "digits"]
    done = CliRunner().invoke(main, [*words, "--cache", str(tmp_path), "train.batch_size=64"])
    assert done.exit_code == 0, done.output
    assert "fine-tuning needs about" in done.output
    assert "with 64 images at a time" in done.output
    refused = CliRunner().invoke(main, ["rehearse", "--cache", str(tmp_path)])
    assert refused.exit_code == 2
