"""Options that commands share, and how they become a recipe."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from probe.cli import completions
from probe.system.world import inside
from probe.train.parallel.launch import World, follow

if TYPE_CHECKING:
    from probe.recipe import Recipe

Command = TypeVar("Command", bound=Callable[..., Any])

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
plots_flag = click.option("--plots", is_flag=True, help="Also write every chart as an SVG and a PNG file.")
cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Feature cache; default: $PROBE_CACHE, else the user's cache folder.",
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that run folders are written to.",
)

DEVICE_HELP = "Where images are encoded, solved and trained: auto (default), cpu, cuda, cuda:1, xpu, mps."
device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where images are encoded: auto, cpu, cuda, cuda:1, xpu, mps.",
)
GROUPS_HELP = (
    "How classes are grouped: crossfit (default), paper, many/medium/few or head/torso/tail (by training "
    "images), a run folder or a JSON file."
)

# Flags of `probe run` that set one key of the recipe: (flag, key, help, further arguments).
RECIPE_FLAGS: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "--backbone",
        "backbone.name",
        "The backbone to probe; see `probe backbones`.",
        {"shell_complete": completions.backbones},
    ),
    (
        "--weights",
        "backbone.weights",
        "A local file or folder instead of the registered weights; scratch: none.",
        {},
    ),
    ("--tap", "backbone.tap", "Where features are taken from (CLIP: projected or pooled).", {}),
    (
        "--image-size",
        "backbone.image_size",
        "Input size in pixels, instead of the backbone's own.",
        {"type": int},
    ),
    (
        "--data",
        "data.name",
        "A registered data set, an image folder, a folder of parquet files or a Hub id.",
        {"shell_complete": completions.datasets},
    ),
    ("--root", "data.root", "A local copy of a registered data set.", {}),
    ("--views", "features.views", "Views of each image: center (default), flip, or a number of crops.", {}),
    (
        "--fast",
        "fast",
        "Extract in the precision that this machine's device is fastest in (recipe: features.precision).",
        {"is_flag": True},
    ),
    (
        "--method",
        "method.name",
        "A loss or a method around one; see `probe methods`.",
        {"shell_complete": completions.methods},
    ),
    (
        "--solver",
        "solver.name",
        "lbfgs (default), sgd, ridge, knn or zeroshot.",
        {"shell_complete": completions.solvers},
    ),
    (
        "--finetune",
        "finetune",
        "Train the backbone too; see the recipe's `train` section.",
        {"is_flag": True},
    ),
    ("--l2", "solver.l2", "L2 penalty; default: chosen on validation data.", {"type": float}),
    ("--device", "device", DEVICE_HELP, {}),
    ("--grid", "solver.grid", "L2 penalties to try: coarse (default) or full (all 96).", {}),
    (
        "--select",
        "select.name",
        "What validation maximises: auto (default: the data set's metric), overall, mean-per-class, hard, "
        "worst-tenth or budget.",
        {},
    ),
    ("--groups", "groups", GROUPS_HELP, {}),
    (
        "--versus",
        "versus",
        "The erm to compare with: probe (frozen backbone), same (trained the same way) or auto (default).",
        {},
    ),
    ("--seeds", "seeds", "Number of seeds.", {"type": int}),
    (
        "--first-seed",
        "first_seed",
        "Number of the first seed (default: 0); 2 goes on after a run of two.",
        {"type": int},
    ),
    ("--skip-bad-images", "data.skip_bad_images", "Leave out images that cannot be read.", {"is_flag": True}),
]


def recipe_flags(command: Command) -> Command:
    """The recipe file, KEY=VALUE words and RECIPE_FLAGS as arguments of a command."""
    for flag, key, text, extra in reversed(RECIPE_FLAGS):
        name = key.replace(".", "__")
        command = click.option(flag, name, default=None, help=text, **extra)(command)
    return click.argument(
        "words", nargs=-1, metavar="[RECIPE] [KEY=VALUE]...", shell_complete=completions.recipes
    )(command)


def world_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that can run on several processes.

    The command gets `world`: None for a single process, and in each process that was started.
    """

    @wraps(command)
    def gathered(*args: Any, **given: Any) -> Any:
        names = ("gpus", "machines", "machine_rank", "address", "port", "accelerate_config")
        gpus, machines, number, address, port, config = (given.pop(name) for name in names)
        follow()
        alone = inside() or (gpus, machines, config) == (1, 1, None)
        world = None if alone else World(gpus, machines, number, address, port, config)
        return command(*args, world=world, **given)

    count = click.IntRange(min=1)
    options = (
        click.option(
            "--gpus",
            type=count,
            default=1,
            show_default=True,
            help="Number of processes: one per GPU, or on CPU cores.",
        ),
        click.option(
            "--machines",
            "--num_machines",  # as Accelerate says it
            "machines",
            type=count,
            default=1,
            show_default=True,
            help="Number of machines that run this command.",
        ),
        click.option(
            "--machine-rank",
            "--machine_rank",
            "machine_rank",
            type=click.IntRange(min=0),
            default=0,
            help="Index of this machine, from 0.",
        ),
        click.option("--address", default="127.0.0.1", show_default=True, help="Address of machine 0."),
        click.option(
            "--port",
            type=click.IntRange(1024, 65535),
            default=29500,
            show_default=True,
            help="Port on machine 0; runs at the same time need different ones.",
        ),
        click.option(
            "--accelerate-config",
            type=click.Path(path_type=Path),
            help="A file made by `accelerate config`, for clusters.",
        ),
    )
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def recipe_from(words: tuple[str, ...], flags: dict[str, Any]) -> Recipe:
    """The recipe, if one is named, then the flags, then the KEY=VALUE words: the last one wins."""
    from probe import recipe
    from probe.recipe import library

    has_file = bool(words) and "=" not in words[0]
    content = library.content(words[0], words[1:]) if has_file else {}
    fast = flags.pop("fast", False)
    for name, value in flags.items():
        if value is not None and value is not False:
            recipe.place(content, name.replace("__", "."), value)
    if fast:
        device = recipe.override(deepcopy(content), words[has_file:]).get("device")
        recipe.place(content, "features.precision", _fastest(device))
    return recipe.build(recipe.override(content, words[has_file:]))


def _fastest(device: Any) -> str:
    """The precision that `--fast` stands for: a recipe holds what was computed, on whatever machine."""
    from probe.features import precision
    from probe.system import devices

    return precision.best(devices.chosen(device, devices.FOR_ENCODING))
