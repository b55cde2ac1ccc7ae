"""What happens to features before a head, above all to parts that stand side by side."""

import numpy as np
import pytest
import torch

from probe.core import scaling
from probe.core.scaling import NEUTRAL, Scaling

WIDTHS = [3, 5]


def parts(n=50):
    rng = np.random.default_rng(0)
    left, right = rng.normal(2, 3, (n, 3)), rng.normal(-1, 0.02, (n, 5))
    return left, right


def joined(*columns):
    return torch.tensor(np.hstack(columns), dtype=torch.float32)


def test_parts_are_divided_by_the_root_of_their_total_variance():
    left, right = parts()
    X = joined(left, right)
    expected = [part / np.sqrt(part.var(axis=0).sum()) for part in (left, right)]
    found = scaling.equal_parts(X, WIDTHS)(X).numpy()
    np.testing.assert_allclose(found, np.hstack(expected), rtol=1e-5)
    np.testing.assert_allclose(
        [found[:, :3].var(axis=0).sum(), found[:, 3:].var(axis=0).sum()], [1, 1], rtol=1e-5
    )


def test_the_units_of_a_part_play_no_role():
    left, right = parts()
    X, Y = joined(left, right), joined(1000 * left, right / 7)
    torch.testing.assert_close(scaling.equal_parts(X, WIDTHS)(X), scaling.equal_parts(Y, WIDTHS)(Y))


def test_one_part_and_a_constant_part_stay_as_they_are():
    left, right = parts()
    assert scaling.equal_parts(joined(left), [3]) is NEUTRAL
    X = joined(left, np.ones_like(right))
    assert torch.equal(scaling.equal_parts(X, WIDTHS)(X)[:, 3:], X[:, 3:])


@pytest.mark.parametrize("kinds", [["none", "standard"], ["standard", "none"], ["standard", "standard"]])
def test_a_standardised_part_has_unit_variances_and_no_more_weight_than_another(kinds):
    left, right = parts()
    raw = joined(left, right)
    balance = scaling.equal_parts(raw, WIDTHS)
    found = scaling.by_part(kinds, balance(raw), WIDTHS)(balance(raw)).double()
    for kind, part in zip(kinds, found.split(WIDTHS, dim=1), strict=True):
        assert float(part.var(dim=0, correction=0).sum()) == pytest.approx(1, rel=1e-4)
        if kind == "standard":
            assert part.mean(dim=0).abs().max() < 1e-5
            assert torch.allclose(part.std(dim=0, correction=0), part.std(dim=0, correction=0)[0], rtol=1e-4)


def test_two_scalings_as_one_are_the_two_in_turn():
    X = joined(*parts())
    one = Scaling(torch.arange(8.0), torch.linspace(0.5, 2, 8))
    other = Scaling(torch.linspace(-1, 1, 8), torch.linspace(3, 1, 8), unit_norm=True)
    for first in (NEUTRAL, one):
        for second in (NEUTRAL, one, other, Scaling(unit_norm=True)):
            torch.testing.assert_close(first.then(second)(X), second(first(X)), rtol=1e-5, atol=1e-5)
