"""`make torture`: every fault and every kind of bad input, again and again, until the time is over.

python -m tests.torture --seconds 600 --seed 1 [--only "kill"] [--case 17]
"""

from __future__ import annotations

import argparse
import sys
import time

from probe.system.progress import bar
from tests.torture.rows import rows
from tests.torture.runner import ENDLESS, Count, Lost, run, warm_up

COLUMNS = "{:<44} {:>7} {:>9} {:>6}"


def main() -> int:
    words = argparse.ArgumentParser(prog="torture", description=__doc__.splitlines()[0])
    words.add_argument("--seconds", type=float, default=600.0, help="when to stop")
    words.add_argument("--seed", type=int, default=1, help="of all luck")
    words.add_argument("--only", default="*", help="rows whose name holds this")
    words.add_argument("--case", type=int, help="this number of every chosen row, once")
    given = words.parse_args()
    chosen = rows(given.only)
    if not chosen:
        words.error(f'no row is called "{given.only}"; there are: {", ".join(row.name for row in rows())}')
    print(COLUMNS.format("fault or input", "tried", "survived", "lost"))
    numbers = ENDLESS if given.case is None else range(given.case, given.case + 1)
    counts: list[Count] = []
    begun = time.monotonic()
    end = begun + given.seconds
    warm_up()
    with bar("torture", round(given.seconds), "s") as advance:
        shown = 0

        def look() -> None:
            nonlocal shown
            now = min(int(time.monotonic() - begun), round(given.seconds))
            advance(now - shown, chosen[len(counts)].name)
            shown = now

        for place, row in enumerate(chosen):
            share = row.share / sum(other.share for other in chosen[place:])
            until = time.monotonic() + (end - time.monotonic()) * share
            count = run(row, given.seed, until=until, end=end, numbers=numbers, look=look)
            counts.append(count)
            print(line(row.name, count), flush=True)
    print(COLUMNS.format("total", *totals(counts)))
    for lost in (lost for count in counts for lost in count.lost):
        print(explained(lost))
    return 1 if any(count.lost for count in counts) else 0


def line(name: str, count: Count) -> str:
    return COLUMNS.format(name, f"{count.tried:,}", f"{count.survived:,}", f"{len(count.lost):,}")


def totals(counts: list[Count]) -> list[str]:
    numbers = ((c.tried, c.survived, len(c.lost)) for c in counts)
    return [f"{sum(column):,}" for column in zip(*numbers, strict=True)]


def explained(lost: Lost) -> str:
    return f'lost: --only "{lost.row}" --seed {lost.seed} --case {lost.number}: {lost.why}'


if __name__ == "__main__":
    sys.exit(main())
