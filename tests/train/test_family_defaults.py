"""What fine-tuning does where the recipe leaves it open: a row for every network, steps for any data."""

import math

import pytest
import timm
import torch
from pydantic import ValidationError

import backbones
from backbones import catalogue
from probe import recipe
from probe.errors import UserError
from probe.recipe.train_settings import OPEN, TrainConfig
from probe.train import family_defaults

EXPECTED = {"clip": "clip", "effnet": "convnet", "cifar": "scratch"}


def encoder_of(spec):
    """Its layers without its weights, which are not all on this machine."""
    name = spec.architecture.split(".")[0] if spec.family != "clip" else "resnet50"
    with torch.device("meta"):
        return timm.create_model(name)


class Named:
    def __init__(self, spec):
        self.name, self.source = spec.name, str(spec.source)
        self.encoder = None if spec.family == "cifar" else encoder_of(spec)


@pytest.mark.parametrize("name", catalogue.names())
def test_every_registered_backbone_has_a_row_that_leaves_nothing_open(name):
    spec = catalogue.find(name)
    kind = family_defaults.family(Named(spec))
    attends = any(word in spec.architecture for word in ("vit", "eva", "beit", "swin", "aim"))
    expected = EXPECTED.get(spec.family) or ("transformer" if attends else "convnet")
    assert kind == expected
    for optimizer in (None, "adamw", "sgd"):
        done = family_defaults.resolve(TrainConfig(optimizer=optimizer), kind, 3680)
        row = family_defaults.row(kind, optimizer)[1]
        still_open = {field for field in OPEN if getattr(done, field) is None}
        assert still_open == ({"lr"} if row.tried else {"clip"})
        assert done.batch_norm == ("train" if kind == "scratch" else "frozen")
        first, *lowered = family_defaults.rates(TrainConfig(optimizer=optimizer), kind)
        assert first == row.lr
        assert lowered == sorted(lowered, reverse=True)
        assert first > lowered[0] > lowered[-1] > 0


def test_weights_of_a_file_make_a_net_pretrained_that_is_otherwise_from_scratch(tmp_path):
    scratch = backbones.load("cifar-resnet20")
    assert family_defaults.family(scratch) == "scratch"
    torch.save(scratch.encoder.state_dict(), tmp_path / "w.pth")
    assert family_defaults.family(backbones.load("cifar-resnet20", weights=tmp_path / "w.pth")) == "convnet"


@pytest.mark.parametrize(
    ("name", "kind", "optimizer"),
    [
        ("timm:test_vit", "scratch-transformer", "adamw"),
        ("timm:test_resnet", "scratch-convnet", "sgd"),
        ("effnet-lite0", "scratch-convnet", "sgd"),
    ],
)
def test_large_nets_from_scratch_have_rows_of_their_own(name, kind, optimizer):
    assert family_defaults.family(backbones.load(name, weights="scratch", image_size=32)) == kind
    done = family_defaults.resolve(TrainConfig(), kind, 100_000)
    assert (done.optimizer, done.batch_norm, done.batch_size) == (optimizer, "train", 256)
    assert done.lr is not None
    r = recipe.build({"backbone": {"name": name, "weights": "scratch"}, "finetune": True})
    assert r.from_scratch


def test_momentum_of_a_family_that_has_none_is_refused():
    with pytest.raises(UserError, match="adamw has none"):
        family_defaults.resolve(TrainConfig(momentum=0.5), "scratch-transformer", 1000)


def test_what_the_recipe_gives_is_taken_as_it_is():
    given = TrainConfig(
        epochs=3,
        batch_size=7,
        optimizer="sgd",
        lr=0.5,
        weight_decay=0.0,
        layer_decay=0.9,
        warmup_epochs=0,
        clip="none",
        batch_norm="train",
        augment={"crop": "resized-crop"},
        channels_last=False,
    )
    assert family_defaults.resolve(given, "convnet", 1000) == given


@pytest.mark.parametrize("field", OPEN)
def test_the_word_auto_leaves_a_setting_open(field):
    assert getattr(TrainConfig(**{field: "auto"}), field) is None


@pytest.mark.parametrize("images", [1, 5, 64, 150, 740, 1347, 3680, 50_000, 1_281_167])
def test_any_number_of_images_gives_enough_steps_and_no_endless_training(images):
    done = family_defaults.resolve(TrainConfig(), "convnet", images)
    per_epoch = math.ceil(images / done.batch_size)
    assert 16 <= done.batch_size <= 256
    assert 5 <= done.epochs <= family_defaults.LONGEST
    assert per_epoch * done.epochs >= family_defaults.STEPS or done.epochs == family_defaults.LONGEST
    assert done.warmup_epochs == pytest.approx(0.1 * done.epochs)


def test_a_micro_batch_above_the_batch_of_these_images_is_refused():
    with pytest.raises(UserError, match=r"micro_batch=64 would change nothing.* 150 images is 16"):
        family_defaults.resolve(TrainConfig(micro_batch=64), "convnet", 150)
    assert (
        family_defaults.resolve(TrainConfig(micro_batch=64, batch_size=128), "convnet", 150).micro_batch == 64
    )
    with pytest.raises(ValidationError):
        TrainConfig(micro_batch=0)


def test_fine_tuning_without_a_method_is_plain_and_probing_is_not():
    assert recipe.build({"finetune": True}).method.name == "erm"
    assert recipe.build({}).method.name == "mr2"
    assert recipe.build({"finetune": True, "method": "mr2"}).method.name == "mr2"


def test_an_optimiser_that_is_not_known_is_refused_with_a_way_out():
    with pytest.raises(UserError, match=r"give train\.lr"):
        family_defaults.row("convnet", "lion")


def test_whole_convnets_are_laid_out_channels_last_unless_the_recipe_says_otherwise():
    def layout(kind, *, split=False, **given):
        return family_defaults.resolve(TrainConfig(**given), kind, 1000, split=split).channels_last

    assert layout("convnet")
    assert layout("scratch")
    assert not layout("transformer")
    assert not layout("convnet", split=True)
    assert not layout("convnet", channels_last=False)
    assert layout("transformer", channels_last=True)
