"""Residual networks for 32-pixel images, trained from scratch: the nets of the CIFAR papers.

* ResNet-20/32 (He et al. 2016, arXiv 1512.03385, section 4.2): 6n + 2 layers, widths 16, 32, 64, and
  shortcuts without parameters ("option A": subsample, pad the new channels with zeros).
* Pre-activation ResNet-20/32 (He et al. 2016, arXiv 1603.05027): the same layers and shortcuts, with
  normalisation and ReLU before each convolution.
* WRN-22-10 (Zagoruyko & Komodakis 2016, arXiv 1605.07146): 6n + 4 layers, widths 160, 320, 640, and
  1 x 1 convolutions where a shortcut changes shape.

Parameter counts as papers give them include the classifier: 64 (or 640) x 10 weights and 10 biases on top of
the encoder here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from backbones.backbone import Parts
from backbones.catalogue import Spec
from backbones.state_dict import load_strict, read_state, the_weights_file

STEM_WIDTH = 16


@dataclass(frozen=True)
class NetPlan:
    """What sets one net apart from another."""

    blocks: int  # in each stage
    widths: tuple[int, int, int]
    preactivation: bool
    projection: bool = False  # a 1 x 1 convolution where a shortcut changes shape, else option A


PLANS = {
    "resnet20": NetPlan(3, (16, 32, 64), preactivation=False),
    "resnet32": NetPlan(5, (16, 32, 64), preactivation=False),
    "preact20": NetPlan(3, (16, 32, 64), preactivation=True),
    "preact32": NetPlan(5, (16, 32, 64), preactivation=True),
    "wrn-22-10": NetPlan(3, (160, 320, 640), preactivation=True, projection=True),
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
    """Three stages of residual blocks, each at half the resolution of the last; global average pooling."""

    def __init__(self, plan: NetPlan) -> None:
        super().__init__()
        block = PreactivationBlock if plan.preactivation else Block
        self.stem = _conv3x3(3, STEM_WIDTH)
        blocks: list[nn.Module] = []
        before = STEM_WIDTH
        for stage, width in enumerate(plan.widths):
            for index in range(plan.blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(before, width, stride, _shortcut(before, width, stride, plan.projection)))
                before = width
        self.blocks = nn.Sequential(*blocks)
        # Pre-activation blocks leave the last sum unnormalised; the others normalise after the stem instead.
        self.stem_norm = nn.Identity() if plan.preactivation else _norm_relu(STEM_WIDTH)
        self.last_norm = _norm_relu(before) if plan.preactivation else nn.Identity()
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

    def __init__(self, before: int, after: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), _conv3x3(before, after, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(after), _conv3x3(after, after)
        self.shortcut = shortcut
        self.changes_shape = not isinstance(shortcut, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return self.shortcut(active if self.changes_shape else x) + y


class ZeroPadShortcut(nn.Module):
    """Option A: every second pixel, and zeros for the channels that the block adds."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = added, stride

    def forward(self, x: Tensor) -> Tensor:
        front = self.added // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, front, self.added - front))


def _shortcut(before: int, after: int, stride: int, projection: bool) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    if projection:
        return nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)
    return ZeroPadShortcut(after - before, stride)


def _conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)


def _norm_relu(width: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())


def _initialise(module: nn.Module) -> None:
    """He et al. 2015, arXiv 1502.01852, equation 10, on the outputs: variance 2 / (k * k * channels)."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
