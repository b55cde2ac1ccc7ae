"""The one exception for mistakes a user can make and fix, and the words that go with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user gave is wrong; the message says what, where and what to do.

    The command line prints it as one line and exits with code 2; it never shows a traceback.
    """


class Unavailable(UserError):
    """Something is not on this machine and cannot be fetched now; callers may look for what else is not."""

    def __init__(self, what: str, why: str, way_out: str) -> None:
        super().__init__(f"{what}, and {why}; {way_out}")
        self.what, self.why, self.way_out = what, why, way_out


def reason(error: BaseException) -> str:
    """What an exception says, on one line; the name of its class where it says nothing.

    >>> reason(ValueError("no such layer\\n  in block 3"))
    'no such layer'
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean "pets"?' for a near miss, else the known words themselves.

    >>> nearest("pest", ["pets", "food101"])
    '; did you mean "pets"?'
    """
    known = list(known)
    if not known:
        return "; there are none"
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(f'"{c}"' for c in close) + "?"
    return "; known: " + ", ".join(known)
