"""Standard output and error as they really are: closed, full, or unable to show most letters."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from probe.system.safe_text import one_line


def settle() -> None:
    """Before a command: what is closed is nowhere, and what cannot be encoded is written as `\\u2026`."""
    # Without this, the first file that is opened would become standard output, and be printed into.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - as long as the process
        elif mode == "w" and getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def tell(line: str) -> None:
    """One line on standard error, if it can still be written to."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{one_line(line)}\n")
        sys.stderr.flush()


def failure() -> OSError | None:
    """Why standard output cannot be written to; None if it can. What waits for it is then given up."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # the interpreter would try again when it ends, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    except ValueError:  # closed by the command itself
        return None
    return None
