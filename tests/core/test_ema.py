"""The masked moving average."""

from __future__ import annotations

import torch

from probe.core.ema import blend


def test_seen_classes_move_new_ones_are_copied_and_absent_ones_stay():
    average = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    seen = torch.tensor([True, False, True])
    blend(average, seen, torch.tensor([0, 1]), torch.tensor([[5.0, 9.0], [7.0, 7.0]]), 0.75)
    assert average.tolist() == [[2.0, 3.0], [7.0, 7.0], [3.0, 3.0]]


def test_the_average_keeps_its_own_precision():
    average = torch.zeros(2)
    blend(average, torch.tensor([True, True]), torch.tensor([1]), torch.tensor([4.0]).double(), 0.5)
    assert average.dtype == torch.float32
    assert average.tolist() == [0.0, 2.0]
