"""Options of an encoder while it is trained, under the names that its library has for them."""

from __future__ import annotations

from torch import nn

from probe.errors import UserError

CHECKPOINTING = ("set_grad_checkpointing", "gradient_checkpointing_enable")  # timm, open_clip; transformers


def checkpoint_activations(encoder: nn.Module) -> None:
    """Recompute activations in the backward pass instead of keeping them."""
    for module in encoder.modules():
        for switch in CHECKPOINTING:
            if hasattr(module, switch):
                getattr(module, switch)()
                return
    raise UserError("this backbone cannot recompute activations; set train.grad_checkpointing: false")


def drop_paths(encoder: nn.Module, rate: float) -> list[tuple[nn.Module, str, nn.Module]]:
    """Skip residual branches at random (stochastic depth), from 0 at the first to `rate` at the last block.

    timm has a placeholder for it in every block. Returns what was there before, for `restore`.
    """
    from timm.layers import DropPath

    places: list[tuple[nn.Module, str, nn.Module]] = [
        (module, name, child)
        for module in encoder.modules()
        for name, child in module.named_children()
        if name.startswith("drop_path") and isinstance(child, (nn.Identity, DropPath))
    ]
    if not places:
        raise UserError("this backbone has no residual branches that can be dropped; set train.drop_path: 0")
    blocks = list(dict.fromkeys(id(module) for module, _, _ in places))
    for module, name, _ in places:
        depth = blocks.index(id(module)) / max(1, len(blocks) - 1)
        setattr(module, name, DropPath(rate * depth))
    return places


def restore(places: list[tuple[nn.Module, str, nn.Module]]) -> None:
    """Put back what `drop_paths` replaced."""
    for module, name, child in places:
        setattr(module, name, child)
