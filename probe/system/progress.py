"""One kind of progress bar for everything that takes longer than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from probe.system.safe_text import printable

EVERY = 60.0  # seconds between two lines where no bar can be drawn
_drawing: ContextVar[bool] = ContextVar("drawing", default=False)


@contextmanager
def bar(what: str, total: int, unit: str, *, show: bool = True) -> Iterator[Callable[..., None]]:
    """Yield `advance(n, note)`; on a terminal, a bar with the rate and the time left is drawn on stderr,
    elsewhere (a log file) a line is written every minute.

    Inside another bar it draws nothing, because only the outer one tells the time left; in a log file both
    have their lines.

    >>> with bar("extracting", 3680, "images") as advance:
    ...     advance(64)
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    outer = _drawing.get()
    plain, said = show and not console.is_terminal, time.monotonic()
    token = _drawing.set(outer or show)
    with Progress(
        TextColumn("{task.description}", markup=False),  # it may hold the name of a data set
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=outer or not (show and console.is_terminal),
    ) as progress:
        task = progress.add_task(printable(what), total=total, rate="")

        def advance(n: int = 1, note: str = "") -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f} {unit}/s" if speed and speed >= 1 else unit  # a run takes minutes
            progress.update(task, advance=n, rate=f"{note}  {rate}" if note else rate)
            nonlocal said
            if plain and time.monotonic() - said > EVERY:
                said = time.monotonic()
                done = f"{progress.tasks[0].completed:,.0f} of {total:,} {unit}"
                print(f"{printable(what)}: {done}  {note}".rstrip(), file=sys.stderr, flush=True)

        try:
            yield advance
        finally:
            _drawing.reset(token)
