"""Every loss and its gradient agree with plain Python loops in float64."""

from __future__ import annotations

import pytest
import torch

import probe.losses
from probe.core.class_stats import ClassStats
from tests.support.loss_cases import LABELS, PARAMS, case, make, tensors
from tests.support.plain_losses import PLAIN

STEP = 5e-5
DIRECTIONS = 4
PROTOTYPES = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
# Other settings of a method that take another path through it.
VARIANTS = [
    ("arcface", {"guard": True, "margin": 1.2}),
    ("dbm", {"base": "cb", "positives": "all", "margin": 0.3}),
    ("dbm", {"base": "bs", "positives": "none", "tau": 0.5}),
    ("sphereface", {"margin": 1}),
    ("sphereface", {"margin": 3}),
    ("sphereface", {"blend": 5.0}),
    ("cmic", {"cap": 2.0}),
    ("range", {"scale": "total"}),
    ("dro-lt", {"scale": "total", "margin": 0.5}),
    ("mr2", {"p": 3.0, "c": 1.7}),
    ("mr2", {"lam": 0.0}),
    *(
        ("mr2", {"scale": scale, "statistic": statistic, "power": power, "c": 1.3})
        for scale in ("spread", "total", "none")
        for statistic in ("spread", "moment")
        for power in (0.0, 1 / 3, 1.0)
    ),
    ("mr2", {"shrink": 3.0, "power": 1.0}),
    ("mr2-paper", {"p": 3.0, "c": 1.7}),
    *((name, {"scale": "spread", "lam": 0.5}) for name in ("elm", "center", "range", "dro-lt")),
    ("elm", {"alpha": "prior", "tau": 0.5, "alpha_scale": 3.0}),
    ("elm", {"alpha": "sqrt-prior"}),
    ("range", {"k": 1}),
    ("focal", {"gamma": 0.5}),
    ("fairdro", {"rho": 0.02, "project": False}),
    ("dro", {"eta": 0.5, "adjustment": 2.0}),
    # what long-tail papers compare
    ("ef", {"form": "weights", "beta": 0.99}),
    *(("margin-softmax", {"delta": d, "factor": 1.7}) for d in ("prior", "inverse-root", "ldam", "constant")),
    (
        "margin-softmax",
        {"delta": "matrix", "matrix": [[(3 * i - j) / 7 for j in range(6)] for i in range(6)]},
    ),
    ("cb-focal-sigmoid", {"gamma": 0.5, "prior": 0.1, "beta": 0.99}),
    ("triplet", {"unit": False, "margin": 0.7, "lam": 0.3}),
    ("contrastive", {"unit": False, "temperature": 1.0}),
    ("dro-lt-released", {"temperature": 0.3, "lam": 0.4}),
]


def reference(name, c, params):
    params = {**PARAMS.get(name, {}), **params}
    if name == "eql":
        draws = torch.rand((len(c.y), c.num_classes), generator=torch.Generator().manual_seed(7))
        return PLAIN[name](c, **params, draws=draws.tolist())
    if name == "dro-lt-released":  # a distance of 0, to the mean of a single sample, has no slope
        return PLAIN[name](c, **params, prototype=PROTOTYPES.tolist())
    return PLAIN[name](c, **params)


def ours(name, c, params):
    extra = {"generator": torch.Generator().manual_seed(7)} if name == "eql" else {}
    if name == "dro-lt-released":
        ones = torch.ones(len(PROTOTYPES))
        extra = {"stats": ClassStats(ones, ones, ones, PROTOTYPES)}
    return make(name, c, **params, **extra)


def assert_gradient(f, c, z_grad, h_grad):
    """Derivatives along random directions: five-point differences of the plain f against our gradient."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(DIRECTIONS):
        along_z, along_h = (
            torch.randn(len(rows), len(rows[0]), generator=generator, dtype=torch.float64)
            for rows in (c.z, c.h)
        )
        for dz, dh in ((along_z, 0 * along_h), (0 * along_z, along_h)):
            total = 0.0
            for offset, factor in ((-2, 1), (-1, -8), (1, 8), (2, -1)):
                z = [
                    [a + offset * STEP * b for a, b in zip(*rows, strict=True)]
                    for rows in zip(c.z, dz.tolist(), strict=True)
                ]
                h = [
                    [a + offset * STEP * b for a, b in zip(*rows, strict=True)]
                    for rows in zip(c.h, dh.tolist(), strict=True)
                ]
                total += factor * f(z, h)
            got = (z_grad * dz).sum() + (h_grad * dh).sum()
            assert got.item() == pytest.approx(total / (12 * STEP), rel=1e-7, abs=1e-7)


def check(name, c, params):
    z, y, h = tensors(c, grad=True)
    loss, f = ours(name, c, params), reference(name, c, params)
    value = loss(z, y, h)
    expected = f(c.z, c.h)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    value.backward()
    assert_gradient(f, c, *(torch.zeros_like(t) if t.grad is None else t.grad for t in (z, h)))


def test_every_loss_of_the_table_has_a_plain_version():
    assert set(PLAIN) == set(probe.losses.names())


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("batch", LABELS)
def test_value_and_gradient_equal_plain_loops(name, batch):
    check(name, case(batch, probe.losses.info(name).takes), {})


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_other_settings_equal_plain_loops(name, params):
    check(name, case("unsorted", probe.losses.info(name).takes), params)


def test_the_gaussian_head_equals_plain_loops_with_learned_variances():
    c = case("unsorted")
    z, y, h = tensors(c, grad=True)
    loss = make("lgm", c, diagonal=True, dim=4).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        loss.centres.copy_(torch.randn(loss.centres.shape, generator=generator))
        loss.log_variance.copy_(torch.randn(loss.centres.shape, generator=generator))
    f = PLAIN["lgm"](c, centres=loss.centres.tolist(), log_variance=loss.log_variance.tolist())
    value = loss(z, y, h)
    assert value.item() == pytest.approx(f(c.z, c.h), rel=1e-12)
    value.backward()
    assert_gradient(f, c, torch.zeros_like(z), h.grad)


@pytest.mark.parametrize("few", [True, False])
def test_both_plans_for_pairs_agree(few, monkeypatch):
    """Differences of pairs and one Gram product give the same pull, also far from the origin."""
    from probe.losses import same_class_pairs

    monkeypatch.setattr(same_class_pairs, "GRAM", 0 if few else 10**9)
    c = case("unsorted")
    far = [[v + 1e3 for v in row] for row in c.h]
    c = type(c)(c.z, c.y, far, c.num_classes, c.counts)
    z, y, h = tensors(c, grad=True)
    value = make("elm", c)(z, y, h)
    f = PLAIN["elm"](c, **PARAMS["elm"])
    assert value.item() == pytest.approx(f(c.z, c.h), rel=1e-9)
    value.backward()
    assert_gradient(f, c, z.grad, h.grad)
