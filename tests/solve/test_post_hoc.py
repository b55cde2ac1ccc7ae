"""Problems in the logits of a finished head: solved to their optimum, by independent arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from probe.solve import post_hoc


def scored(n: int = 60, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    logits = torch.randn(n, k, generator=g, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    return logits, labels, 0.5 + torch.rand(n, generator=g, dtype=torch.float64)


def plain(scales, logits, labels, weight, pull) -> float:
    total, mass = 0.0, 0.0
    for z, y, v in zip(logits.tolist(), labels.tolist(), weight.tolist(), strict=True):
        scaled = [f * x for f, x in zip(scales, z, strict=True)]
        total += v * (math.log(sum(math.exp(x) for x in scaled)) - scaled[y])
        mass += v
    return total / mass + pull / (2 * len(scales)) * sum((f - 1) ** 2 for f in scales)


def test_scales_of_classes_are_the_minimum_of_the_plain_objective_in_blocks_too():
    logits, labels, weight = scored()

    def blocks():
        for rows in (slice(0, 17), slice(17, 60)):
            yield logits[rows], labels[rows], weight[rows]

    found = post_hoc.class_scales(blocks, 4, pull=0.05)
    expected = minimize(plain, np.ones(4), args=(logits, labels, weight, 0.05), tol=1e-12).x
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    value, gradient, curvature = post_hoc._scaled_cross_entropy(blocks, found, 0.05)
    assert value == pytest.approx(plain(found.tolist(), logits, labels, weight, 0.05), abs=1e-12)
    assert float(gradient.abs().max()) < 1e-5
    assert float(torch.linalg.eigvalsh(curvature).min()) > 0


def test_a_strong_pull_keeps_every_scale_at_one_and_separable_logits_stay_finite():
    logits, labels, weight = scored()
    held = post_hoc.class_scales(lambda: [(logits, labels, weight)], 4, pull=1e9)
    assert held.tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    logits[torch.arange(60), labels] += 50
    grown = post_hoc.class_scales(lambda: [(logits, labels, weight)], 4, pull=0.01)
    assert grown.isfinite().all()


@pytest.mark.parametrize("planted", [0.4, 1.0, 3.0])
def test_a_planted_temperature_is_found(planted):
    logits, labels, _ = scored(400)
    alone = post_hoc.temperature(logits, labels)
    assert post_hoc.temperature(planted * logits, labels) == pytest.approx(planted * alone, rel=1e-9)

    def cross_entropy(t):
        return plain([1 / t] * 4, logits, labels, torch.ones(400), 0.0)

    assert cross_entropy(alone) < min(cross_entropy(1.01 * alone), cross_entropy(0.99 * alone))


def test_weights_of_rows_are_repeated_rows():
    g = torch.Generator().manual_seed(0)
    logits, labels = 2 * torch.randn(30, 4, generator=g), torch.randint(4, (30,), generator=g)
    times = torch.randint(1, 4, (30,), generator=g)
    repeated = post_hoc.temperature(logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    assert post_hoc.temperature(logits, labels, 0.5 * times) == pytest.approx(repeated, rel=1e-9)
    assert post_hoc.temperature(logits, labels) != pytest.approx(repeated, rel=1e-3)


def test_a_head_without_an_error_gets_the_coldest_temperature_and_a_useless_one_the_hottest():
    labels = torch.tensor([0, 1, 2])
    assert post_hoc.temperature(10 * torch.eye(3), labels) == post_hoc.COLDEST
    assert post_hoc.temperature(-10 * torch.eye(3), labels) == post_hoc.HOTTEST
