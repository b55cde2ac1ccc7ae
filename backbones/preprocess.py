"""From a PIL image to what an encoder expects: a few numbers, and the two steps they drive.

The geometry (resize, crop) yields bytes and runs in the loader's workers; the arithmetic (mean, std) runs on
a whole batch, on the device. A byte batch is four times smaller to move than a float one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backbones.errors import UserError

if TYPE_CHECKING:
    import torch
    from PIL import Image

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

# PIL's codes, which image processors also write into their files
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}

# Beyond this ratio of its sides an image is cropped while it is resized. The last bits may differ from the
# two steps in turn, but a strip of 1 x 5000 pixels would pass through 256 x 1,280,000 otherwise.
LONGEST = 4


@dataclass(frozen=True)
class Preprocessing:
    """The numbers of an evaluation transform, and nothing else: they are part of every cache key."""

    size: int  # side of the square that the encoder sees
    resize: int  # the short side becomes this long before the centre crop
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN  # of pixel values in [0, 1]
    std: tuple[float, ...] = IMAGENET_STD
    squash: bool = False  # resize both sides to `resize`, whatever the shape

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise UserError(
                f'interpolation "{self.interpolation}" is not one of {", ".join(INTERPOLATIONS)};'
                " correct the preprocessing numbers that come with the weights"
            )
        if not 0 < self.size <= self.resize:
            raise UserError(f"cannot crop {self.size} pixels from an image resized to {self.resize}")

    def at(self, size: int | None) -> Preprocessing:
        """The same view of the image at another input size: resize and crop keep their ratio."""
        if size is None or size == self.size:
            return self
        return replace(self, size=size, resize=int(size * self.resize / self.size))

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Resize and centre-crop `image`: uint8, channels x height x width."""
        return to_bytes(self.view(image))

    def view(self, image: Image.Image) -> Image.Image:
        """The resized and cropped image, the same bytes as torchvision's Resize and CenterCrop give."""
        from PIL import Image as pil

        image = image if image.mode == "RGB" else image.convert("RGB")
        width, height = image.size
        full_width = full_height = self.resize
        if not self.squash and width > height:  # the long side is rounded down, as torchvision does
            full_width = int(self.resize * width / height)
        elif not self.squash:
            full_height = int(self.resize * height / width)
        left, top = round((full_width - self.size) / 2), round((full_height - self.size) / 2)
        mode = pil.Resampling(INTERPOLATIONS[self.interpolation])
        if max(full_width, full_height) <= LONGEST * self.resize:
            image = image.resize((full_width, full_height), mode)  # a plain copy where nothing changes
            return image.crop((left, top, left + self.size, top + self.size))
        across, down = width / full_width, height / full_height  # source pixels per target pixel
        right, bottom = min((left + self.size) * across, width), min((top + self.size) * down, height)
        return image.resize((self.size, self.size), mode, box=(left * across, top * down, right, bottom))

    def normalise(self, batch: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """(pixels / 255 - mean) / std of a uint8 image or batch, on its own device."""
        import torch

        dtype = dtype or torch.float32
        scale, shift = _affine(self.mean, self.std, batch.device, dtype)
        return torch.addcmul(shift, batch.to(dtype), scale)


@lru_cache(maxsize=64)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: Any, dtype: Any) -> tuple[Any, Any]:
    """(x / 255 - mean) / std as one multiply-add a pixel: x * scale + shift."""
    import torch

    spread = torch.tensor(std, dtype=torch.float64)
    shift = -torch.tensor(mean, dtype=torch.float64) / spread
    scale = 1 / (255 * spread)
    return scale.view(-1, 1, 1).to(device, dtype), shift.view(-1, 1, 1).to(device, dtype)


def check_patches(name: str, size: int | None, patch: int | None) -> None:
    """Raise where the patches of a vision transformer do not tile its input of `size` pixels."""
    if size and patch and size % patch:
        raise UserError(f"image_size={size} is not a multiple of the {patch}-pixel patches of {name}")


def to_bytes(image: Image.Image) -> torch.Tensor:
    """An RGB image as a uint8 tensor, channels first."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class Transform:
    """A callable from a PIL image to a normalised tensor; `augmentation` names a random view of it."""

    preprocessing: Preprocessing
    augmentation: str | None = None

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """The geometry alone, as bytes: `transform(image)` is `normalise(pixels(image))`."""
        if self.augmentation is None:
            return self.preprocessing.pixels(image)
        image = image if image.mode == "RGB" else image.convert("RGB")
        return to_bytes(AUGMENTATIONS[self.augmentation](self.preprocessing)(image))

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return self.preprocessing.normalise(self.pixels(image))


@lru_cache(maxsize=16)
def _resized_crop(numbers: Preprocessing) -> Callable[[Image.Image], Image.Image]:
    """Random area and shape, then a coin for the flip: the standard view of ImageNet training."""
    transforms = _torchvision_transforms()
    mode = transforms.InterpolationMode(numbers.interpolation)
    return transforms.Compose(
        [transforms.RandomResizedCrop(numbers.size, interpolation=mode), transforms.RandomHorizontalFlip()]
    )


@lru_cache(maxsize=16)
def _mild_crop(numbers: Preprocessing) -> Callable[[Image.Image], Image.Image]:
    """At least half of the image, nearly in its own shape, then a coin for the flip: for weights that know
    images already. What is seen is about as large as in the centre crop of evaluation."""
    transforms = _torchvision_transforms()
    mode = transforms.InterpolationMode(numbers.interpolation)
    crop = transforms.RandomResizedCrop(numbers.size, scale=(0.5, 1.0), interpolation=mode)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip()])


@lru_cache(maxsize=16)
def _padded_crop(numbers: Preprocessing) -> Callable[[Image.Image], Image.Image]:
    """Four black pixels around a 32-pixel image, a random crop and a flip: CIFAR since He et al. 2016."""
    transforms = _torchvision_transforms()
    crop = transforms.RandomCrop(numbers.size, padding=numbers.size // 8)
    return transforms.Compose([numbers.view, crop, transforms.RandomHorizontalFlip()])


AUGMENTATIONS = {"resized-crop": _resized_crop, "mild-crop": _mild_crop, "padded-crop": _padded_crop}


def _torchvision_transforms() -> Any:
    from backbones.torchvision_ops import ensure_torchvision

    ensure_torchvision()
    from torchvision import transforms

    return transforms
