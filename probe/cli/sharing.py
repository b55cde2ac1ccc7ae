"""Commands that take a run away: `probe export` and `probe push`."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.options import json_flag
from probe.cli.output import say

run_argument = click.argument("run_folder", type=click.Path(path_type=Path), metavar="RUN")
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Whose head to take."
)


@click.command()
@run_argument
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--to", required=True, type=click.Choice(["timm", "transformers", "onnx", "torch"]))
@seed_option
@click.option(
    "--from-bytes", is_flag=True, help="Put mean and standard deviation inside the graph (onnx, torch)."
)
@json_flag
def export(run_folder: Path, folder: Path, to: str, seed: int, from_bytes: bool, as_json: bool) -> None:
    """Write a run as one model that another library loads: encoder, head, preprocessing, class names.

    \b
    probe export runs/effnet-lite0-pets-mr2-1a2b3c4d --to timm my-model
    """
    from probe.runs.export import export as write

    about = write(run_folder, to, folder, seed=seed, from_bytes=from_bytes)
    others = [str(other) for other in about["seeds"] if other != seed]
    kept = f"the head of seed {seed}" + (f" (--seed takes {', '.join(others)} too)" if others else "")
    lines = [
        f"{folder}: {len(about['class_names'])} classes, {kept}, logits checked through {to}",
        f"load it with {about['load']}",
    ]
    say(about, as_json, lines)


@click.command()
@run_argument
@click.argument("repository", metavar="OWNER/NAME")
@seed_option
@click.option("--private", is_flag=True, help="Make a repository that only you can see.")
@click.option(
    "--dry-run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write what would be uploaded to this folder instead.",
)
@json_flag
def push(
    run_folder: Path, repository: str, seed: int, private: bool, dry_run: Path | None, as_json: bool
) -> None:
    """Upload a run to the Hugging Face hub: the model in safetensors, and a card that says how good it is.

    \b
    probe push runs/effnet-lite0-pets-mr2-1a2b3c4d me/my-pets --dry-run look-first
    """
    from probe.runs.push import push as upload

    done = upload(run_folder, repository, seed=seed, private=private, dry_run=dry_run)
    say(done, as_json, [f"{done['where']}: {', '.join(done['files'])}"])
