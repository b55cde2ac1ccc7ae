"""`probe rehearse`: what a fine-tuning would need, without training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from probe.cli.options import cache_option, json_flag, recipe_flags, recipe_from
from probe.cli.output import say
from probe.errors import UserError


@click.command()
@recipe_flags
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="That share a batch."
)
@cache_option
@json_flag
def rehearse(words: tuple[str, ...], processes: int, cache: Path | None, as_json: bool, **flags: Any) -> None:
    """Estimate the memory that a fine-tuning needs on each GPU, without one and without training."""
    from probe.train.rehearsal import rehearsed

    recipe = recipe_from(words, flags)
    if not recipe.finetune:
        raise UserError("a rehearsal is of a fine-tuning: add --finetune")
    from probe.runs.inputs import load_data

    found = rehearsed(recipe, load_data(recipe, cache), processes)
    say({**asdict(found), "total": found.total}, as_json, [str(found)])
