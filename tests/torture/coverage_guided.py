"""A small fuzzer: inputs that reach new lines of our parsers are kept, and new ones are made from them.

Coverage is the set of steps from one line to the next inside `probe` and `backbones`, as the interpreter's
trace sees them; a parser's branches are found one after another, where blind luck would need all at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import backbones
import probe

Step = tuple[str, int, int]
OURS = tuple(str(Path(package.__path__[0])) for package in (probe, backbones))
LONGEST = 1 << 16  # bytes of an input
SPLICES = (
    b"\0",
    b"\xff",
    b"{}",
    b"[]",
    b'""',
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b": ",
    b"\n",
    b'"\\ud800"',
    b"9" * 30,
)


class Trace:
    """The steps between lines of our modules while it is entered."""

    def __init__(self) -> None:
        self.steps: set[Step] = set()

    def __enter__(self) -> Trace:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        name, last = frame.f_code.co_filename, 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            self.steps.add((name, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line


def changed(luck: Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    """One input made from another: bytes flipped, cut, doubled, or taken from a third."""
    data = bytearray(content)
    for _ in range(1 << luck.randrange(4)):
        at = luck.randrange(len(data) + 1)
        length = luck.choice([1, 1, 2, 4, 8, 64])
        match luck.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << luck.randrange(8)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = luck.choice(SPLICES)
            case 3:
                data[at : at + length] = luck.randbytes(length)
            case 4:
                other = luck.choice(corpus)
                start = luck.randrange(len(other) + 1)
                data[at : at + length] = other[start : start + length]
            case _:
                data[at:at] = data[at : at + length]
    return bytes(data[:LONGEST])


def fuzz(
    parse: Callable[[bytes], None],
    seeds: Sequence[bytes],
    luck: Random,
    executions: int,
    change: Callable[[Random, bytes, Sequence[bytes]], bytes] = changed,
) -> int:
    """Run `parse` on so many inputs, starting from `seeds`; the number of inputs that were worth keeping.

    Whatever `parse` raises is the finding, with the input as a note.
    """
    corpus: list[bytes] = []
    seen: set[Step] = set()
    for number in range(executions):
        fresh = number < len(seeds)
        content = (
            seeds[number] if fresh else change(luck, corpus[int(len(corpus) * luck.random() ** 0.5)], corpus)
        )
        with Trace() as trace:
            try:
                parse(content)
            except BaseException as error:
                raise AssertionError(f"{error!r:.300} from the input {content[:300]!r}") from error
        if fresh or not trace.steps <= seen:
            seen |= trace.steps
            corpus.append(content)
    return len(corpus)
