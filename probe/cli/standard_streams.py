"""Standard output and error may be closed, full, or unable to encode most characters."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from probe.system.safe_text import one_line


def settle() -> None:
    """Open closed streams on /dev/null, and write what cannot be encoded as `\\u2026`; before a command."""
    # Otherwise the first file that is opened would become standard output, and be printed into.
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
    """Why standard output cannot be written to, None if it can. Pending output is then dropped."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # the interpreter would flush again at exit, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    except ValueError:  # closed by the command itself
        return None
    return None
