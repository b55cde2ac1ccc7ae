"""Images mixed from two: the convex combination of two hard-label losses; statistics move once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import probe.losses
from tests.losses.test_against_plain import assert_gradient
from tests.support import plain_losses
from tests.support.loss_cases import PARAMS, case, make, tensors
from tests.support.plain_losses import PLAIN

# Stateless hard-label losses, and mr2, whose statistics are those of the main labels.
NAMES = ("ldam-linear", "dual-focal", "ldam", "cosface", "arcface", "sphereface", "dbm", "elm", "spread-out")
NAMES = (*NAMES, "range", "csr", "mr2")


def two_cases(name: str):
    main = case("balanced", probe.losses.info(name).takes)
    return main, replace(main, y=main.y[-1:] + main.y[:-1])


def plain(name: str, main, other, monkeypatch):
    """Both plain losses, with what is constant taken from the main labels."""
    params = PARAMS.get(name, {})
    first = PLAIN[name](main, **params)
    known = plain_losses.statistics(main)
    monkeypatch.setattr(plain_losses, "statistics", lambda c, p=2.0: known)
    return first, PLAIN[name](other, **params)


@pytest.mark.parametrize("share", [0.7, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_a_mixed_batch_is_the_convex_combination_of_two_plain_losses(name, share, monkeypatch):
    main, other = two_cases(name)
    part = max(share, 1 - share)
    a, b = plain(name, main, other, monkeypatch)
    z, y, h = tensors(main, grad=True)
    labels = [y, torch.tensor(other.y)]
    first, second = labels if share >= 0.5 else labels[::-1]
    loss = make(name, main)
    value = loss.mixed(z, first, second, torch.tensor(share, dtype=torch.float64), h)
    expected = part * a(main.z, main.h) + (1 - part) * b(main.z, main.h)
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    value.backward()

    def both(z, h):
        return part * a(z, h) + (1 - part) * b(z, h)

    assert_gradient(both, main, *(torch.zeros_like(t) if t.grad is None else t.grad for t in (z, h)))
    assert loss.training


@pytest.mark.parametrize("name", ["mr2", "dro", "center", "cmic"])
def test_statistics_move_once_with_the_main_labels(name):
    main, other = two_cases(name)
    z, y, h = tensors(main)
    mixed, hard = make(name, main), make(name, main)
    mixed.mixed(z, y, torch.tensor(other.y), torch.tensor(0.6), h)
    hard(z, y, h)
    for key, value in hard.state_dict().items():
        torch.testing.assert_close(mixed.state_dict()[key], value)


def test_images_that_are_not_mixed_are_hard_labels():
    main, other = two_cases("mr2")
    z, y, h = tensors(main)
    value = make("mr2", main).mixed(z, y, torch.tensor(other.y), torch.tensor(1.0), h)
    torch.testing.assert_close(value, make("mr2", main)(z, y, h))
