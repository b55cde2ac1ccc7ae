"""SIGTERM and Ctrl-C ask training to stop; it stops between two steps, on all processes at the same one."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType

# Seconds in which further signals are the same request: a launcher passes on what the terminal sent already.
GRACE = 2.0


class Stopped(SystemExit):
    """Training was asked to stop and has saved itself; carries the shell's exit code, 128 + signal."""


class StopRequest:
    """Remembers the first signal (0: none yet); a second one, seconds later, stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._since = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread, where signals belong to whoever owns that
                return self
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and time.monotonic() - self._since > GRACE:
            raise KeyboardInterrupt
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
