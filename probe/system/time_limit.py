"""Work that has to end on time: an exception in the middle of it, as by Ctrl-C, when its seconds are over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LEAST = 1e-3  # seconds: a timer of 0 would be none
MOST = 1e9  # longer ones, timers cannot count


class TimeUp(BaseException):
    """Not an `Exception`, so that nothing in between takes it for a failure of its own, and goes on."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeUp` in the block after this many seconds; outside a main thread the block is not limited."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    handler, begin = signal.signal(signal.SIGALRM, end), time.monotonic()
    pending, _ = signal.setitimer(signal.ITIMER_REAL, min(max(seconds, LEAST), MOST))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if pending:  # somebody else's limit goes on
            signal.setitimer(signal.ITIMER_REAL, max(pending - (time.monotonic() - begin), LEAST))
