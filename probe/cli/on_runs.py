"""Commands that use the head of a finished run: `probe predict` and `probe evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from probe.cli.options import cache_option, device_option, json_flag, out_option
from probe.errors import UserError
from probe.system.safe_text import printable

SKIP_HELP = "Leave out images that cannot be read, and name them."
RUN = click.argument("run_folder", type=click.Path(path_type=Path), metavar="RUN")


@click.command()
@RUN
@click.argument("images", nargs=-1, required=True, metavar="IMAGES...")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of classes for each image.",
)
@click.option("--to", type=click.Path(path_type=Path), help="Write a .csv or .parquet file instead.")
@click.option("--skip-bad-images", is_flag=True, help=SKIP_HELP)
@device_option
@json_flag
def predict(
    run_folder: Path,
    images: tuple[str, ...],
    top: int,
    to: Path | None,
    skip_bad_images: bool,
    device: str,
    as_json: bool,
) -> None:
    """Classify images with the head that a run saved.

    IMAGES are files, folders, patterns in quotes, or tables (.csv, .parquet) with a column path or image.

    \b
    probe predict runs/clip-rn50-pets-mr2-1a2b3c4d cat.jpg 'photos/**/*.jpg' inbox/ --top 3
    probe predict runs/clip-rn50-pets-mr2-1a2b3c4d photos.csv --to predictions.parquet
    """
    from probe.runs import predict as predicting

    if to is not None and as_json:
        raise UserError("--to writes a file and --json prints; choose one")
    if to is not None:
        predicting.check_target(to)
    found = predicting.predictions(
        run_folder, images, top=top, skip_bad_images=skip_bad_images, device=device
    )
    if to is not None:
        count = predicting.write(found, to)
        click.echo(f"{count:,} predictions in {printable(str(to))}")
    elif as_json:
        click.echo(json.dumps([row.as_dict() for row in found], indent=2))
    else:
        for row in found:
            for line in row.lines():
                click.echo(printable(line))
    for line in found.bad:
        click.echo(f"left out: {printable(line)}", err=True)
    if found.bad and not found.count:
        sys.exit(2)


@click.command()
@RUN
@click.option("--data", required=True, help="A data set as in `probe run`, or imagenet-v2, -r, -a, -sketch.")
@click.option("--root", help="A local copy of a registered data set.")
@click.option(
    "--among",
    type=click.Choice(["auto", "all", "present"]),
    default="auto",
    show_default=True,
    help="Which classes a prediction may be, where the data has a part of them only.",
)
@click.option("--seed", type=click.IntRange(min=0), help="One of the run's seeds; default: all of them.")
@click.option("--attribute", help="A column that groups the images; each of its values is shown.")
@click.option("--skip-bad-images", is_flag=True, help=SKIP_HELP)
@device_option
@cache_option
@out_option
@json_flag
def evaluate(run_folder: Path, as_json: bool, attribute: str | None, **given: Any) -> None:
    """Judge the head, or the tuned network, of a run on other images of its classes.

    \b
    probe evaluate runs/clip-rn50-pets-mr2-1a2b3c4d --data my/other-pets
    probe evaluate runs/clip-rn50-imagenet-erm-1a2b3c4d --data imagenet-r --root copies/imagenet-r
    """
    from probe.report.text import evaluation as terminal
    from probe.runs.evaluate import evaluate as judge

    done = judge(run_folder, by=attribute, **given)
    if as_json:
        click.echo(json.dumps(done.result, indent=2))
    else:
        terminal.show(done.result, str(done.folder))
