"""The fingerprint follows every byte that decides a feature, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import backbones
from backbones.backbone import Backbone, Parts
from backbones.errors import UserError


def test_equal_weights_are_equal_whatever_the_name(timm_folder):
    by_name = backbones.load("timm:test_vit", weights=timm_folder)
    by_file = backbones.load("timm:test_vit.r160_in1k", weights=timm_folder / "model.safetensors")
    assert by_name.name != by_file.name
    assert by_name.fingerprint == by_file.fingerprint
    assert len(by_name.fingerprint) == 64


def test_one_changed_weight_in_the_last_place_changes_the_digest_and_not_the_fingerprint(timm_folder):
    b = backbones.load("timm:test_vit", weights=timm_folder)
    before = b.fingerprint
    with torch.no_grad():
        bias = b.encoder.norm.bias
        bias[-1] = torch.nextafter(bias[-1], torch.tensor(9.0))
    assert b.digest() != before
    assert b.fingerprint == before


def test_a_moved_running_mean_changes_the_digest():
    b = backbones.load("cifar-resnet20")
    before = b.fingerprint
    b.train()(torch.randn(4, 3, 32, 32))
    assert b.digest() != before


def test_the_tap_and_each_preprocessing_number_count(open_clip_folders):
    b = backbones.load("clip-vit-b32", weights=open_clip_folders.vit)
    pooled = backbones.load("clip-vit-b32", weights=open_clip_folders.vit, tap="pooled")
    seen = {b.fingerprint, pooled.fingerprint}
    changes = [{"resize": 40}, {"interpolation": "bilinear"}, {"mean": (0.4, 0.4, 0.41)}, {"squash": True}]
    for change in changes:
        parts = Parts(b.encoder, b.dim, b.tap, replace(b.preprocessing, **change), b.architecture, b.source)
        seen.add(Backbone(b.name, parts).fingerprint)
    assert len(seen) == 2 + len(changes)


def test_the_same_weights_under_another_activation_are_another_backbone(open_clip_folders):
    b = backbones.load("clip-vit-b32", weights=open_clip_folders.vit)
    before = b.digest()
    for block in b.encoder.transformer.resblocks:
        block.mlp.gelu = torch.nn.GELU()
    assert b.digest() != before


def test_memory_format_and_training_mode_do_not_count(timm_folder):
    b = backbones.load("timm:test_vit", weights=timm_folder)
    before = b.fingerprint
    assert b.to(memory_format=torch.channels_last).train().requires_grad_(True).digest() == before


@pytest.mark.parametrize("device", ["warp", "cuda:99"])
def test_a_device_that_cannot_be_used_is_named(device):
    with pytest.raises(UserError, match=f'cannot use the device "{device}"'):
        backbones.load("cifar-resnet20", device=device)


def test_loading_prints_nothing(timm_folder, open_clip_folders, hf_folders, capfd):
    backbones.load("timm:test_vit", weights=timm_folder, image_size=96)
    backbones.load("clip-rn50", weights=open_clip_folders.rn).encode_text(["a pug"])
    backbones.load("hf:mae", weights=hf_folders.mae)
    assert capfd.readouterr() == ("", "")


def test_a_fresh_process_is_quiet_too_and_mends_a_torchvision_that_failed_to_import():
    code = """
try:
    import torchvision
except RuntimeError:
    pass
import backbones
backbones.load("effnet-lite0")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
