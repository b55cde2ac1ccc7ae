"""What several tests of training share."""

import subprocess

import pytest
import torch

from tests.support.training_world import tiny_resnet, tiny_vit


@pytest.fixture
def on_gpus(monkeypatch):
    """A machine with four GPUs, on which a launcher is not started: its command is kept in this list."""
    commands = []

    class Launcher:
        def __init__(self, command, **_):
            commands.append(command)

        def wait(self):
            return 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(subprocess, "Popen", Launcher)
    return commands


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a tiny ViT and a tiny ResNet in timm's own format."""
    folder = tmp_path_factory.mktemp("models")
    tiny_vit(folder / "vit")
    tiny_resnet(folder / "rn")
    return folder
