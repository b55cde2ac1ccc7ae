"""Which weights of an encoder are trained (`train.tune`): all, none (only the head), its norms, its last
layers, or small products beside its linear layers (LoRA, Hu et al. 2022).

What is not trained takes no gradient and is not given to the optimiser, so it costs no memory there, and no
time in the backward pass below the first trained layer. Its batch statistics stay as they were loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from probe.errors import UserError
from probe.train.optim import layer_depths
from probe.train.seeding import derive_seed

PACKAGE = "peft"
LORA = "lora"


def kind(tune: str) -> str:
    """The word of `train.tune` without its number: all, head, norms, last or lora."""
    return tune.partition(":")[0]


def check(tune: str) -> None:
    """Refuse what this installation cannot do."""
    if kind(tune) == LORA and find_spec(PACKAGE) is None:
        raise UserError(f'train.tune={tune} needs the package {PACKAGE}; pip install "mr2-probe[lora]"')


def choose(encoder: nn.Module, tune: str, *, size: int, seed: int) -> None:
    """Let the named weights of `encoder` take gradients, and no others.

    `size` is the side of an input image in pixels; LoRA's random factors follow `seed`.
    """
    word, _, number = tune.partition(":")
    encoder.requires_grad_(word == "all")
    if word == LORA:
        _add_products(encoder, int(number), size, derive_seed(seed, LORA))
    elif word in PARTS:
        PARTS[word](encoder, int(number or 0))


def _norms(encoder: nn.Module, _: int) -> None:
    found = [module for module in encoder.modules() if "norm" in type(module).__name__.lower()]
    for module in found:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        raise UserError("train.tune=norms: this backbone has no norms with weights; use last:N")


def _last(encoder: nn.Module, number: int) -> None:
    """What follows the last layer, such as a final norm, goes with it."""
    depths, named = layer_depths(encoder), dict(encoder.named_parameters())
    layers = sorted({depths.get(name, 0) for name, parameter in named.items() if parameter.ndim > 1})
    if number >= len(layers):
        raise UserError(
            f"train.tune=last:{number}: this backbone has {len(layers)} layers; use fewer, or train.tune=all"
        )
    for name, parameter in named.items():
        parameter.requires_grad_(depths.get(name, 0) >= layers[-number])


PARTS: dict[str, Callable[[nn.Module, int], None]] = {"norms": _norms, "last": _last}


# -- LoRA --------------------------------------------------------------------------------------------------


def _add_products(encoder: nn.Module, rank: int, size: int, seed: int) -> None:
    """W h becomes W h + B A h in every linear layer, with A random and B zero: the start is unchanged."""
    named = called_linear_layers(encoder, size)
    if not named:
        raise UserError(
            f"train.tune=lora:{rank}: this backbone calls no linear layers; use train.tune=norms or last:N"
        )
    narrowest = min(min(layer.in_features, layer.out_features) for layer in named.values())
    if rank > narrowest:
        raise UserError(
            f"train.tune=lora:{rank}: its narrowest linear layer has {narrowest} units; use fewer"
        )
    from peft import LoraConfig, inject_adapter_in_model

    targets = "|".join(re.escape(name) for name in named)  # one that starts so is matched as a whole
    # alpha = rank: the product counts as it is
    config = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, bias="none", target_modules=targets)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, encoder)


def called_linear_layers(encoder: nn.Module, size: int) -> dict[str, nn.Linear]:
    """The linear layers that a forward pass calls, by name.

    Others only lend their weights (torch's own attention, CLIP's pooling): a product beside them would never
    be computed.
    """
    called: list[nn.Module] = []
    linear = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.Linear)}
    hooks = [
        module.register_forward_hook(lambda module, *_: called.append(module)) for module in linear.values()
    ]
    before = encoder.training
    try:
        with torch.no_grad():
            encoder.eval()(torch.zeros(1, 3, size, size))
    finally:
        encoder.train(before)
        for hook in hooks:
            hook.remove()
    return {name: module for name, module in linear.items() if any(module is other for other in called)}


def merge(encoder: nn.Module) -> None:
    """Add LoRA's products to the weights that they stand beside; from now on those alone are used."""
    for _, _, layer in _wrapped(encoder):
        layer.merge()


def unwrap(encoder: nn.Module) -> None:
    """Put merged layers back as they were before `choose`: the encoder has its own names again."""
    for parent, name, layer in _wrapped(encoder):
        setattr(parent, name, layer.get_base_layer())


def _wrapped(encoder: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """(parent, name, layer) of every linear layer with a product beside it."""
    return [
        (parent, name, child)
        for parent in encoder.modules()
        for name, child in parent.named_children()
        if hasattr(child, "get_base_layer")
    ]
