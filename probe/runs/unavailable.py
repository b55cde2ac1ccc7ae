"""Data and weights that are not on this machine: all of them told at once, with the commands that go on.

Otherwise a user without network would fetch the data, wait, and only then learn that the weights are missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import backbones
from backbones.load_backbone import weights_path
from backbones.sources import SCRATCH
from probe.data import catalogue
from probe.errors import Unavailable, UserError
from probe.recipe import PartConfig, Recipe


@contextmanager
def told_together(recipe: Recipe) -> Iterator[None]:
    """Inside: if something that the recipe names cannot be had, say whatever of it cannot."""
    try:
        yield
    except Unavailable as error:
        parts = recipe.backbone.parts
        weights = {i: lacking for i, part in enumerate(parts) if (lacking := _weights(part)) is not None}
        told = {str(lacking): lacking for lacking in (error, *weights.values())}
        data = str(error) not in {str(lacking) for lacking in weights.values()}
        raise UserError(_line(recipe, list(told.values()), data, bool(weights))) from error


def _weights(part: PartConfig) -> Unavailable | None:
    """Why the weights of a backbone cannot be had; None if they can, or if something else is wrong."""
    try:
        spec = backbones.catalogue.find(part.name)
        if spec.open and part.weights != SCRATCH and weights_path(spec, part.weights) is None:
            backbones.load(**part.model_dump())  # only its library knows the files behind such a name
        else:
            weights_path(spec, part.weights)
    except Unavailable as error:
        return error
    except UserError:
        return None
    return None


def _line(recipe: Recipe, lacking: Sequence[Unavailable], data: bool, weights: bool) -> str:
    """What is missing, why it cannot be fetched, and the same command with local copies."""
    numbered = [f"({i}) {one.what}" for i, one in enumerate(lacking, 1)] if len(lacking) > 1 else []
    what = "; ".join(numbered or [lacking[0].what])
    why = " and ".join(dict.fromkeys(one.why for one in lacking))
    if recipe.backbone.also and weights:  # one --weights could not say whose they are
        ways = "; ".join(dict.fromkeys(one.way_out for one in lacking))
        return f"{what}; {why}. {ways[0].upper()}{ways[1:]}"
    return f"{what}; {why}. With local copies: {_commands(recipe, data, weights)}"


def _commands(recipe: Recipe, data: bool, weights: bool) -> str:
    """The command as `probe` and as `make` take it, with a place for what is missing."""
    name = recipe.data.name
    registered = any(map(catalogue.find, (name, name.removesuffix(catalogue.LONG_TAIL))))
    flags = (["--weights FILE"] if weights else []) + (["--root FOLDER"] if data and registered else [])
    wanted = shlex.quote(name) if registered or not data else "FOLDER"
    backbone, tuned = shlex.quote(recipe.backbone.name), recipe.finetune
    probe = " ".join([f"probe run --backbone {backbone} --data {wanted}", *flags, *["--finetune"] * tuned])
    further = [f'ARGS="{" ".join(flags)}"'] if flags else []
    target = "finetune" if tuned else "probe"
    make = " ".join([f"make {target} BACKBONE={backbone} DATA={wanted}", *further])
    return f"`{probe}`, or `{make}`"
