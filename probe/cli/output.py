"""What a command prints: JSON for programs, or lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from probe.system.safe_text import printable


def say(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print the value as JSON, or the lines that describe it."""
    for line in [json.dumps(value, indent=2)] if as_json else map(printable, lines):
        click.echo(line)
