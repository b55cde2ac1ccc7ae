"""`train.tune`: what is named learns, nothing else moves, and what is saved loads as ever."""

import numpy as np
import pytest
import torch

import backbones
from probe import data, recipe
from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.runs import unused_settings
from probe.train import family_defaults, finetune
from probe.train.build import check_recipe
from probe.train.model import tuned_weights, tuning
from probe.train.parallel import fsdp_config
from probe.train.step import Step
from tests.support.training_world import same_bits, tiny_resnet

LORA = "lora:2"


def tuned(models, colours, folder, tune, net="vit", **train):
    settings = {"epochs": 1, "batch_size": 30, "lr": 0.05, "start": "random", "optimizer": "sgd", **train}
    name = f"timm:{models / net}"
    backbone = {"name": name, "image_size": 32}
    r = recipe.build(
        {"backbone": backbone, "data": str(colours), "method": "erm", "finetune": True}
        | {"train": {**settings, "tune": tune}}
    )
    d = data.load(str(colours))
    held = data.stratified_holdout(d["train"].labels, 0.2, 0)[1]
    before = backbones.load(name, image_size=32)
    return finetune(r, d, held, folder=folder, show=False), before, d


def moved(found, before):
    """The names of the encoder's tensors that training has changed."""
    own, other = found.backbone.encoder.state_dict(), before.encoder.state_dict()
    assert own.keys() == other.keys()
    return {name for name in own if not torch.equal(own[name], other[name])}


def parameters(backbone, chosen):
    return {name for name, p in backbone.encoder.named_parameters() if chosen(name, p)}


@pytest.mark.parametrize(
    ("net", "tune", "chosen"),
    [
        ("vit", "head", lambda name, p: False),
        ("vit", "norms", lambda name, p: "norm" in name),
        ("rn", "norms", lambda name, p: p.ndim == 1),
        ("rn", "head", lambda name, p: False),
        ("vit", "last:2", lambda name, p: name.startswith(("blocks.4", "blocks.5", "norm.", "fc_norm."))),
        ("vit", "lora:2", lambda name, p: name.endswith(LINEAR)),
    ],
)
def test_what_is_named_learns_and_nothing_else_moves(models, colours, tmp_path, net, tune, chosen):
    found, before, _ = tuned(models, colours, tmp_path, tune, net)
    learnt, named = moved(found, before), parameters(before, chosen)
    # timm starts a residual branch of a convnet at zero, so the first steps move only its last norm
    assert learnt <= named if net == "rn" else learnt == named
    assert bool(learnt) is bool(named)
    assert found.record["trained_parameters"] < sum(p.numel() for p in before.encoder.parameters())


LINEAR = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")


def test_untrained_batch_norms_keep_their_statistics_even_where_batch_norm_is_trained(models):
    encoder = tiny_resnet(models / "rn").encoder
    from tests.support.training_world import image_training

    training = image_training(tiny_resnet(models / "rn"), epochs=1, tune="head", batch_norm="train")
    training.run()
    after = training.network.encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize("tune", ["last:1", LORA])
def test_saved_weights_load_into_the_plain_backbone_and_classify_the_same(models, colours, tmp_path, tune):
    found, before, d = tuned(models, colours, tmp_path, tune, ema=0.5)
    fresh = tuned_weights.restore(before, found.weights)
    assert fresh.digest() == found.backbone.digest()
    images = torch.stack([fresh.transform(d["test"][i][0]) for i in range(len(d["test"]))])
    assert torch.allclose(found.head.scores(fresh(images)), found.scores, atol=1e-5)


@pytest.mark.parametrize("tune", ["norms", LORA])
def test_a_training_of_some_weights_resumes_to_the_same_bits(models, colours, tmp_path, monkeypatch, tune):
    settings = {"epochs": 2, "batch_size": 20, "checkpoint_minutes": 1e-9, "ema": 0.9}
    whole, _, _ = tuned(models, colours, tmp_path / "whole", tune, **settings)
    update, made = Step.update, []

    def until_the_fourth(step):
        made.append(step)
        if len(made) == 4:
            raise KeyboardInterrupt
        update(step)

    monkeypatch.setattr(Step, "update", until_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        tuned(models, colours, tmp_path / "cut", tune, **settings)
    monkeypatch.setattr(Step, "update", update)
    resumed, _, _ = tuned(models, colours, tmp_path / "cut", tune, **settings)
    assert torch.equal(resumed.scores, whole.scores)
    assert same_bits(resumed.backbone.encoder.state_dict(), whole.backbone.encoder.state_dict())


def test_lora_starts_where_the_backbone_is_follows_the_seed_and_merges_exactly(models):
    plain = backbones.load(f"timm:{models / 'vit'}", image_size=32)
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    start = plain(image)

    def wrapped(seed):
        encoder = backbones.load(f"timm:{models / 'vit'}", image_size=32).encoder.eval()
        tuning.choose(encoder, "lora:3", size=32, seed=seed)
        return encoder

    one, same, other = wrapped(0), wrapped(0), wrapped(1)
    assert torch.equal(one(image), start)
    assert same_bits(one.state_dict(), same.state_dict())
    assert not same_bits(one.state_dict(), other.state_dict())
    learnt = [p for p in one.parameters() if p.requires_grad]
    for p in learnt:
        torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(1))
    products = one(image)
    tuning.merge(one)
    tuning.unwrap(one)
    assert not torch.allclose(products, start, atol=1e-3)
    assert torch.allclose(one(image), products, atol=1e-4)
    assert repr(one) == repr(plain.encoder)  # part of a fingerprint


