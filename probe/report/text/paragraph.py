"""Sentences on a terminal, wrapped so that a number keeps its percent sign."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

TOGETHER = "\N{NO-BREAK SPACE}"  # textwrap keeps to it, rich does not


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, none of which begins with a percent sign."""
    lines = textwrap.wrap(
        text.replace(" %", f"{TOGETHER}%"), max(width, 1), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace(f"{TOGETHER}%", " %")


@dataclass(frozen=True)
class Paragraph:
    """One paragraph, as wide as the terminal or the column of a table that it stands in."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(wrapped(self.text, options.max_width), style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, Text(self.text))
