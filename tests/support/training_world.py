"""Small real things to train: separable features, painted images, tiny backbones of the real libraries."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from backbones.preprocess import Preprocessing, Transform
from backbones.torchvision_ops import ensure_torchvision
from probe import heads, methods
from probe.heads import Head
from probe.recipe import MethodConfig as Choice
from probe.recipe.train_settings import TrainConfig
from probe.train.inputs import augment
from probe.train.inputs.loaders import FeatureLoader, ImageLoader
from probe.train.loop import Training
from probe.train.model import tuning
from probe.train.model.network import Network
from probe.train.parallel import dtensor
from probe.train.task import Task

ensure_torchvision()  # before timm, which wants torchvision

N, D, K = 203, 12, 5  # 203 = 12 * 16 + 11: the last batch is short


def blobs(n: int = N, *, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Overlapping clouds of unequal spread, one per class."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=rng)
    centres = 0.8 * torch.randn(K, D, generator=torch.Generator().manual_seed(99))
    spread = torch.linspace(0.7, 1.6, K)[y].unsqueeze(1)
    return centres[y] + spread * torch.randn(n, D, generator=rng), y.numpy()


def method(name: str = "erm", labels: Any = None, dim: int = D, num_classes: int = K, **params: Any) -> Any:
    counts = np.bincount(blobs()[1] if labels is None else labels, minlength=num_classes)
    return methods.make(name, params, num_classes=num_classes, class_counts=counts, dim=dim)


def feature_training(
    name: str = "erm",
    params: dict[str, Any] | None = None,
    *,
    folder: Path | None = None,
    epochs: int = 3,
    head: Head | None = None,
    encoder: nn.Module | None = None,
    held: bool = False,
    digest: str = "recipe",
    seed: int = 0,
    **settings: Any,
) -> Training:
    """Training on blobs; an encoder with dropout stands in for a backbone's randomness."""
    X, y = blobs()
    torch.manual_seed(7)
    head = head or heads.make("linear", D, K)
    network = Network(encoder or nn.Identity(), head)
    loader = FeatureLoader(X, y, [f"blob-{i}" for i in range(len(y))])
    other = FeatureLoader(*blobs(60, seed=1), ids=[f"held-{i}" for i in range(60)]) if held else None
    built = settings.pop("method", None) or method(name, **(params or {}))
    task = Task(network, built, loader, K, settings.pop("optimizer", "sgd"), epochs, other)
    options = {"batch_size": 16, "lr": 0.1, **settings}
    return Training(task, TrainConfig(**options), seed=seed, folder=folder, digest=digest, show=False)


def wobbly_encoder() -> nn.Module:
    """Dropout and batch-norm: a stream of random numbers and a running memory to lose."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Dropout(0.3))


class Pictures:
    """Labelled pictures in memory, in the shape of a split."""

    def __init__(self, n: int = 40, size: int = 40, classes: int = 4, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.name = "pictures"
        self.labels = np.arange(n) % classes
        self.ids = [f"picture-{i}" for i in range(n)]
        colours = rng.integers(40, 215, (classes, 3)) if seed == 0 else None
        base = np.random.default_rng(0).integers(40, 215, (classes, 3)) if colours is None else colours
        noise = rng.normal(0, 40, (n, size, size, 3))
        self.pixels = np.clip(base[self.labels][:, None, None] + noise, 0, 255).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), int(self.labels[index])


def image_loader(
    pictures: Any, backbone: Any, settings: TrainConfig, *, seed: int = 0, workers: int = 0
) -> ImageLoader:
    numbers = backbone.preprocessing
    return ImageLoader(
        pictures,
        plain_pixels=numbers.pixels,
        random_pixels=augment.random_view(settings.augment, numbers, backbone.train_transform.augmentation),
        normalise=numbers.normalise,
        seed=seed,
        workers=workers,
        device=torch.device("cpu"),
    )


def tiny_vit(folder: Path, size: int = 32) -> Any:
    """timm's test_vit, through the real loading path."""
    import timm
    from timm.models._hub import save_for_hf

    import backbones

    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        save_for_hf(timm.create_model("test_vit"), folder, safe_serialization=True)
    return backbones.load(f"timm:{folder}", image_size=size)


def tiny_resnet(folder: Path) -> Any:
    """timm's test_resnet: batch-norm everywhere."""
    import timm
    from timm.models._hub import save_for_hf

    import backbones

    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        save_for_hf(timm.create_model("test_resnet"), folder, safe_serialization=True)
    return backbones.load(f"timm:{folder}", image_size=32)


def tiny_convnet(size: int = 16, dim: int = 16) -> Any:
    """Two convolutions with batch-norm, in the shape of a backbone: a step takes milliseconds."""
    torch.manual_seed(5)
    encoder = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, dim, 3, 2),
        nn.BatchNorm2d(dim),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    numbers = Preprocessing(size=size, resize=size)
    return SimpleNamespace(
        encoder=encoder, dim=dim, preprocessing=numbers, train_transform=Transform(numbers, "padded-crop")
    )


def image_training(
    backbone: Any,
    name: str = "erm",
    params: dict[str, Any] | None = None,
    *,
    folder: Path | None = None,
    epochs: int = 2,
    pictures: Pictures | None = None,
    seed: int = 0,
    workers: int = 0,
    **settings: Any,
) -> Training:
    pictures = pictures or Pictures()
    classes = int(pictures.labels.max()) + 1
    optimizer = settings.pop("optimizer", "sgd")
    built = settings.pop("method", None) or method(
        name, pictures.labels, backbone.dim, classes, **(params or {})
    )
    network = Network(backbone.encoder, heads.make(settings.pop("kind", "linear"), backbone.dim, classes))
    options = TrainConfig(**{"batch_size": 16, "lr": 0.01, **settings})
    tuning.choose(backbone.encoder, options.tune, size=backbone.preprocessing.size, seed=seed)
    loader = image_loader(pictures, backbone, options, seed=seed, workers=workers)
    task = Task(network, built, loader, classes, optimizer, epochs)
    return Training(task, options, seed=seed, folder=folder, digest="images", show=False)


def choice(name: str, **params: Any) -> Choice:
    return Choice(name=name, **params)


def weights(training: Training) -> dict[str, torch.Tensor]:
    return training.network.snapshot()


def whole_state(training: Training) -> dict[str, torch.Tensor]:
    """Network and method, with the networks and memories that it has built."""
    own = dtensor.snapshot(training.method.state_dict())
    return {**weights(training), **{f"method.{name}": value for name, value in own.items()}}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def gone(pid: int) -> bool:
    """Has the process ended, within a few seconds?"""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


class Killed(Exception):
    """What `killed` stops a training with."""


def killed(training: Training, step: int) -> None:
    """Run the training until it is stopped in the middle of a step, after its gradients."""
    make = training.make_step

    def lethal(*parts: Any) -> Any:
        made = make(*parts)
        if training.state.position.steps == step:
            made.gradients()
            raise Killed
        return made

    training.make_step = lethal  # type: ignore[method-assign]
    with pytest.raises(Killed):
        training.run()
