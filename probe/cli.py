"""The `probe` command: thin. Every command parses words, calls one function and prints what it returns.

Nothing heavy is imported until a command needs it, so that help and listings answer at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from functools import wraps
from pathlib import Path
from typing import Any

import click

from probe.commands import Commands
from probe.printable import printable
from probe.train.launch import World, inside, launch, rank

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Feature cache; else $PROBE_CACHE, else the user's cache.",
)


# NumPy brings a thread pool of its own beside torch's. On the same cores the two wait for each other: a warm
# probe takes twice as long with both, and more when the machine is busy. Torch does the heavy products.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is wrong with an image is said once, with its name.
warnings.filterwarnings("ignore", module=r"PIL\.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="mr2-probe")
def main() -> None:
    """How good is a pretrained vision backbone on your classes, above all on the hard ones?"""


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
        names = ("gpus", "machines", "machine_rank", "address", "accelerate_config")
        gpus, machines, number, address, config = (options.pop(name) for name in names)
        alone = inside() or (gpus, machines, config) == (1, 1, None)
        world = None if alone else World(gpus, machines, number, address, config=config)
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
            "--machines", type=count, default=1, show_default=True, help="Machines that run this command."
        ),
        click.option(
            "--machine-rank", type=click.IntRange(min=0), default=0, help="This machine's number, from 0."
        ),
        click.option("--address", default="127.0.0.1", help="Of machine 0."),
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


@main.command()
@recipe_flags
@cache_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@world_options
@json_flag
def run(
    words: tuple[str, ...], cache: Path | None, out: Path, world: World | None, as_json: bool, **flags: Any
) -> None:
    """Probe a backbone on a data set, and write a run folder.

    \b
    probe run --backbone clip-rn50 --data food101 --method mr2
    probe run recipes/mr2/pets.yaml seeds=5 method.lam=0.05
    """
    recipe = recipe_from(words, flags)
    if world is not None:
        sys.exit(launch(world, sys.argv[1:]))
    from probe.report import terminal
    from probe.run import run as run_recipe

    finished = run_recipe(recipe, cache=cache, out=out)
    if rank() > 0:
        return
    if as_json:
        click.echo(json.dumps(finished.result, indent=2))
    else:
        terminal.show(finished.result, str(finished.folder))


@main.command()
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many classes to print for each image.",
)
@json_flag
def predict(run_folder: Path, images: tuple[Path, ...], top: int, as_json: bool) -> None:
    """Classify images with the head that a run saved."""
    from probe.predict import predict as classify

    guesses = classify(run_folder, images, top=top)
    if as_json:
        click.echo(json.dumps(guesses, indent=2))
        return
    for guess in guesses:
        click.echo(printable(guess["image"]))
        for row in guess["classes"]:
            click.echo(f"  {100 * row['probability']:5.1f} %  {printable(row['name'])}")


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--groups",
    help="For predictions: a run folder or a JSON file that groups the classes.",
)
@click.option("--plots", is_flag=True, help="Also write every chart as SVG and PNG.")
@json_flag
def report(sources: tuple[Path, ...], groups: str | None, plots: bool, as_json: bool) -> None:
    """Write the page of runs, or of predictions from elsewhere (a parquet file).

    \b
    probe report runs/* --plots
    probe report predictions.parquet --groups runs/clip-rn50-pets-erm-1a2b3c4d
    """
    from probe.report import runs

    reports = [runs.report(source, groups=groups, plots=plots) for source in sources]
    if as_json:
        click.echo(json.dumps([r.result for r in reports], indent=2))
        return
    for r in reports:
        click.echo(printable(str(r.path)) + (f" and {len(r.plots)} plots" if r.plots else ""))


@main.command()
@click.argument("words", nargs=-1, metavar="[RUN...] [KEY=VALUE]...")
@click.option("--backbones", multiple=True, help="One or more names, in quotes.")
@click.option("--data", multiple=True, help="One or more data sets, in quotes.")
@click.option("--methods", multiple=True, help="One or more methods, in quotes.")
@click.option("--seeds", type=int, help="How many seeds of each run.")
@click.option("--groups", help=GROUPS_HELP)
@cache_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@json_flag
@click.pass_context
def compare(
    ctx: click.Context, words: tuple[str, ...], cache: Path | None, out: Path, as_json: bool, **grid: Any
) -> None:
    """Compare backbones, data sets and methods: run what is missing, reuse what exists.

    \b
    probe compare --backbones "clip-rn50 mocov2-rn50" --data "pets flowers" --methods "erm mr2" --seeds 5
    probe compare runs/clip-rn50-pets-erm-1a2b3c4d runs/mocov2-rn50-pets-erm-5e6f7a8b
    """
    from probe import compare as comparing
    from probe.report import comparison_terminal

    comparison, folder = comparing.command(words, **grid, cache=cache, out=out)
    if as_json:
        click.echo(json.dumps(comparison, indent=2))
    else:
        comparison_terminal.show(comparison, str(folder))
    ctx.exit(1 if comparison["failed"] else 0)


@main.command()
@recipe_flags
@cache_option
@world_options
def extract(words: tuple[str, ...], cache: Path | None, world: World | None, **flags: Any) -> None:
    """Fill the feature cache for a backbone and a data set, and stop there."""
    recipe = recipe_from(words, flags)
    if world is not None:
        sys.exit(launch(world, sys.argv[1:]))
    from probe.material import gather

    found = gather(recipe, cache=cache).features
    for split, f in found.items() if rank() == 0 else ():
        how = "already there" if f.cached else f"{len(f.y) / max(f.seconds, 1e-9):,.0f} images/s"
        click.echo(f"{split:6} {len(f.y):>9,} x {f.X.shape[1]}  {how}")


@main.command()
@json_flag
def backbones(as_json: bool) -> None:
    """List the backbones that can be probed."""
    from probe.report import listings

    listings.backbones(as_json)


@main.command()
@json_flag
def datasets(as_json: bool) -> None:
    """List the data sets that have a name."""
    from probe.report import listings

    listings.datasets(as_json)


@main.command()
@json_flag
def methods(as_json: bool) -> None:
    """List the training methods."""
    from probe.report import listings

    listings.methods(as_json)


@main.group()
def cache() -> None:
    """Look after the feature cache."""


@cache.command("ls")
@cache_option
@json_flag
def cache_ls(cache: Path | None, as_json: bool) -> None:
    """List the entries, newest first."""
    from probe.features import inventory
    from probe.report import listings

    listings.cache(inventory.entries(cache), as_json)


@cache.command("verify")
@click.argument("names", nargs=-1)
@cache_option
def cache_verify(names: tuple[str, ...], cache: Path | None) -> None:
    """Read every byte; exit code 1 if anything is damaged."""
    from probe.features import inventory

    problems = inventory.verify(cache, names)
    for problem in problems:
        click.echo(printable(str(problem)))
    click.echo(f"{len(problems)} damaged files" if problems else "everything is sound")
    sys.exit(1 if problems else 0)


@cache.command("rm")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@cache_option
def cache_rm(names: tuple[str, ...], everything: bool, cache: Path | None) -> None:
    """Remove entries, by name or the start of one."""
    from probe.features import inventory

    for name in inventory.remove(cache, names, everything=everything):
        click.echo(f"removed {printable(name)}")


@main.command()
@cache_option
def doctor(cache: Path | None) -> None:
    """Check that this machine has what a run needs."""
    from probe.doctor import examine

    marks = {True: "ok  ", False: "FAIL", None: "note"}
    findings = list(examine(cache))
    for finding in findings:
        click.echo(f"{marks[finding.ok]}  {finding.question:17} {printable(finding.answer)}")
    sys.exit(1 if any(finding.ok is False for finding in findings) else 0)


if __name__ == "__main__":
    sys.exit(main())
