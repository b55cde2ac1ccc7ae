"""`probe cache merge`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from probe.cli.options import cache_option, json_flag


@click.command()
@click.argument("other", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@cache_option
@json_flag
def merge(other: Path, names: tuple[str, ...], cache: Path | None, as_json: bool) -> None:
    """Take over the entries of another cache folder (default: all), every checksum verified.

    Exit code 1 if files of the other cache are damaged; they are left behind.
    """
    from probe.cli import say
    from probe.features.merging import Merged, merge
    from probe.report.text.format import plural

    def line(entry: Merged) -> str:
        state = "complete" if entry.complete else "partial: extract once more to complete it"
        return f"{entry.name}  {plural(entry.taken, 'shard')} taken, {entry.present} here already; {state}"

    found = merge(other, cache, names)
    damaged = [f"damaged, left behind: {what}" for entry in found for what in entry.damaged]
    say([asdict(entry) for entry in found], as_json, [*map(line, found), *damaged])
    sys.exit(1 if damaged else 0)
