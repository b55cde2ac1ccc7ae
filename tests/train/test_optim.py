"""Who decays, and how fast each layer learns."""

import pytest
import torch
from torch import nn

from probe import heads
from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.train import optim
from probe.train.model.network import Network
from tests.support.training_world import method, tiny_resnet, tiny_vit


def groups(network, **settings):
    made = optim.make(network, method(), settings.pop("name", "adamw"), TrainConfig(**settings))
    names = {p: n for n, p in network.named_parameters()}
    return {
        names[p]: (group["weight_decay"], group["lr"], group["lr_scale"])
        for group in made.param_groups
        for p in group["params"]
    }


def vit_network(folder):
    backbone = tiny_vit(folder)
    backbone.encoder.requires_grad_(True)
    return Network(backbone.encoder, heads.make("linear", backbone.dim, 5))


def test_norms_biases_and_embeddings_are_not_decayed(tmp_path):
    found = groups(vit_network(tmp_path), weight_decay=0.3, lr=1e-3)
    for name, (decay, rate, _) in found.items():
        plain = "norm" in name or name.endswith("bias") or "pos_embed" in name or "cls_token" in name
        assert decay == (0.0 if plain else 0.3), name
        assert rate == 1e-3
    assert found["encoder.blocks.0.attn.qkv.weight"][0] == 0.3


@pytest.mark.parametrize("make", [tiny_vit, tiny_resnet])
def test_lower_layers_learn_more_slowly(tmp_path, make):
    backbone = make(tmp_path)
    backbone.encoder.requires_grad_(True)
    network = Network(backbone.encoder, heads.make("linear", backbone.dim, 5))
    found = {name: scale for name, (_, _, scale) in groups(network, layer_decay=0.5).items()}
    assert found["head.weight"] == found["head.bias"] == 1
    first = next(v for n, v in found.items() if n.startswith("encoder."))
    assert first == min(found.values()) < 0.5
    order = ["blocks.0.", "blocks.1."] if make is tiny_vit else ["layer1.", "layer2.", "layer3.", "layer4."]
    levels = [next(v for n, v in found.items() if level in n) for level in order]
    assert levels == sorted(levels)
    assert len(set(levels)) == len(levels)
    assert max(v for n, v in found.items() if n.startswith("encoder.")) <= 0.5


def test_layers_are_found_by_name_where_the_model_does_not_tell():
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Linear(4, 4)
            self.resblocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.ln_post = nn.LayerNorm(4)

    depths = optim.layer_depths(Tower())
    assert depths["conv1.weight"] == 0
    assert [depths[f"resblocks.{i}.weight"] for i in range(3)] == [1, 2, 3]
    assert depths["ln_post.weight"] == 3


def test_frozen_parameters_are_left_out_and_nothing_to_train_is_said():
    network = Network(nn.Linear(12, 12).requires_grad_(False), heads.make("linear", 12, 5))
    assert set(groups(network)) == {"head.weight", "head.bias"}
    with pytest.raises(UserError, match="nothing is left to train"):
        groups(Network(nn.Identity(), heads.make("etf", 12, 5)))


def test_a_loss_with_parameters_of_its_own_has_them_trained():
    network = Network(nn.Identity(), heads.make("linear", 12, 5))
    lgm = method("lgm")
    made = optim.make(network, lgm, "sgd", TrainConfig())
    trained = {p for group in made.param_groups for p in group["params"]}
    assert set(lgm.parameters()) <= trained
    assert isinstance(made, torch.optim.SGD)


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("sgd", 0.99), ("adamw", 0.9)])
def test_no_decay_is_too_large_for_any_rate_and_the_optimum_is_the_same(name, momentum):
    """min over w of h/2 (w - 1)^2 + decay/2 w^2, by SGD; AdamW's decay pulls to 0, and stays bounded."""
    curvature = 0.5
    for decay in (1e-3, 0.4, 1.0, 3.0, 1e9):
        network = Network(nn.Identity(), heads.make("linear", 1, 2, bias=False))
        optimizer = optim.make(network, method(), name, TrainConfig(weight_decay=decay, momentum=momentum))
        weight = network.head.weight
        for step in range(200):
            optim.set_lr(optimizer, min(1.0, (200 - step) / 50))
            weight.grad = curvature * (weight.detach() - 1)
            optimizer.step()
            assert weight.abs().max() < 20
        if name == "sgd":
            best = torch.full_like(weight, curvature / (curvature + decay))
            torch.testing.assert_close(weight.detach(), best, rtol=1e-4, atol=0)


def test_a_usual_decay_does_not_touch_the_rate():
    network = Network(nn.Identity(), heads.make("linear", 12, 5))
    for name, default in optim.DEFAULTS.items():
        optimizer = optim.make(network, method(), name, TrainConfig())
        optim.set_lr(optimizer, default.lr)
        assert {group["lr"] for group in optimizer.param_groups} == {default.lr}
