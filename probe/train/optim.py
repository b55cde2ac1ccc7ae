"""The optimiser and its parameter groups: what decays, and how fast each layer learns."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.train.model.network import Network

# Where a layer's number stands in a parameter's name, for models that do not say it themselves.
DEPTHS = (
    re.compile(r"\b(?:resblocks|blocks|layers?|stages)\.(\d+)\."),  # transformers, convnets with stages
    re.compile(r"\blayer(\d+)\."),  # residual networks: layer1 .. layer4
)


@dataclass(frozen=True)
class Default:
    """Settings that neither the recipe, nor a family of networks, nor `sgd` has filled in."""

    lr: float
    weight_decay: float


MOST_DECAY = 0.5  # of the weights in one step: lr x decay

DEFAULTS = {
    "adamw": Default(lr=3e-5, weight_decay=0.1),  # fine-tuning of CLIP in the MR² release
    "sgd": Default(lr=0.1, weight_decay=5e-4),  # nets trained from scratch on CIFAR
}


def make(
    network: Network, method: nn.Module, name: str, settings: TrainConfig, *, fused: bool = True
) -> Optimizer:
    """The optimiser `name` over the network's parameters and the method's own.

    `fused`: SGD in one kernel for all parameters, which torch does not have for sharded ones.
    """
    default = DEFAULTS[name]
    lr = settings.lr or default.lr
    decay = default.weight_decay if settings.weight_decay is None else settings.weight_decay
    groups = parameter_groups(network, method, decay=decay, layer_decay=settings.layer_decay or 1.0)
    if not groups:
        raise UserError("nothing is left to train: the encoder is frozen and the head has no parameters")
    for group in groups:
        group["lr"] = lr * group["lr_scale"]
    if name == "sgd":
        momentum = settings.momentum
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused)
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give every group the learning rate `lr` times its own factor, kept stable for any decay.

    A step shrinks weights by lr x decay. From 4/3 on SGD with momentum makes them grow instead (AdamW from
    2 on), so that product is held at 1/2, which leaves room for the loss's own curvature. A smaller rate has
    the same optimum, and a group whose decay is so large is there within a few steps.
    """
    for group in optimizer.param_groups:
        wanted, decay = lr * group["lr_scale"], group["weight_decay"]
        group["lr"] = min(wanted, MOST_DECAY / decay) if decay else wanted


def parameter_groups(
    network: Network, method: nn.Module, *, decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Groups of equal decay and rate; norms, biases and what the encoder exempts are not decayed.

    The head and a method's own parameters learn at the full rate; a layer n levels below the top of the
    encoder learns at layer_decay^n of it.
    """
    exempt = _exempt(network.encoder)
    depth = layer_depths(network.encoder) if layer_decay < 1 else {}
    top = 1 + max(depth.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    named = [(n, p, layer_decay ** (top - depth.get(n, top))) for n, p in network.encoder.named_parameters()]
    named += [(n, p, 1.0) for n, p in network.head.named_parameters()]
    known = {p for _, p, _ in named}
    named += [(n, p, 1.0) for n, p in method.named_parameters() if p not in known]
    for name, parameter, scale in named:
        if parameter.requires_grad:
            plain = parameter.ndim <= 1 or name in exempt
            groups[0.0 if plain else decay, scale].append(parameter)
    return [
        {"params": members, "weight_decay": d, "lr_scale": scale} for (d, scale), members in groups.items()
    ]


def layer_depths(encoder: nn.Module) -> dict[str, int]:
    """The layer number of each parameter, counted from the input: timm's own grouping, else by name."""
    for prefix, module in encoder.named_modules():
        if hasattr(module, "group_matcher"):
            from timm.models import group_parameters

            start = f"{prefix}." if prefix else ""
            numbers = group_parameters(module, module.group_matcher(coarse=False), reverse=True)
            return {start + name: int(number) for name, number in numbers.items()}
    depths, seen = {}, 0
    for name, _ in encoder.named_parameters():
        number = next((int(m[1]) + 1 for pattern in DEPTHS if (m := pattern.search(name))), None)
        seen = seen if number is None else max(seen, number)
        depths[name] = seen if number is None else number  # what follows the last block belongs to the top
    return depths


def _exempt(encoder: nn.Module) -> set[str]:
    """Parameters that their own model keeps from decay (position embeddings, class tokens)."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in encoder.named_modules()
        if hasattr(module, "no_weight_decay")
        for name in module.no_weight_decay()
    }
