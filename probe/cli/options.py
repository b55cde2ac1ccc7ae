"""Options that commands share, and how they become a recipe."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from probe.system.world import inside
from probe.train.parallel.launch import World, follow

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
plots_flag = click.option("--plots", is_flag=True, help="Also write every chart as SVG and PNG.")
cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Feature cache; else $PROBE_CACHE, else the user's cache.",
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where runs are kept.",
)

GROUPS_HELP = "What groups the classes: crossfit (default), paper, a run folder, or a JSON file."

# Flags of `probe run` that set one key of the recipe: (flag, key, help, further options).
RECIPE_FLAGS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("--backbone", "backbone.name", "What to probe; see `probe backbones`.", {}),
    ("--weights", "backbone.weights", "A local file or folder instead of the registered weights.", {}),
    ("--tap", "backbone.tap", "Where features are taken (CLIP: projected or pooled).", {}),
    ("--image-size", "backbone.image_size", "Input pixels, instead of the backbone's own.", {"type": int}),
    ("--data", "data.name", "A data set's name, an image folder or a folder of parquet files.", {}),
    ("--root", "data.root", "A local copy of a registered data set.", {}),
    ("--method", "method.name", "See `probe methods`.", {}),
    ("--solver", "solver.name", "lbfgs (default), sgd, ridge, knn or zeroshot.", {}),
    (
        "--finetune",
        "finetune",
        "Train the backbone too; see the recipe's `train` section.",
        {"is_flag": True},
    ),
    ("--l2", "solver.l2", "Strength of the penalty; default: chosen on validation.", {"type": float}),
    ("--grid", "solver.grid", "coarse (default) or full: all 96 strengths.", {}),
    ("--groups", "groups", GROUPS_HELP, {}),
    ("--versus", "versus", "The erm to compare with: same (trained alike), probe, auto (default).", {}),
    ("--seeds", "seeds", "How many seeds.", {"type": int}),
    ("--skip-bad-images", "data.skip_bad_images", "Leave out images that cannot be read.", {"is_flag": True}),
]


def recipe_flags(command: Any) -> Any:
    for flag, key, text, extra in reversed(RECIPE_FLAGS):
        name = key.replace(".", "__")
        command = click.option(flag, name, default=None, help=text, **extra)(command)
    return click.argument("words", nargs=-1, metavar="[RECIPE.yaml] [KEY=VALUE]...")(command)


def world_options(command: Any) -> Any:
    """Options of a command that can run on several processes; it gets `world`, None where it is one process
    or one of those that were started."""

    @wraps(command)
    def gathered(*args: Any, **options: Any) -> Any:
        names = ("gpus", "machines", "machine_rank", "address", "port", "accelerate_config")
        gpus, machines, number, address, port, config = (options.pop(name) for name in names)
        follow()
        alone = inside() or (gpus, machines, config) == (1, 1, None)
        world = None if alone else World(gpus, machines, number, address, port, config)
        return command(*args, world=world, **options)

    count = click.IntRange(min=1)
    for option in (
        click.option(
            "--gpus",
            type=count,
            default=1,
            show_default=True,
            help="Processes: one a GPU, else on CPU cores.",
        ),
        click.option(
            "--machines",
            "--num_machines",  # as Accelerate says it
            "machines",
            type=count,
            default=1,
            show_default=True,
            help="Machines that run this command.",
        ),
        click.option(
            "--machine-rank",
            "--machine_rank",
            "machine_rank",
            type=click.IntRange(min=0),
            default=0,
            help="This machine's number, from 0.",
        ),
        click.option("--address", default="127.0.0.1", help="Of machine 0."),
        click.option(
            "--port",
            type=click.IntRange(1024, 65535),
            default=29500,
            show_default=True,
            help="Of machine 0; another one for each run at the same time.",
        ),
        click.option(
            "--accelerate-config",
            type=click.Path(path_type=Path),
            help="Made by `accelerate config`, for clusters.",
        ),
    ):
        gathered = option(gathered)
    return gathered


def recipe_from(words: tuple[str, ...], flags: dict[str, Any]) -> Any:
    """The recipe file, if one is given, then the flags, then the KEY=VALUE words: the last one wins."""
    from probe import recipe

    has_file = bool(words) and "=" not in words[0]
    content = recipe.read(Path(words[0])) if has_file else {}
    for name, value in flags.items():
        if value is not None and value is not False:
            recipe.place(content, name.replace("__", "."), value)
    return recipe.build(recipe.override(content, words[has_file:]))
