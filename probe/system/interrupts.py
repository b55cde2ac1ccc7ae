"""Ctrl-C is one line and exit code 130 from the first import on, when nothing could yet catch it.

Python would turn it into an exception, which in the middle of an import is a page of traceback or, in a C
extension, anything. So the `probe` command begins with a handler that just leaves; the commands themselves
get the exception, where there is something to tidy up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # 128 + SIGINT, as shells count
MODULES = {"probe", "probe.cli"}  # what `python -m` may name


def _leave(number: int, frame: object) -> None:
    try:
        os.write(2, b"stopped\n")
    finally:
        os._exit(INTERRUPTED)


def guard() -> None:
    """In a process that is the `probe` command, and does not just import it: leave at once on Ctrl-C."""
    started_as = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "")  # noqa: PTH119 - early
    command = started_as == "probe" or (started_as == "-m" and bool(MODULES & set(sys.orig_argv)))
    if command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Inside the block Ctrl-C is a KeyboardInterrupt again; nothing changes where `guard` did nothing."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)
