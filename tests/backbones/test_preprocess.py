"""Our bytes-then-numbers preprocessing shows an encoder what its own library would show it."""

from __future__ import annotations

import pickle

import numpy as np
import open_clip
import pytest
import timm.data
import torch
from PIL import Image
from torchvision import transforms

import backbones
from backbones.errors import UserError
from backbones.preprocess import AUGMENTATIONS, Preprocessing, Transform

SHAPES = [(419, 311), (311, 419), (224, 224), (256, 256), (90, 70), (1200, 801)]


def photo_of(photo: Image.Image, shape: tuple[int, int]) -> Image.Image:
    return photo.resize(shape, Image.Resampling.LANCZOS)


@pytest.mark.parametrize("shape", SHAPES)
def test_clip_pixels_are_open_clips(photo, shape):
    image = photo_of(photo, shape)
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    ours = Preprocessing(size=224, resize=224, mean=tuple(mean), std=tuple(std))
    theirs = open_clip.image_transform(224, is_train=False, mean=mean, std=std)
    assert torch.allclose(Transform(ours)(image), theirs(image), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
def test_timm_pixels_are_timms(photo, shape, interpolation, crop_pct):
    image = photo_of(photo, shape)
    theirs = timm.data.create_transform((3, 224, 224), interpolation=interpolation, crop_pct=crop_pct)
    ours = Transform(Preprocessing(size=224, resize=int(224 / crop_pct), interpolation=interpolation))
    assert torch.allclose(ours(image), theirs(image), atol=1e-5)


def test_a_loaded_timm_backbone_transforms_as_timm_configures_it(photo, timm_folder):
    b = backbones.load(f"timm:{timm_folder}")
    model = timm.create_model(f"local-dir:{timm_folder}", pretrained=True)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    assert torch.allclose(b.transform(photo), theirs(photo), atol=1e-5)


def test_squashing_ignores_the_shape(photo):
    ours = Preprocessing(size=64, resize=64, squash=True, interpolation="bilinear").pixels(photo)
    expected = np.asarray(photo.resize((64, 64), Image.Resampling.BILINEAR))
    assert np.array_equal(ours.permute(1, 2, 0).numpy(), expected)


def test_pixels_are_bytes_and_normalising_a_batch_equals_transforming_each_image(photo):
    numbers = Preprocessing(size=48, resize=56)
    pixels = numbers.pixels(photo)
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.uint8, (3, 48, 48))
    assert pixels.is_contiguous()
    batch = torch.stack([pixels, pixels.flip(2)])
    one_by_one = torch.stack([numbers.normalise(pixels), numbers.normalise(pixels.flip(2))])
    assert torch.equal(numbers.normalise(batch), one_by_one)
    assert torch.equal(Transform(numbers)(photo), numbers.normalise(pixels))
    expected = transforms.Normalize(numbers.mean, numbers.std)(batch.float() / 255)
    assert torch.allclose(numbers.normalise(batch), expected, atol=1e-6)
    assert numbers.normalise(batch, torch.bfloat16).dtype == torch.bfloat16
    last = numbers.normalise(batch.contiguous(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_every_kind_of_image_becomes_rgb(photo, mode):
    assert Preprocessing(size=32, resize=32).pixels(photo.convert(mode)).shape == (3, 32, 32)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
def test_extreme_shapes_cost_no_more_than_the_crop(photo, shape):
    assert Preprocessing(size=224, resize=256).pixels(photo.resize(shape)).shape == (3, 224, 224)


def test_another_size_keeps_the_view():
    assert Preprocessing(size=224, resize=256).at(448) == Preprocessing(size=448, resize=512)


@pytest.mark.parametrize(
    "numbers", [{"size": 224, "resize": 200}, {"size": 32, "resize": 32, "interpolation": "cubic"}]
)
def test_numbers_that_make_no_sense_are_refused(numbers):
    with pytest.raises(UserError):
        Preprocessing(**numbers)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_training_views_are_random_seeded_and_survive_a_worker(photo, augmentation):
    transform = pickle.loads(pickle.dumps(Transform(Preprocessing(size=32, resize=32), augmentation)))  # noqa: S301
    torch.manual_seed(0)
    first, second = transform.pixels(photo), transform.pixels(photo)
    torch.manual_seed(0)
    assert torch.equal(transform.pixels(photo), first)
    assert not torch.equal(first, second)
    assert (first.dtype, tuple(first.shape)) == (torch.uint8, (3, 32, 32))
    torch.manual_seed(0)
    assert torch.equal(transform(photo), transform.preprocessing.normalise(first))
