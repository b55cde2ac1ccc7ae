"""By simulation: 95 % intervals cover, equal methods are not called different, verdict and interval agree."""

from __future__ import annotations

import math
import multiprocessing

import pytest

from tests.support.simulated_experiments import SMALL, WHAT, Cell, Counts, run

TRIALS = 2000
SMALLEST_P = 1e-6
SEEDS = (1, 2, 3, 5)

CELLS = (
    # Every spread between seeds with every number of seeds; a seed shifts classes alike, or each by itself.
    *(Cell(12, 50, 0.75, s, spread, alike=spread in (1, 3)) for s in SEEDS for spread in (0, 1, 2, 3, 4)),
    # Few and many images a class.
    *(Cell(10, n, 0.8, s, spread=2) for s in SEEDS for n in (5, 10, 20, 100)),
    # Accuracies; near 100 % a seed cannot shift a class by points.
    *(
        Cell(15, 40, accuracy, s, spread)
        for s in (1, 3)
        for accuracy, spread in (
            (0.5, 3),
            (0.6, 2),
            (0.9, 2),
            (0.95, 1),
            (0.98, 0.5),
            (0.99, 0.3),
            (0.995, 0.1),
        )
    ),
    # Classes of 3 to 32, and of 16 to 158 images.
    *(Cell(20, n, 0.75, s, spread=2, balanced=False) for s in SEEDS for n in (10, 50)),
    # Few and many classes.
    *(Cell(k, n, 0.8, s, spread=2) for s in (1, 3) for k, n in ((5, 30), (50, 20), (100, 10), (200, 10))),
    # Found wrong before: twenty classes whose seeds differ by 3.7 points; four expected errors in a group.
    *(Cell(20, 100, 0.8, s, spread=3.7) for s in (2, 3, 5)),
    *(Cell(12, 100, 0.99, s) for s in SEEDS),
    # One image a class.
    *(Cell(60, 1, 0.8, s, spread=2) for s in (1, 3)),
)


def standard_error(share: float, trials: int) -> float:
    return math.sqrt(share * (1 - share) / trials)


def broken(cell: Cell, c: Counts) -> list[str]:
    """What an experiment's counts show to be wrong."""
    least = 0.93 - 2 * standard_error(0.93, c.trials)
    most = 0.98 + 2 * standard_error(0.98, c.trials)
    kinds = ("", "gain ", "null gain ")
    names = [f"{kind}{what}" for kind in kinds for what in (*WHAT, "class")]
    found = [f"{name} is covered in {c.rate(name):.2%}" for name in names if c.rate(name) < least]
    if cell.seeds > 2 and not cell.border:
        # of the cell: of a hundred single rates at 98 %, some would exceed the limit by chance
        together = {kind: sum(c.rate(f"{kind}{what}") for what in WHAT) / len(WHAT) for kind in kinds}
        found += [f"{k or 'accuracy '}is covered in {r:.2%}" for k, r in together.items() if r > most]
    alarms = 0.05 + 2 * standard_error(0.05, c.trials)
    for what, count in (("class", c.false_classes), ("group", c.false_groups)):
        if count > alarms * c.trials:
            found.append(f"a {what} is called clear in {count / c.trials:.2%} of the tables of equal methods")
    for level in SMALL:
        # a table's p-values are dependent: as if there were one a table
        limit = 1.2 * level + 2 * standard_error(1.2 * level, c.trials)
        for what, small, tests in (
            ("group", c.small[level], c.tests),
            ("class", c.small_classes[level], c.class_tests),
        ):
            if small > limit * tests:
                found.append(f"p <= {level} in {small / tests:.3%} of the {what} tests of equal methods")
    if c.smallest < SMALLEST_P:
        found.append(f"a p-value of {c.smallest:.1e} where nothing differs")
    if c.split_minds:
        found.append(f"{c.split_minds} verdicts contradict their intervals")
    return found


@pytest.mark.parametrize(
    "cell",
    [Cell(9, 20, 0.8, 1), Cell(9, 20, 0.8, 2, spread=3), Cell(9, 20, 0.8, 3, spread=3), Cell(6, 20, 0.99, 3)],
    ids=lambda cell: f"{cell.seeds}-seeds-{cell.accuracy:g}-spread-{cell.spread:g}",
)
def test_intervals_keep_their_promise(cell):
    assert not broken(cell, run(cell, 150, seed=1))


def _numbered(job: tuple[int, Cell]) -> Counts:
    number, cell = job
    return run(cell, TRIALS, seed=number)


@pytest.mark.slow
@pytest.mark.timeout(4800)
def test_in_two_thousand_experiments_a_cell_intervals_keep_their_promise():
    """All of it, on two processes: 40 minutes at most on two cores that have nothing else to do."""
    assert len(CELLS) >= 60
    assert sum(cell.seeds > 2 and not cell.border for cell in CELLS) >= 15
    pooled = Counts()
    wrong = []
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for cell, counts in zip(CELLS, pool.imap(_numbered, list(enumerate(CELLS))), strict=True):
            groups = [counts.rate(name) for name in WHAT]
            gains = [counts.rate(f"gain {name}") for name in WHAT]
            print(
                f"{cell}: accuracies {min(groups):.1%} to {max(groups):.1%}, classes "
                f"{counts.rate('class'):.1%}, gains {min(gains):.1%} to {max(gains):.1%}, false tables "
                f"{counts.false_groups / TRIALS:.1%} and {counts.false_classes / TRIALS:.1%}, "
                f"smallest p {counts.smallest:.0e}"
            )
            wrong += [f"{cell}: {what}" for what in broken(cell, counts)]
            pooled.tests += counts.tests
            for level in SMALL:
                pooled.small[level] += counts.small[level]
    print(
        {level: pooled.small[level] / pooled.tests for level in SMALL},
        pooled.tests,
        "p-values of equal methods",
    )
    assert pooled.tests >= 100_000
    for level in SMALL:
        assert pooled.small[level] <= 1.2 * level * pooled.tests
    assert not wrong, "\n".join(wrong)
