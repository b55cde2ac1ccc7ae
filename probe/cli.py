"""The `probe` command: thin. Every command parses words, calls one function and prints what it returns.

Nothing heavy is imported until a command needs it, so that help and listings answer at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from probe.errors import UserError

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Feature cache; else $PROBE_CACHE, else the user's cache.",
)


class Commands(click.Group):
    """A group whose user errors are one line on stderr and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("stopped; the same command goes on where it was", err=True)
            ctx.exit(130)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order a newcomer needs them


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="mr2-probe")
def main() -> None:
    """How good is a pretrained vision backbone on your classes, above all on the hard ones?"""


# Flags of `probe run` that set one key of the recipe: (flag, key, help, further options).
RECIPE_FLAGS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("--backbone", "backbone.name", "What to probe; see `probe backbones`.", {}),
    ("--weights", "backbone.weights", "A local file or folder instead of the registered weights.", {}),
    ("--tap", "backbone.tap", "Where features are taken (CLIP: projected or pooled).", {}),
    ("--image-size", "backbone.image_size", "Input pixels, instead of the backbone's own.", {"type": int}),
    ("--data", "data.name", "A data set's name, an image folder or a folder of parquet files.", {}),
    ("--root", "data.root", "A local copy of a registered data set.", {}),
    ("--method", "method.name", "See `probe methods`.", {}),
    ("--solver", "solver.name", "lbfgs (default), ridge, knn or zeroshot.", {}),
    ("--l2", "solver.l2", "Strength of the penalty; default: chosen on validation.", {"type": float}),
    ("--grid", "solver.grid", "coarse (default) or full: all 96 strengths.", {}),
    ("--groups", "groups", "crossfit (default) or paper.", {}),
    ("--seeds", "seeds", "How many seeds.", {"type": int}),
    ("--skip-bad-images", "data.skip_bad_images", "Leave out images that cannot be read.", {"is_flag": True}),
]


def recipe_flags(command: Any) -> Any:
    for flag, key, text, extra in reversed(RECIPE_FLAGS):
        name = key.replace(".", "__")
        command = click.option(flag, name, default=None, help=text, **extra)(command)
    return command


@main.command()
@click.argument("recipe_and_overrides", nargs=-1, metavar="[RECIPE.yaml] [KEY=VALUE]...")
@recipe_flags
@cache_option
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@json_flag
def run(
    recipe_and_overrides: tuple[str, ...], cache: Path | None, out: Path, as_json: bool, **flags: Any
) -> None:
    """Probe a backbone on a data set, and write a run folder.

    \b
    probe run --backbone clip-rn50 --data food101 --method mr2
    probe run recipes/mr2/pets.yaml seeds=5 method.lam=0.05
    """
    from probe import recipe
    from probe.report import terminal
    from probe.run import run as run_recipe

    words = list(recipe_and_overrides)
    content = recipe.read(Path(words.pop(0))) if words and "=" not in words[0] else {}
    for name, value in flags.items():
        if value is not None and value is not False:
            recipe.place(content, name.replace("__", "."), value)
    finished = run_recipe(recipe.build(recipe.override(content, words)), cache=cache, out=out)
    if as_json:
        click.echo(json.dumps(finished.result, indent=2))
    else:
        terminal.show(finished.result, str(finished.folder))


@main.command()
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--top", default=5, show_default=True, help="How many classes to print for each image.")
@json_flag
def predict(run_folder: Path, images: tuple[Path, ...], top: int, as_json: bool) -> None:
    """Classify images with the head that a run saved."""
    from probe.predict import predict as classify

    guesses = classify(run_folder, images, top=top)
    if as_json:
        click.echo(json.dumps(guesses, indent=2))
        return
    for guess in guesses:
        click.echo(guess["image"])
        for row in guess["classes"]:
            click.echo(f"  {100 * row['probability']:5.1f} %  {row['name']}")


@main.command()
@recipe_flags
@cache_option
def extract(cache: Path | None, **flags: Any) -> None:
    """Fill the feature cache for a backbone and a data set, and stop there."""
    from probe import recipe
    from probe.run import features_of

    content: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None and value is not False:
            recipe.place(content, name.replace("__", "."), value)
    for split, f in features_of(recipe.build(content), cache=cache).items():
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


if __name__ == "__main__":
    sys.exit(main())
