"""What the angular losses promise, on free inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import probe.heads
import probe.losses
from probe.errors import UserError

K = 5
seeds = st.integers(0, 10_000)
light = settings(max_examples=12, deadline=None)
ANGULAR = [n for n in probe.losses.names() if probe.losses.info(n).takes == "cosines"]


def batch(seed, n=9, k=K, most=1.0):
    g = torch.Generator().manual_seed(seed)
    c = most * (2 * torch.rand(n, k, generator=g, dtype=torch.float64) - 1)
    return c, torch.randint(0, k, (n,), generator=g)


def counts(seed, k=K):
    return torch.randint(1, 500, (k,), generator=torch.Generator().manual_seed(seed)).tolist()


def make(name, **kw):
    return probe.losses.make(name, num_classes=K, **kw)


@given(seeds)
@light
def test_without_a_margin_all_are_cross_entropy_of_scaled_cosines(seed):
    c, y = batch(seed)
    n = counts(seed)
    plain = F.cross_entropy(20 * c, y)
    none = [
        make("ldam", class_counts=n, max_margin=0.0, scale=20.0),
        make("cosface", margin=0.0, scale=20.0),
        make("arcface", margin=0.0, scale=20.0),
        make("sphereface", margin=1, scale=20.0),
        make("dbm", class_counts=n, margin=0.0, scale=20.0),
    ]
    for loss in none:
        torch.testing.assert_close(loss(c, y), plain, rtol=1e-10, atol=1e-10)


@given(seeds, st.floats(0.0, 0.5), st.floats(0.0, 0.4))
@light
def test_a_larger_margin_never_lowers_the_loss(seed, margin, more):
    # Cosines above -cos(0.9), so that the angle plus any of these margins stays below pi.
    c, y = batch(seed, most=math.cos(math.pi - 0.95) * -1)
    for name, key in (("cosface", "margin"), ("arcface", "margin"), ("ldam", "max_margin")):
        kw = {"class_counts": counts(seed)} if name == "ldam" else {}
        low, high = (make(name, **kw, **{key: m})(c, y) for m in (margin, margin + more))
        assert low <= high + 1e-9


@given(seeds)
@light
def test_sphereface_falls_over_the_whole_half_circle(seed):
    loss = make("sphereface", margin=4)
    theta = torch.linspace(0, math.pi, 400, dtype=torch.float64)
    psi = loss.psi(theta.cos(), torch.zeros(400, dtype=torch.long), theta.cos())
    assert (psi.diff() <= 1e-9).all()
    assert psi[0].item() == pytest.approx(1)
    assert psi[-1].item() == pytest.approx(1 - 2 * 4, abs=1e-6)


@given(seeds)
@light
def test_ldam_on_balanced_counts_is_cosface(seed):
    c, y = batch(seed)
    torch.testing.assert_close(
        make("ldam", class_counts=[40] * K, max_margin=0.5)(c, y), make("cosface", margin=0.5)(c, y)
    )


@given(seeds)
@light
def test_dbm_on_balanced_counts_without_instance_margin_is_arcface(seed):
    c, y = batch(seed)
    dbm = make("dbm", class_counts=[40] * K, margin=0.2, positives="none", scale=30.0)
    torch.testing.assert_close(dbm(c, y), make("arcface", margin=0.2)(c, y))


@given(seeds)
@light
def test_class_order_and_the_scale_of_counts_do_not_matter(seed):
    c, y = batch(seed)
    n = torch.tensor(counts(seed))
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    back = order.argsort()
    for name, params in (("dbm", {"base": "bs"}), ("dbm", {"base": "cb"}), ("ldam", {})):
        value = make(name, class_counts=n, **params)(c, y)
        shuffled = make(name, class_counts=n[order], **params)(c[:, order], back[y])
        torch.testing.assert_close(value, shuffled, rtol=1e-10, atol=1e-10)
        if params.get("base") != "cb":  # effective numbers do depend on absolute counts
            torch.testing.assert_close(value, make(name, class_counts=3 * n, **params)(c, y))


@given(seeds)
@light
def test_dbm_orders_its_ablations(seed):
    c, y = batch(seed, most=0.9)
    n = counts(seed)
    none, hard, every = (make("dbm", class_counts=n, positives=p)(c, y) for p in ("none", "hard", "all"))
    assert none <= hard + 1e-12
    assert hard <= every + 1e-12


@pytest.mark.parametrize("name", ANGULAR)
def test_with_a_cosine_head_the_size_of_features_is_free_and_their_gradient_is_orthogonal(name):
    g = torch.Generator().manual_seed(0)
    head = probe.heads.make("cosine", 7, K).double()
    h = torch.randn(9, 7, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, K, (9,), generator=g)
    loss = make(name, **({"class_counts": counts(0)} if probe.losses.info(name).needs else {}))
    value = loss(head.cosines(h), y)
    torch.testing.assert_close(value, loss(head.cosines(5 * h), y))
    if isinstance(head.weight, torch.nn.Parameter):  # nor does that of the class vectors count
        head.weight.data *= torch.linspace(0.1, 3, K, dtype=torch.float64).unsqueeze(1)
        torch.testing.assert_close(value, loss(head.cosines(h), y))
    (grad,) = torch.autograd.grad(value, h)
    torch.testing.assert_close((grad * h).sum(1), torch.zeros(9, dtype=torch.float64), atol=1e-10, rtol=0)


def test_the_arcface_guard_keeps_the_target_falling_past_pi():
    loss = make("arcface", margin=0.5, guard=True)
    c = torch.tensor([-1.0, -0.99, -0.95], dtype=torch.float64)
    y = torch.zeros(3, dtype=torch.long)
    torch.testing.assert_close(loss.psi(c, y, c), c - 0.5 * math.sin(0.5))


@pytest.mark.parametrize("name", ANGULAR)
def test_logits_in_place_of_cosines_are_refused_by_name(name):
    loss, (c, y) = make(name, class_counts=counts(0)), batch(0)
    for wrong in (12 * c, torch.where(c == c.max(), 1.1, c), torch.where(c == c.min(), -1.1, c)):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            with pytest.raises(UserError, match=r"takes cosines.*head.cosines.*probe.heads.Cosine") as caught:
                loss(wrong.to(dtype), y)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ANGULAR)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cosines_that_rounding_puts_beyond_one_are_cosines(name, dtype):
    loss, y = make(name, class_counts=counts(0)), torch.arange(K).repeat(40)
    head = probe.heads.make("cosine", 512, K)
    h = head.weight[y].detach()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        cosines = head.to(dtype).cosines(h.to(dtype)) if dtype == torch.float64 else head.cosines(h).to(dtype)
    for seen in (cosines, cosines.float(), torch.nextafter(cosines, cosines.new_tensor(2.0))):
        assert loss(seen.detach(), y).isfinite()


def test_a_queue_is_waited_for_at_few_calls_only():
    loss, (c, _) = make("cosface"), batch(0)
    looked = []

    class Elsewhere:
        """A tensor on a device with a queue, as the check sees it."""

        dtype, device = torch.float32, torch.device("cuda")

        def __len__(self):
            return 9

        def detach(self):
            looked.append(loss._calls)
            return c

    for _ in range(100):
        loss._check_cosines(Elsewhere())
    assert looked == [1, 2, 4, 8, 16, 32, 64]
