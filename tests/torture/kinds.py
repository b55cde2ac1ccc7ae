"""What a torture is: one fault, or one kind of bad input, tried again and again with other luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from probe.errors import UserError

# One try; raises AssertionError when the product broke its promise. Where it holds several faults, it returns
# how many.
Case = Callable[[Random], int | None]


@dataclass(frozen=True)
class Torture:
    """A row of the table that `make torture` prints.

    `begin(folder)` prepares what all tries share (data, an undisturbed run) and returns the case. A case
    draws all its luck from the Random it is given, so that seed and number name it for ever.
    """

    name: str  # "kill: extraction"
    promise: str  # what must hold, in a phrase
    begin: Callable[[Path], Case]
    quick: int = 1  # tries in `make test`; 0 where preparing takes too long for it
    share: float = 1.0  # of the time that `make torture` gives, relative to the other rows
    timeout: float = 60.0  # seconds after which a try hangs, and is lost

    def luck(self, seed: int, number: int) -> Random:
        """What the try of this number draws from."""
        return Random(f"{seed}/{self.name}/{number}")


def complaint(attempt: Callable[[], object]) -> str | None:
    """What the product said when it refused something; None if it did it."""
    try:
        attempt()
    except UserError as refused:
        return str(refused)
    return None