def test_layers_that_only_lend_their_weights_are_not_given_products():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
            self.called, self.lends = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            x = x.flatten(2).transpose(1, 2).repeat(1, 1, 2)[..., :4]
            x = self.attention(x, x, x)[0]
            return torch.nn.functional.linear(self.called(x), self.lends.weight).mean(1)

    assert list(tuning.called_linear_layers(Net(), 4)) == ["called"]


def test_nothing_is_kept_for_the_backward_pass_of_what_is_not_trained(models):
    encoder = backbones.load(f"timm:{models / 'vit'}", image_size=32).encoder
    image = torch.randn(1, 3, 32, 32)
    kept = {}
    for tune in ("all", "last:1", "head"):
        tuning.choose(encoder, tune, size=32, seed=0)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, n=sizes: (n.append(t.numel()), t)[1], lambda t: t
        ):
            encoder(image)
        kept[tune] = sum(sizes)
    assert kept["head"] == 0 < kept["last:1"] < kept["all"] / 2


def test_a_head_or_products_are_searched_for_with_longer_steps():
    whole = family_defaults.rates(TrainConfig(), "transformer")
    assert np.allclose(
        family_defaults.rates(TrainConfig(tune="lora:4"), "transformer"), np.multiply(10, whole)
    )
    assert family_defaults.rates(TrainConfig(tune="last:2"), "transformer") == whole


@pytest.mark.parametrize("tune", ["", "last", "last:0", "lora:-1", "norm", "lora:x", "last:2:3"])
def test_a_word_that_names_no_part_is_refused(tune):
    with pytest.raises(UserError, match=r"train\.tune.* is none of all, head, norms, last:N and lora:R"):
        recipe.build({"finetune": True, "train": {"tune": tune}})


def build(**content):
    return recipe.build({"finetune": True, "method": "erm", **content})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"backbone": "cifar-resnet20", "train": {"tune": "head"}}, "random weights of cifar-resnet20"),
        ({"method": "center", "train": {"tune": "head"}}, "center has no effect on frozen features"),
        (
            {"train": {"tune": "lora:4", "wise": 0.5}},
            "train.wise goes between.*leave out one",
        ),
    ],
)
def test_combinations_that_make_no_sense_are_one_line(content, message):
    with pytest.raises(UserError, match=message) as caught:
        check_recipe(build(**content))
    assert "\n" not in str(caught.value)


def test_lora_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tuning, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'lora:4 needs the package peft; pip install "mr2-probe\[lora\]"'):
        check_recipe(build(train={"tune": "lora:4"}))


def test_what_a_backbone_does_not_have_is_one_line(models):
    with pytest.raises(UserError, match=r"this backbone has 7 layers; use fewer, or train.tune=all"):
        tuning.choose(backbones.load(f"timm:{models / 'vit'}").encoder, "last:7", size=32, seed=0)
    with pytest.raises(UserError, match=r"calls no linear layers; use train.tune=norms or last:N"):
        tuning.choose(tiny_resnet(models / "rn").encoder, "lora:2", size=32, seed=0)
    with pytest.raises(UserError, match=r"narrowest linear layer has 64 units"):
        tuning.choose(backbones.load(f"timm:{models / 'vit'}").encoder, "lora:65", size=32, seed=0)


def test_split_weights_are_all_trained():
    with pytest.raises(UserError, match=r"split weights are all trained"):
        fsdp_config.check_recipe(TrainConfig(tune="last:1"))


def test_a_frozen_encoder_takes_no_settings_of_its_own():
    with pytest.raises(UserError, match=r"train\.layer_decay=0\.5 \(train\.tune=head leaves the encoder"):
        unused_settings.check(build(train={"tune": "head", "layer_decay": 0.5}))
    with pytest.raises(UserError, match=r"train.tune=norms .it is for images"):
        unused_settings.check(recipe.build({"solver": "sgd", "train": {"tune": "norms"}}))


def test_runs_from_before_keep_their_names():
    assert build().digest == build(train={"tune": "all"}).digest != build(train={"tune": "head"}).digest
