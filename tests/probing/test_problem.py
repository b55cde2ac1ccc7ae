"""The loss of a probe's problem: with the statistics of all rows, which single rows cannot own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.probing.problem import ProbeProblem
from probe.probing.settings import LossChoice


def problem(outlier: float = 1.0) -> ProbeProblem:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(30)
    h = 3 * torch.randn(4, 8, generator=g)[y] + torch.randn(120, 8, generator=g) * (1 + 0.2 * y).unsqueeze(1)
    h[5] *= outlier
    return ProbeProblem(h, y.numpy(), ("a", "b", "c", "d"))


def test_an_image_of_a_hundred_times_the_norm_does_not_own_a_margin_of_a_probe():
    clean, planted = (problem(f).loss(LossChoice("mr2")) for f in (1.0, 100.0))
    torch.testing.assert_close(planted.gamma, clean.gamma, rtol=0.05, atol=0)
    torch.testing.assert_close(planted.mean_spread, clean.mean_spread, rtol=0.15, atol=0)
    owned = problem(100.0).loss(LossChoice("mr2", {"robust": False, "cap": 50.0}))
    assert float(owned.gamma.max()) > 2


def test_what_is_given_is_kept_and_rows_are_chosen():
    rows = np.arange(40)
    loss = problem().loss(LossChoice("mr2", {"cap": 1.0, "shrink": 0.0}), rows)
    assert loss.gamma.tolist() == pytest.approx([1, 1, 1, 1])
    assert loss.counts.tolist() == [10, 10, 10, 10]
    assert loss.shrink == 0
