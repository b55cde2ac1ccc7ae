"""Finite values and gradients at the edges, lower precision, compilation, and saved state."""

from __future__ import annotations

import copy

import pytest
import torch

import probe.losses
from tests.support.loss_cases import PARAMS, case, tensors
from tests.support.loss_cases import make as make_on

K, D = 6, 5
COUNTS = [200, 5, 60, 0, 30, 12]  # class 3 is empty
ALL = probe.losses.names()
MR2 = ["mr2", "mr2-paper", "mr2-early", "mr2-released"]
STATEFUL = [*MR2, "dro", "fairdro", "cmic", "center", "dro-lt", "dro-lt-released", "lgm"]
STATELESS = [n for n in ALL if n not in STATEFUL]


def make(name, **kw):
    return probe.losses.make(name, num_classes=K, class_counts=COUNTS, **{**PARAMS.get(name, {}), **kw})


def assert_finite(loss, z, y, h):
    z, h = z.clone().requires_grad_(), h.clone().requires_grad_()
    value = loss(z, y, h)
    assert value.isfinite(), value
    value.backward()
    for t in (z, h):
        assert t.grad is None or t.grad.isfinite().all()


def inputs(name, n=8, dtype=torch.float32, size=1.0):
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 0, 1, 2, 2, 4, 5, 0])[:n]
    z = torch.randn(n, K, generator=g, dtype=dtype)
    z = torch.tanh(z) if probe.losses.info(name).takes == "cosines" else z
    return z, y, size * torch.randn(n, D, generator=g, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_edges_are_finite(name, dtype):
    z, y, h = inputs(name, dtype=dtype)
    if probe.losses.info(name).takes == "cosines":
        ends = torch.ones_like(z)
        ends[::2] = -1
        ends[:, ::3] *= -1
        assert_finite(make(name), ends, y, h)
    else:
        assert_finite(make(name), 1e4 * z, y, h)
    assert_finite(make(name), z, y, h * (1e3 / h.norm(dim=1, keepdim=True)))
    assert_finite(make(name), z, y, torch.zeros_like(h))
    assert_finite(make(name), z[:1], y[:1], h[:1])
    assert_finite(make(name), z, torch.full_like(y, 3), h)  # a class the counts call empty
    assert_finite(make(name).eval(), z, y, h)


@pytest.mark.parametrize(("half", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("name", ALL)
def test_autocast_computes_the_loss_in_float32(name, half, tolerance):
    """Only the input's own rounding is lost, and statistics stay in full precision."""
    z, y, h = inputs(name)
    settings = {"gamma": 1.0} if name == "eql" else {}  # no chance in the mask
    full, lower = make(name, **settings), make(name, **settings)
    want = full(z, y, h)
    with torch.autocast("cpu", dtype=half):
        got = lower(z.to(half), y, h.to(half))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for buffer in lower.state_dict().values():
        assert buffer.dtype not in (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("name", STATELESS)
def test_functional_gradients_work_on_stateless_losses(name):
    c = case("unsorted", probe.losses.info(name).takes)
    z, y, h = tensors(c, grad=True)
    settings = {"gamma": 1.0} if name == "eql" else {}
    loss = make_on(name, c, **settings)
    loss(z, y, h).backward()
    functional = torch.func.grad(lambda a, b: loss(a, y, b), argnums=(0, 1))(z.detach(), h.detach())
    for got, t in zip(functional, (z, h), strict=True):
        torch.testing.assert_close(got, torch.zeros_like(t) if t.grad is None else t.grad)


def assert_compiles(name):
    torch._dynamo.reset()
    c = case("unsorted", probe.losses.info(name).takes)
    settings = {"gamma": 1.0} if name == "eql" else {}
    loss = make_on(name, c, **settings)
    grads = []
    for f in (loss, torch.compile(loss, backend="aot_eager")):
        z, y, h = tensors(c, grad=True)
        value = f(z, y, h)
        value.backward()
        grads.append((value.detach(), z.grad, h.grad))
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["la", "dbm"])
def test_compiled_losses_agree(name):
    assert_compiles(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATELESS)
def test_every_stateless_loss_compiles(name):
    assert_compiles(name)


@pytest.mark.slow
def test_the_default_compiler_compiles_a_loss():
    loss = probe.losses.make("focal", num_classes=K)
    z, y, _ = inputs("focal")
    torch.testing.assert_close(torch.compile(loss)(z, y), loss(z, y))


@pytest.mark.parametrize("name", STATEFUL)
def test_state_survives_a_copy_and_a_state_dict(name):
    z, y, h = inputs(name, dtype=torch.float64)
    trained = make(name)
    for step in range(3):
        trained(z + step, y, h * (1 + step))
    loaded = make(name)
    state = trained.state_dict()
    assert state
    loaded.load_state_dict(state)
    for twin in (copy.deepcopy(trained), loaded):
        assert twin.state_dict().keys() == state.keys()
        for key, value in twin.state_dict().items():
            assert torch.equal(value, state[key])
        torch.testing.assert_close(twin(z, y, h), copy.deepcopy(trained)(z, y, h), rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in STATEFUL if n != "lgm"])
def test_evaluation_moves_no_state(name):
    z, y, h = inputs(name)
    loss = make(name)
    loss(z, y, h)
    loss.eval()
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    loss(-z, y, 2 * h)
    assert all(torch.equal(v, before[k]) for k, v in loss.state_dict().items())


@pytest.mark.parametrize("name", [n for n in STATEFUL if n not in ("lgm", "dro-lt-released")])  # parameters
def test_casting_a_model_to_half_precision_leaves_statistics_alone(name):
    z, y, h = inputs(name)
    loss = make(name)
    loss(z, y, h)
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    loss.half().bfloat16()
    assert all(torch.equal(v, before[k]) for k, v in loss.state_dict().items())
    assert loss(z.bfloat16(), y, h.bfloat16()).isfinite()


def test_a_device_without_float64_gets_float32():
    loss = make("la")

    def to_small_device(t):
        if t.dtype == torch.float64:
            raise TypeError("no float64 here")
        return t

    loss._apply(to_small_device)
    assert loss.adjustment().shift.dtype == torch.float32
