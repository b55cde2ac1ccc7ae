"""How much faster the losses are than the textbook's loop over classes.

    python -m benchmarks.losses [--repeats 15] [--threads 2] [--json]

Each pair is measured in turns, so that a busy machine slows both; the ratio is of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import probe.losses

# classes, batch, feature size, wanted ratio
SIZES = ((1000, 512, 1024, 18.0), (196, 512, 1024, 8.0), (37, 256, 1280, 4.0))


class TextbookMR2(torch.nn.Module):
    """MR² as one would write it from the paper: a mask for every class, n x n x D differences."""

    def __init__(self, num_classes: int, lam: float = 0.1, ema: float = 0.9) -> None:
        super().__init__()
        self.num_classes, self.lam, self.ema = num_classes, lam, ema
        self.mean_norm = torch.zeros(num_classes)
        self.spread = torch.zeros(num_classes)

    def update(self, features: Tensor, targets: Tensor) -> None:
        for k in range(self.num_classes):
            mask = targets == k
            if mask.any():
                members = features[mask]
                mean = members.mean(dim=0)
                new = (mean.norm().pow(2), (members - mean).norm(dim=1).pow(2).mean())
                for stored, value in zip((self.mean_norm, self.spread), new, strict=True):
                    stored[k] = value if stored[k] == 0 else self.ema * stored[k] + (1 - self.ema) * value

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor) -> Tensor:
        with torch.no_grad():
            self.update(features, targets)
            seen = self.mean_norm > 0
            root = (self.mean_norm + self.spread).pow(1 / 3)
            gamma = torch.where(seen, root / root[seen].mean(), torch.ones(()))
            margin = 2 * self.spread[seen].mean()
        logit_term = F.cross_entropy(logits / gamma[targets].unsqueeze(1), targets)
        rep_term = logits.new_zeros(())
        for k in range(self.num_classes):
            mask = targets == k
            if mask.sum() > 1:
                members = features[mask]
                distances = (members.unsqueeze(1) - members.unsqueeze(0)).pow(2).sum(dim=2)
                others = ~torch.eye(len(members), dtype=torch.bool)
                exponents = (distances - margin).masked_fill(~others, -torch.inf)
                with_one = torch.cat([exponents.new_zeros(len(members), 1), exponents], dim=1)
                rep_term = rep_term + torch.logsumexp(with_one, dim=1).sum()
        return logit_term + self.lam * rep_term / len(targets)


def interleaved(steps: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each step, measured in turns after one warm-up."""
    for step in steps:
        step()
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(repeats):
        for times, step in zip(seconds, steps, strict=True):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def training_step(
    loss: torch.nn.Module, logits: Tensor, targets: Tensor, features: Tensor
) -> Callable[[], object]:
    def step() -> None:
        logits.grad = features.grad = None
        loss(logits, targets, features).backward()

    return step


def compare(num_classes: int, batch: int, dim: int, repeats: int) -> dict[str, float]:
    """Milliseconds of a forward and backward pass, ours and the textbook's, and their ratio."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, num_classes, generator=generator).requires_grad_()
    features = (torch.randn(batch, dim, generator=generator) / dim**0.5).requires_grad_()
    targets = torch.randint(0, num_classes, (batch,), generator=generator)
    ours, textbook = probe.losses.make("mr2-paper", num_classes=num_classes), TextbookMR2(num_classes)
    torch.testing.assert_close(ours(logits, targets, features), textbook(logits, targets, features))
    steps = [training_step(loss, logits, targets, features) for loss in (ours, textbook)]
    fast, slow = interleaved(steps, repeats)
    return {"ms": 1e3 * fast, "textbook_ms": 1e3 * slow, "ratio": slow / fast}


def fine_tuning_share(repeats: int) -> dict[str, float]:
    """How much of a ResNet-50 training step (batch 32, 224 px) the loss takes, next to cross-entropy's."""
    from backbones.torchvision_ops import ensure_torchvision

    ensure_torchvision()
    import timm

    model: Any = timm.create_model("resnet50", num_classes=37)
    images, targets = torch.randn(32, 3, 224, 224), torch.randint(0, 37, (32,))

    def whole() -> None:
        features = model.forward_head(model.forward_features(images), pre_logits=True)
        F.cross_entropy(model.fc(features), targets).backward()

    (step,) = interleaved([whole], max(2, repeats // 5))
    logits = torch.randn(32, 37).requires_grad_()
    features = torch.randn(32, 2048).requires_grad_()
    ours = training_step(probe.losses.make("mr2", num_classes=37), logits, targets, features)
    plain = training_step(probe.losses.make("erm", num_classes=37), logits, targets, features)
    mr2, erm = interleaved([ours, plain], 10 * repeats)
    return {"step_ms": 1e3 * step, "added_ms": 1e3 * (mr2 - erm), "share": (mr2 - erm) / step}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.losses", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-fine-tuning", action="store_true", help="leave out the ResNet-50 step")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    result: dict[str, dict[str, float]] = {}
    for num_classes, batch, dim, wanted in SIZES:
        row = compare(num_classes, batch, dim, args.repeats)
        result[f"mr2 K={num_classes} N={batch} D={dim}"] = {**row, "wanted": wanted}
    if not args.no_fine_tuning:
        result["mr2 in a resnet50 step, batch 32"] = {**fine_tuning_share(args.repeats), "wanted": 0.03}
    if args.json:
        print(json.dumps(result))
        return 0
    for name, row in result.items():
        print(f"{name:32} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
