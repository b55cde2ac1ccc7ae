"""Every augmentation changes images, keeps their shape, and keeps labels summing to one."""

import numpy as np
import pytest
import torch

from backbones.preprocess import Preprocessing, Transform
from probe.errors import UserError
from probe.recipe.train_settings import AugmentConfig, TrainConfig
from probe.train.inputs import augment
from probe.train.inputs.batch import Batch
from tests.support.training_world import Pictures, image_loader, image_training, tiny_resnet


class Bare:
    """As much of a backbone as a loader asks for."""

    preprocessing = Preprocessing(size=32, resize=36, interpolation="bilinear")
    train_transform = Transform(preprocessing, "resized-crop")


EACH = [
    {"crop": "resized-crop"},
    {"crop": "padded-crop"},
    {"crop": "none", "policy": "autoaugment"},
    {"crop": "none", "policy": "randaugment"},
    {"crop": "none", "policy": "trivialaugment"},
    {"crop": "none", "erase": "erasing"},
    {"crop": "none", "erase": "cutout"},
]


def views(settings, *, epoch=0, seed=0, n=24, per_image=1):
    loader = image_loader(Pictures(n), Bare, TrainConfig(augment=settings), seed=seed)
    return next(loader.train_batches(epoch, [np.arange(n)], ("own",) * per_image))


@pytest.mark.parametrize("settings", EACH, ids=lambda s: "-".join(s.values()))
def test_each_changes_images_and_keeps_their_shape(settings):
    plain = next(image_loader(Pictures(24), Bare, TrainConfig()).eval_batches([np.arange(24)])).inputs
    changed = views(settings).inputs
    assert changed.shape == plain.shape == (24, 3, 32, 32)
    assert changed.dtype == torch.float32
    different = (changed != plain).flatten(1).any(1)
    assert different.float().mean() > (0.1 if settings.get("erase") == "erasing" else 0.5)


def test_no_augmentation_is_the_evaluation_view():
    plain = next(image_loader(Pictures(24), Bare, TrainConfig()).eval_batches([np.arange(24)])).inputs
    assert torch.equal(views({"crop": "none"}).inputs, plain)


def test_a_view_depends_on_seed_epoch_and_sample_and_on_nothing_else():
    settings = {"policy": "randaugment", "erase": "cutout"}
    whole = views(settings)
    loader = image_loader(Pictures(24), Bare, TrainConfig(augment=settings))
    torch.manual_seed(12345)
    part = next(loader.train_batches(0, [np.array([9, 4])], ("own",)))
    assert torch.equal(part.inputs, whole.inputs[[9, 4]])
    assert not torch.equal(views(settings, epoch=1).inputs, whole.inputs)
    assert not torch.equal(views(settings, seed=1).inputs, whole.inputs)
    two = views(settings, per_image=2)
    assert len(two.views) == 2
    assert torch.equal(two.views[0], whole.inputs)
    assert not torch.equal(two.views[0], two.views[1])


def test_cutout_blanks_a_square_of_half_the_side_with_the_mean_colour():
    batch = views({"crop": "none", "erase": "cutout"}).inputs
    blank = (batch.abs() < 0.02).all(1).flatten(1).sum(1)
    assert torch.equal(blank, torch.full_like(blank, 16 * 16))


@pytest.mark.parametrize("mix", ["mixup", "cutmix", "both"])
def test_mixing_keeps_shapes_and_label_sums(mix):
    torch.manual_seed(1)
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 4
    mixed = augment.mixer(AugmentConfig(mix=mix), 4)(Batch((images,), labels, torch.arange(16)))
    assert mixed.inputs.shape == images.shape
    assert not torch.equal(mixed.inputs, images)
    assert mixed.targets.shape == (16, 4)
    assert torch.allclose(mixed.targets.sum(1), torch.ones(16))
    assert ((mixed.targets > 0) & (mixed.targets < 1)).any()


def test_both_draws_mixup_and_cutmix():
    images = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)] * 8)
    mix = augment.mixer(AugmentConfig(mix="both"), 2)
    kinds = set()
    for seed in range(12):
        torch.manual_seed(seed)
        mixed = mix(Batch((images,), torch.arange(16) % 2, torch.arange(16))).inputs
        kinds.add(bool(((mixed > 0) & (mixed < 1)).any()))  # only mixup makes values between
    assert kinds == {True, False}


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_a_mixed_batch_knows_both_labels_and_their_share(mix):
    for seed in range(5):
        torch.manual_seed(seed)
        labels = torch.randint(3, (12,))
        batch = Batch((torch.randn(12, 3, 16, 16),), labels, torch.arange(12))
        mixed = augment.mixer(AugmentConfig(mix=mix), 3)(batch)
        first, second = (torch.nn.functional.one_hot(t, 3) for t in mixed.mixed)
        assert torch.allclose(mixed.share * first + (1 - mixed.share) * second, mixed.targets, atol=1e-6)
    same = Batch(batch.views, torch.zeros(12, dtype=torch.int64), batch.index)
    assert float(augment.mixer(AugmentConfig(mix=mix), 3)(same).share) == 1.0


def test_a_loss_of_hard_labels_trains_on_mixed_images_and_falls(models):
    backbone = tiny_resnet(models / "rn")
    settings = {"augment": {"mix": "mixup", "crop": "none"}, "lr": 0.02, "batch_norm": "frozen"}
    training = image_training(backbone, "mr2", {"lam": 0.1}, epochs=6, **settings)
    rows = training.run().epochs
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]


def test_an_image_that_cannot_be_read_is_named():
    from probe.data import BadImage

    class Broken(Pictures):
        def __getitem__(self, index):
            if index == 3:
                raise BadImage("truncated file")
            return super().__getitem__(index)

    loader = image_loader(Broken(8), Bare, TrainConfig())
    with pytest.raises(UserError, match=r"picture-3: truncated file; repair or remove it"):
        list(loader.train_batches(0, [np.arange(8)], ("own",)))
