"""Names from outside, made safe to print: invisible characters are written as escapes.

A class, file or data set can have any name: colour codes that rewrite a terminal, line breaks, marks that
reverse the direction of the text after them, surrogates that no file can hold.
"""

from __future__ import annotations

from typing import Any

LONGEST = 1000  # characters of a message; a name of a million is shown by its beginning


def printable(text: str) -> str:
    r"""`text` on one line, in which control characters, direction marks and the like stand as `\x1b`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def one_line(message: str) -> str:
    """A message that may quote anything, as one printable line; its end, which says what to do, is kept."""
    clean = " ".join(printable(line) for line in message.splitlines() if line.strip())
    if len(clean) <= LONGEST:
        return clean
    return f"{clean[: LONGEST * 2 // 3]} … {clean[-LONGEST // 3 :]}"


def visible(value: Any) -> Any:
    """The same for every string of a JSON value, keys too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {visible(key): visible(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible(inner) for inner in value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
