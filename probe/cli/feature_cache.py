"""`probe cache`: list, verify, merge or remove cached features."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from probe.cli import listings
from probe.cli.options import cache_option, json_flag
from probe.cli.output import say


@click.group()
def cache() -> None:
    """List, verify, merge or remove cached features."""


@cache.command("ls")
@cache_option
@json_flag
def ls(cache: Path | None, as_json: bool) -> None:
    """List the entries, newest first."""
    listings.cache_entries(cache).show(as_json)


@cache.command()
@click.argument("names", nargs=-1)
@cache_option
@json_flag
def verify(names: tuple[str, ...], cache: Path | None, as_json: bool) -> None:
    """Verify the checksums of entries (default: all); exit code 1 if anything is damaged."""
    from probe.features import inventory
    from probe.report.text.format import plural

    problems = [str(problem) for problem in inventory.verify(cache, names)]
    end = plural(len(problems), "damaged file") if problems else "no damaged files"
    say(problems, as_json, [*problems, end])
    sys.exit(1 if problems else 0)


@cache.command()
@click.argument("other", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@cache_option
@json_flag
def merge(other: Path, names: tuple[str, ...], cache: Path | None, as_json: bool) -> None:
    """Take over the entries of another cache folder (default: all), every checksum verified.

    Exit code 1 if files of the other cache are damaged; they are left behind.
    """
    from probe.features.merging import Merged, merge
    from probe.report.text.format import plural

    def line(entry: Merged) -> str:
        state = "complete" if entry.complete else "partial: extract once more to complete it"
        return f"{entry.name}  {plural(entry.taken, 'shard')} taken, {entry.present} here already; {state}"

    found = merge(other, cache, names)
    damaged = [f"damaged, left behind: {what}" for entry in found for what in entry.damaged]
    nothing = [] if found else [f"{other} holds no entry: nothing was merged"]
    say([asdict(entry) for entry in found], as_json, [*nothing, *map(line, found), *damaged])
    sys.exit(1 if damaged else 0)


@cache.command("rm")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@cache_option
@json_flag
def rm(names: tuple[str, ...], everything: bool, cache: Path | None, as_json: bool) -> None:
    """Remove entries by name or by the start of a name."""
    from probe.features import inventory

    removed = list(inventory.remove(cache, names, everything=everything))
    say(removed, as_json, (f"removed {name}" for name in removed))
