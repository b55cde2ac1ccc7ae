"""The `probe` command. Every subcommand parses its words, calls one function and prints what it returns.

Nothing heavy is imported until a command needs it, so that help and listings start at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from probe.cli import completions
from probe.cli.completions import completion
from probe.cli.errors import Commands
from probe.cli.feature_cache import cache
from probe.cli.listings import LISTED, listing
from probe.cli.on_runs import evaluate, predict
from probe.cli.options import (
    DEVICE_HELP,
    GROUPS_HELP,
    cache_option,
    json_flag,
    out_option,
    plots_flag,
    recipe_flags,
    recipe_from,
    world_options,
)
from probe.cli.output import say
from probe.cli.rehearse import rehearse
from probe.cli.sharing import export, push
from probe.errors import UserError
from probe.system import devices
from probe.system.world import rank
from probe.train.parallel.launch import World, launch

# NumPy has a thread pool of its own beside torch's. On the same cores the two wait for each other: a warm
# probe takes twice as long with both, and longer on a busy machine. The large matrix products are torch's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A thread of torch's that waits for another one sleeps, and leaves its core to whoever can use it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# A damaged image is reported once, by us, with its name.
warnings.filterwarnings("ignore", module=r"PIL\.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="mr2-probe")
def main() -> None:
    """How good is a pretrained vision backbone on your classes, above all on the hard ones?"""


@main.command()
@recipe_flags
@cache_option
@out_option
@world_options
@json_flag
def run(
    words: tuple[str, ...], cache: Path | None, out: Path, world: World | None, as_json: bool, **flags: Any
) -> None:
    """Probe a backbone on a data set and write a run folder.

    \b
    probe run --backbone clip-rn50 --data food101 --method mr2
    probe run my-recipe.yaml seeds=5 method.lam=0.05
    probe run mr2/table1-cifar100/fairdro
    """
    recipe = recipe_from(words, flags)
    if world is not None:
        sys.exit(launch(world, sys.argv[1:]))
    from probe.report.text import run as terminal
    from probe.runs import naming
    from probe.runs.run import run as run_recipe

    finished = run_recipe(recipe, cache=cache, out=out)
    if rank() > 0:
        return
    if as_json:
        click.echo(json.dumps(finished.result, indent=2))
    else:
        terminal.show(finished.result, str(finished.folder), method=naming.method(recipe))


main.add_command(predict)
main.add_command(evaluate)


@main.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--groups",
    help="For a predictions file: a run folder or a JSON file that groups the classes.",
)
@plots_flag
@json_flag
def report(sources: tuple[Path, ...], groups: str | None, plots: bool, as_json: bool) -> None:
    """Write the HTML report of runs or predictions.

    RUN is a run folder, its result.json, or a parquet file of predictions made elsewhere.

    \b
    probe report runs/* --plots
    probe report predictions.parquet --groups runs/clip-rn50-pets-erm-1a2b3c4d
    """
    from probe.runs import report as runs

    reports = [runs.report(source, groups=groups, plots=plots) for source in sources]
    plotted = (f"{r.path}" + (f" and {len(r.plots)} plots" if r.plots else "") for r in reports)
    say([r.result for r in reports], as_json, plotted)


@main.command()
@click.argument("words", nargs=-1, metavar="[RUN...] [KEY=VALUE]...")
@click.option(
    "--backbones",
    multiple=True,
    shell_complete=completions.many_backbones,
    help="One or more backbones, separated by spaces.",
)
@click.option(
    "--data",
    multiple=True,
    shell_complete=completions.many_datasets,
    help="One or more data sets, separated by spaces.",
)
@click.option(
    "--methods",
    multiple=True,
    shell_complete=completions.many_methods,
    help='As in "erm mr2(lam=0.01) drw(ldam, after=0.7)".',
)
@click.option(
    "--recipes",
    multiple=True,
    shell_complete=completions.many_recipes,
    help="Recipes, rows or whole tables; see `probe recipes`.",
)
@click.option("--seeds", type=int, help="Number of seeds of each run.")
@click.option("--groups", help=GROUPS_HELP)
@click.option("--device", help=DEVICE_HELP)
@click.option(
    "--minutes", type=float, help="Begin no run after so many; the same command goes on with the rest."
)
@plots_flag
@cache_option
@out_option
@world_options
@json_flag
@click.pass_context
def compare(
    ctx: click.Context,
    words: tuple[str, ...],
    device: str | None,
    cache: Path | None,
    out: Path,
    world: World | None,
    as_json: bool,
    **grid: Any,
) -> None:
    """Compare backbones, data sets and methods.

    Runs what is missing and reuses what exists. Given run folders, compares them with the first.

    \b
    probe compare --backbones "clip-rn50 mocov2-rn50" --data "pets flowers" --methods "erm mr2" --seeds 5
    probe compare --data my/images --methods "erm la(tau=[0.5, 1])" select=budget backbone.image_size=96
    probe compare --recipes mr2/table1-cifar100
    probe compare runs/clip-rn50-pets-erm-1a2b3c4d runs/mocov2-rn50-pets-erm-5e6f7a8b
    """
    if world is not None:
        ctx.exit(launch(world, sys.argv[1:]))
    from probe.report.text import comparison as comparison_terminal
    from probe.runs import compare as comparing

    if device is not None:
        devices.chosen(device, devices.FOR_ENCODING)  # refused once, not in every cell
        words += (f"device={device}",)
    comparison, folder = comparing.command(words, **grid, cache=cache, out=out)
    if rank() > 0:
        return
    if as_json:
        click.echo(json.dumps(comparison, indent=2))
    else:
        comparison_terminal.show(comparison, str(folder))
    ctx.exit(1 if comparison["failed"] else 0)


@main.command()
@recipe_flags
@click.option(
    "--budget",
    type=float,
    help="Points of the mean per class that hard classes may cost; default: 0.5.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="Time for all of it.",
)
@click.option(
    "--with",
    "further",
    multiple=True,
    shell_complete=completions.many_backbones,
    help='Backbones that may be added, separated by spaces, "" for none; default: those installed.',
)
@cache_option
@out_option
@json_flag
def improve(
    words: tuple[str, ...],
    budget: float | None,
    minutes: float,
    further: tuple[str, ...],
    cache: Path | None,
    out: Path,
    as_json: bool,
    **flags: Any,
) -> None:
    """Find what helps the hard classes, without looking at test images until the end.

    Tries margins, re-weighting, views, larger inputs, further backbones and training, keeps what helps, and
    writes the recipe.

    \b
    probe improve --backbone effnet-lite0 --data my/images --budget 0.5 --minutes 20
    """
    from probe.report.text import improvement as terminal
    from probe.runs import improve as improving

    recipe = recipe_from(words, {**flags, "select__budget": budget})
    found = improving.improve(
        recipe, minutes=minutes, backbones=improving.names(further), cache=cache, out=out
    )
    if as_json:
        click.echo(json.dumps(found.report, indent=2))
    else:
        terminal.show(found.report, str(found.folder))


@main.command()
@recipe_flags
@click.option("--to", "kind", type=click.Choice(["parquet", "npy"]), help="Also write them as such files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of these files; default: features/NAME.")
@cache_option
@world_options
@json_flag
def extract(
    words: tuple[str, ...],
    kind: str | None,
    out: Path | None,
    cache: Path | None,
    world: World | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Extract features into the cache, without probing.

    \b
    probe extract --backbone clip-rn50 --data food101 --to parquet
    """
    if out is not None and kind is None:
        raise UserError("--out is where files of features go; say which with --to parquet or --to npy")
    recipe = recipe_from(words, flags)
    if world is not None:
        sys.exit(launch(world, sys.argv[1:]))
    from probe.runs.extract import extract as extract_features

    rows = extract_features(recipe, cache=cache, kind=kind, out=out)

    def line(row: dict[str, Any]) -> str:
        speed = f"{row['rows'] / max(row['seconds'], 1e-9):,.0f} images/s"
        how = "cached" if row["cached"] else speed
        where = f"  {row['file']}" if "file" in row else ""
        return f"{row['split']:6} {row['view']:8} {row['rows']:>9,} x {row['dim']}  {how}{where}"

    if rank() == 0:
        say(rows, as_json, map(line, rows))


@main.command()
@click.argument("name", metavar="NAME_OR_PATH")
@click.argument("words", nargs=-1, metavar="[data.KEY=VALUE]...")
@cache_option
@json_flag
def data(name: str, words: tuple[str, ...], cache: Path | None, as_json: bool) -> None:
    """Say what is in a data set: splits, classes, sizes, copies and suspect files.

    \b
    probe data pets
    probe data my/photos.csv data.label=species
    """
    from probe.data.summary import summarise
    from probe.report.text import data as text
    from probe.runs.inputs import load_data

    found = summarise(load_data(recipe_from(words, {"data": name}), cache))
    say(found, as_json, text.lines(found))


@main.command()
@cache_option
@json_flag
def doctor(cache: Path | None, as_json: bool) -> None:
    """Check that this machine has what a run needs."""
    from probe.cli.doctor import examine

    marks = {True: "ok  ", False: "FAIL", None: "note"}
    findings = list(examine(cache))
    lines = (f"{marks[finding.ok]}  {finding.question:17} {finding.answer}" for finding in findings)
    say([asdict(finding) for finding in findings], as_json, lines)
    sys.exit(1 if any(finding.ok is False for finding in findings) else 0)


for command in (export, push, completion, rehearse, cache, *(listing(make) for make in LISTED)):
    main.add_command(command)
