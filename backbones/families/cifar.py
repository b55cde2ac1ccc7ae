"""Residual networks for 32-pixel images, trained from scratch: the nets of the CIFAR papers.

* ResNet-20 to -110 (He et al. 2016, arXiv 1512.03385, section 4.2): 6n + 2 layers, widths 16, 32, 64, and
  shortcuts without parameters ("option A": subsample, pad the new channels with zeros). Under a name that
  ends in -b, "option B": a normalised 1 x 1 convolution where a shortcut changes shape, as MR² was run with.
* Pre-activation ResNet-20/32 (He et al. 2016, arXiv 1603.05027): the same layers and shortcuts, with
  normalisation and ReLU before each convolution (so option B's convolution is not normalised again).
* ResNet-50 for 32 pixels: ImageNet's bottleneck blocks (3, 4, 6, 3 of them), with a 3 x 3 stem that keeps
  the resolution, and no pooling after it.
* WRN-d-10 (Zagoruyko & Komodakis 2016, arXiv 1605.07146): 6n + 4 layers, widths 160, 320, 640, and
  1 x 1 convolutions where a shortcut changes shape. Under a name that ends in -dropout, dropout of 0.3
  between the two convolutions of a block.

Parameter counts as papers give them include the classifier: D x K weights and K biases on top of the encoder
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from backbones.backbone import Parts
from backbones.spec import Spec
from backbones.state_dict import load_strict, read_state, the_weights_file

NARROWING = 4  # of the 3 x 3 convolution inside a bottleneck


@dataclass(frozen=True)
class NetPlan:
    """What sets one net apart from another."""

    blocks: tuple[int, ...]  # in each stage
    widths: tuple[int, ...]  # of each stage's output
    kind: Literal["basic", "preactivation", "bottleneck"] = "basic"
    projection: bool = False  # a 1 x 1 convolution where a shortcut changes shape, else option A
    stem: int = 16  # channels
    dropout: float = 0.0  # between the convolutions of a pre-activation block


def _thin(depth: int, **options: Any) -> NetPlan:
    return NetPlan(((depth - 2) // 6,) * 3, (16, 32, 64), **options)


def _wide(depth: int, dropout: float = 0.0) -> NetPlan:
    return NetPlan(
        ((depth - 4) // 6,) * 3, (160, 320, 640), "preactivation", projection=True, dropout=dropout
    )


PLANS = {
    **{f"resnet{depth}": _thin(depth) for depth in (20, 32, 44, 56, 110)},
    **{f"resnet{depth}-b": _thin(depth, projection=True) for depth in (20, 32, 44, 56, 110)},
    **{f"preact{depth}": _thin(depth, kind="preactivation") for depth in (20, 32)},
    **{f"preact{depth}-b": _thin(depth, kind="preactivation", projection=True) for depth in (20, 32)},
    "resnet50": NetPlan((3, 4, 6, 3), (256, 512, 1024, 2048), "bottleneck", projection=True, stem=64),
    **{f"wrn-{depth}-10": _wide(depth) for depth in (22, 28, 34)},
    **{f"wrn-{depth}-10-dropout": _wide(depth, 0.3) for depth in (22, 28, 34)},
}


def load(spec: Spec, weights: Path | None, *, tap: str | None, image_size: int | None) -> Parts:
    """A net with the weights of a file, or of the only one in a folder, or else with He's initialisation.

    That is drawn from torch's generator, which `backbones.load` has seeded.
    """
    assert spec.preprocessing is not None
    net = ResidualNet(PLANS[spec.architecture])
    if weights is not None:
        weights = the_weights_file(weights)
        load_strict(net, read_state(weights), weights)
    return Parts(
        encoder=net,
        dim=net.dim,
        tap="pooled",
        preprocessing=spec.preprocessing.at(image_size),
        architecture=spec.architecture,
        source=str(weights or spec.source),
    )


class ResidualNet(nn.Module):
    """Stages of residual blocks, each at half the resolution of the last; global average pooling."""

    def __init__(self, plan: NetPlan) -> None:
        super().__init__()
        self.stem = _conv3x3(3, plan.stem)
        blocks: list[nn.Module] = []
        before = plan.stem
        for stage, (count, width) in enumerate(zip(plan.blocks, plan.widths, strict=True)):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(_block(plan, before, width, stride))
                before = width
        self.blocks = nn.Sequential(*blocks)
        # Pre-activation blocks leave the last sum unnormalised; the others normalise after the stem instead.
        active_before = plan.kind == "preactivation"
        self.stem_norm = nn.Identity() if active_before else _norm_relu(plan.stem)
        self.last_norm = _norm_relu(before) if active_before else nn.Identity()
        self.dim = before
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last_norm(self.blocks(self.stem_norm(self.stem(x))))
        return x.mean(dim=(2, 3))


class Block(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, before: int, after: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(before, after, stride), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = _conv3x3(after, after), nn.BatchNorm2d(after)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + y)


class PreactivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))); where the shape changes, both paths start after the ReLU."""

    def __init__(
        self, before: int, after: int, stride: int, shortcut: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), _conv3x3(before, after, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(after), _conv3x3(after, after)
        self.shortcut = shortcut
        self.changes_shape = not isinstance(shortcut, nn.Identity)
        self.dropout = nn.Dropout(dropout) if dropout else None  # None is not printed: part of a fingerprint

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        between = F.relu(self.norm2(self.conv1(active)))
        y = self.conv2(between if self.dropout is None else self.dropout(between))
        return self.shortcut(active if self.changes_shape else x) + y


class Bottleneck(nn.Module):
    """relu(x + norm(conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(x))))))))), narrow in between."""

    def __init__(self, before: int, after: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        narrow = after // NARROWING
        self.conv1, self.norm1 = _conv1x1(before, narrow), nn.BatchNorm2d(narrow)
        self.conv2, self.norm2 = _conv3x3(narrow, narrow, stride), nn.BatchNorm2d(narrow)
        self.conv3, self.norm3 = _conv1x1(narrow, after), nn.BatchNorm2d(after)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.shortcut(x) + self.norm3(self.conv3(y)))


class ZeroPadShortcut(nn.Module):
    """Option A: every second pixel, and zeros for the channels that the block adds."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = added, stride

    def forward(self, x: Tensor) -> Tensor:
        front = self.added // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, front, self.added - front))


def _block(plan: NetPlan, before: int, after: int, stride: int) -> nn.Module:
    shortcut = _shortcut(plan, before, after, stride)
    if plan.kind == "preactivation":
        return PreactivationBlock(before, after, stride, shortcut, plan.dropout)
    return (Bottleneck if plan.kind == "bottleneck" else Block)(before, after, stride, shortcut)


def _shortcut(plan: NetPlan, before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    if not plan.projection:
        return ZeroPadShortcut(after - before, stride)
    projection = _conv1x1(before, after, stride)
    return projection if plan.kind == "preactivation" else nn.Sequential(projection, nn.BatchNorm2d(after))


def _conv1x1(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)


def _conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)


def _norm_relu(width: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())


def _initialise(module: nn.Module) -> None:
    """He et al. 2015, arXiv 1502.01852, equation 10, on the outputs: variance 2 / (k * k * channels)."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
