"""Exact class statistics: any order, any chunking, stable, bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core import class_stats as module
from probe.core.class_stats import ClassStats, Groups, RunningStats
from probe.errors import UserError


def direct(h, y, k, p):
    mean = torch.stack([h[y == c].mean(0) if (y == c).any() else torch.zeros(h.shape[1]) for c in range(k)])
    spread = [(h[y == c] - mean[c]).norm(p, dim=1).square().mean() if (y == c).any() else 0 for c in range(k)]
    return mean, torch.tensor(spread, dtype=torch.float64)


@given(st.integers(0, 1000), st.sampled_from([2.0, 5.0, 1.0]))
@settings(max_examples=15, deadline=None)
def test_one_pass_in_small_pieces_equals_the_definition(seed, p):
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(57, 3, generator=g, dtype=torch.float64)
    y = torch.randint(0, 6, (57,), generator=g)
    mean, spread = direct(h, y, 7, p)
    with pytest.MonkeyPatch.context() as patch:
        whole = ClassStats.from_features(h, y, 7, p)
        patch.setattr(module, "PIECE", 3 * 5)  # five rows a piece
        pieces = ClassStats.from_features(h.numpy(), y.numpy(), 7, p)
    for got in (whole, pieces):
        torch.testing.assert_close(got.mean, mean)
        torch.testing.assert_close(got.spread2, spread)
        torch.testing.assert_close(got.mean_norm2, mean.norm(p, dim=1).square())
        assert torch.equal(got.count, torch.bincount(y, minlength=7).double())


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_second_moments_are_the_mean_squared_norm(seed):
    g = torch.Generator().manual_seed(seed)
    h, y = torch.randn(40, 5, generator=g, dtype=torch.float64), torch.arange(40) % 4
    want = torch.stack([h[y == k].square().sum(1).mean() for k in range(4)])
    torch.testing.assert_close(ClassStats.from_features(h, y, 4).second_moment, want)


def test_features_far_from_the_origin_keep_their_spread():
    g = torch.Generator().manual_seed(0)
    h, y = torch.randn(300, 4, generator=g, dtype=torch.float64), torch.arange(300) % 3
    near, far = ClassStats.from_features(h, y, 3), ClassStats.from_features(h + 1e8, y, 3)
    torch.testing.assert_close(far.spread2, near.spread2, rtol=1e-6, atol=0)


def test_a_matrix_with_blocks_is_read_block_by_block():
    class Blocks:
        shape = (20, 3)

        def __init__(self, rows):
            self.rows, self.asked = rows, []

        def __len__(self):
            return len(self.rows)

        def blocks(self, size):
            self.asked.append(size)
            yield from self.rows.split(6)

    h, y = torch.randn(20, 3), np.arange(20) % 2
    matrix = Blocks(h)
    torch.testing.assert_close(
        ClassStats.from_features(matrix, y, 2).spread2, ClassStats.from_features(h, y, 2).spread2
    )
    assert len(matrix.asked) == 1


def test_classes_without_rows_are_zero():
    stats = ClassStats.from_features(torch.ones(3, 2), [0, 0, 2], 4)
    assert stats.count.tolist() == [2, 0, 1, 0]
    assert stats.spread2.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("h", "y", "says"),
    [
        (torch.ones(3, 2), [0, 1], "3 rows of features but 2 labels"),
        (torch.ones(0, 2), [], "at least one row"),
        (torch.ones(2, 2), [0, 5], "from 0 to 5"),
        (torch.tensor([[1.0], [float("nan")]]), [0, 1], "class 1 are not finite"),
    ],
)
def test_mistakes_get_one_clear_line(h, y, says):
    with pytest.raises(UserError, match=says):
        ClassStats.from_features(h, y, 3)


def mean_spread_of_batches(draw, *, start, steps=400):
    """sbar, averaged over the second half of a run over batches of 12 classes; their true spread is 8."""
    g = torch.Generator().manual_seed(0)
    running = RunningStats(12, ema=0.9)
    if start:
        rows = 3 + torch.randn(1200, 8, generator=g, dtype=torch.float64)
        running.start(ClassStats.from_features(rows, torch.arange(1200) % 12, 12))
    found = []
    for _ in range(steps):
        y = draw(g)
        running.update(Groups.of(y), 3 + torch.randn(len(y), 8, generator=g, dtype=torch.float64))
        found.append([float(running.mean_spread), float(running.mean_norm2.mean())])
    return torch.tensor(found)[steps // 2 :].mean(0).tolist()


def test_started_averages_are_the_same_for_batches_of_any_make_up():
    """Of m samples 1 - 1/m of the spread is left, so the unit of distances would depend on the batches."""
    draws = {
        "as they come": lambda g: torch.randint(0, 12, (16,), generator=g),
        "fours": lambda g: torch.randperm(12, generator=g)[:4].repeat_interleave(4),
        "pairs": lambda g: torch.randperm(12, generator=g)[:8].repeat_interleave(2),
    }
    for draw in draws.values():
        spread, norm = mean_spread_of_batches(draw, start=True)
        assert spread == pytest.approx(8, rel=0.03)
        assert norm == pytest.approx(72, rel=0.03)
    assert mean_spread_of_batches(draws["pairs"], start=False)[0] == pytest.approx(4, rel=0.05)


def test_a_class_with_one_sample_keeps_its_started_averages():
    h, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 2
    running = RunningStats(3, ema=0.5)
    running.start(stats := ClassStats.from_features(h, y, 3))
    again = RunningStats(3, ema=0.5)
    again.load_state_dict(running.state_dict())  # a resumed training knows that it was started
    batch = torch.tensor([0, 1, 1, 2])
    for each in (running, again):
        each.update(Groups.of(batch), h[:4])
        torch.testing.assert_close(each.spread2[0], stats.spread2[0])
        torch.testing.assert_close(each.mean_norm2[0], stats.mean_norm2[0])
        pair = (h[1] - h[2]).square().sum() / 2
        torch.testing.assert_close(each.spread2[1], (stats.spread2[1] + pair) / 2)
        torch.testing.assert_close(each.mean_norm2[1], (stats.mean_norm2[1] + (h[1] @ h[2]).clamp(min=0)) / 2)
        assert each.seen.tolist() == [True] * 3
    older = {name: value for name, value in again.state_dict().items() if name != "started"}
    again.load_state_dict(older)  # of a version whose averages went on with the bias
    assert not again.started
