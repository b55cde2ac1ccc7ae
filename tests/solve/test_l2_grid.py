"""The weight of the penalty is the best one on validation, found with few fits."""

import numpy as np
import pytest

from probe.solve import l2_grid
from probe.solve.l2_grid import GRID, select


def curve(peak):
    """A single-peaked score over log l2; counts how often it is asked."""
    asked = []

    def score(values):
        asked.extend(values)
        return [(-abs(np.log10(s) - peak), 0.0) for s in values]

    return score, asked


def test_the_grid_is_the_clip_protocols():
    assert len(GRID) == 96
    assert GRID[0] == pytest.approx(1e-6)
    assert GRID[-1] == pytest.approx(1e6)
    assert np.allclose(np.diff(np.log10(GRID)), 12 / 95)


@pytest.mark.parametrize("peak", [-6, -5.3, -1.01, 0, 2.7, 5.9, 6])
def test_coarse_to_fine_finds_the_peak_that_the_full_grid_has(peak):
    score, asked = curve(peak)
    assert select(score).l2 == select(curve(peak)[0], full=True).l2
    assert len(asked) <= 20
    assert len(set(asked)) == len(asked)


def test_of_equal_scores_the_higher_likelihood_wins_and_then_the_stronger_penalty():
    assert select(lambda s: [(0.5, -1.0)] * len(s)).l2 == GRID[-1]
    assert select(lambda s: [(0.5, -1.0)] * len(s), full=True).l2 == GRID[-1]
    likely = lambda s: [(min(0.9, 0.1 - np.log10(v) / 5), -abs(np.log10(v) + 4.5)) for v in s]  # noqa: E731
    assert np.log10(select(likely).l2) == pytest.approx(-4.5, abs=0.1)  # equal scores from 1e-4 down
    assert select(likely).l2 == select(likely, full=True).l2


def test_a_value_that_is_worse_by_score_and_likelihood_is_the_last_and_one_of_them_alone_is_not():
    asked = []

    def score(values, likelihood):
        asked.extend(values)
        logs = np.log10(values)
        return [(-abs(v - 2), likelihood(v)) for v in logs]

    select(lambda values: score(values, lambda v: -abs(v - 2)))
    assert min(np.log10(asked)) > 0  # half a coarse step, one decade, below the last one
    asked.clear()
    select(lambda values: score(values, lambda v: -v))  # more and more likely
    assert -3 < min(np.log10(asked)) < -1  # two of them


def test_the_table_holds_what_was_tried_in_order():
    chosen = select(curve(1)[0])
    values = [l2 for l2, _ in chosen.table]
    assert values == sorted(values)
    assert dict(chosen.table)[chosen.l2] == max(dict(chosen.table).values())


class Curve:
    """Trials whose score is a function of the position."""

    def __init__(self, score):
        self.score, self.tried = score, {}

    def fit(self, positions):
        self.tried |= {i: self.score(i) for i in positions}

    def best(self):
        return max(self.tried, key=lambda i: (self.tried[i], i))

    def worse(self, position):
        return self.tried[position] < self.tried[self.best()]


def test_a_plateau_of_strong_penalties_is_crossed_and_the_first_fall_beyond_doubt_ends_it():
    curve = Curve(lambda i: max(0, 20 - abs(i - 20)))  # as good as chance from position 40 on
    l2_grid.coarse_to_fine(curve)
    assert curve.best() == 20
    steep = Curve(lambda i: -abs(i - 80))
    l2_grid.coarse_to_fine(steep)
    assert steep.best() == 80
    assert min(steep.tried) >= 63  # two steps below the strongest


@pytest.mark.parametrize("start", [0, 30, 50, 95])
def test_uphill_from_anywhere_ends_where_no_neighbour_is_better(start):
    curve = Curve(lambda i: -abs(i - 47))
    l2_grid.around(curve, start)
    assert curve.best() == 47
    assert {46, 48} <= set(curve.tried)
    assert len(curve.tried) < 25
