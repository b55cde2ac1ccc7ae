"""Every tensor of a solve is on the device of its passes, shown without one.

Under FakeTensorMode tensors have a shape and a device but no numbers, and an operation on two devices raises.
What the numbers would decide (is it solved? which classes are there?) is answered by the tests.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch._subclasses import FakeTensorMode

from probe import losses
from probe.core.adjustment import ClassAdjustment
from probe.core.class_stats import ClassStats
from probe.core.row_share import RowShare
from probe.solve import certificate, devices, knn, lbfgs, logistic, newton
from probe.solve.basis import Basis
from probe.solve.inputs import FeatureRows
from probe.solve.objective import BlockCrossEntropy, Resident, Streamed
from probe.solve.ridge import Ridge
from probe.solve.solution import linear_logits
from tests.support.fake_device import cuda_guard

N, D, K, B = 50, 6, 4, 3
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
ADJUSTMENTS = {
    "plain": ClassAdjustment(),
    "scale": ClassAdjustment(scale=torch.ones(K)),
    "shift": ClassAdjustment(shift=torch.zeros(K)),
    "matrix": ClassAdjustment(shift=torch.zeros(K, K)),
    "weight": ClassAdjustment(weight=torch.ones(K)),
    "all": ClassAdjustment(torch.ones(K), torch.zeros(K, K), torch.ones(K)),
}
EXACT = [name for name in losses.names() if losses.info(name).frozen == "exact"]


@pytest.fixture
def fake(monkeypatch):
    """Numbers that decide are answered here: one step, then solved."""
    rounds = iter(range(10**6))
    monkeypatch.setattr(certificate, "holds", lambda condition: next(rounds) % 2 == 1)
    monkeypatch.setattr(certificate, "status", lambda solved, stuck, last: _words(len(solved), next(rounds)))
    monkeypatch.setattr(certificate, "number", lambda t: 1.0)
    monkeypatch.setattr(Basis, "_check", lambda self, product: None)
    monkeypatch.setattr(FeatureRows, "refuse_non_finite", lambda self: None)
    monkeypatch.setattr(knn, "holds", lambda condition: False)
    with fake_mode() as mode:
        yield mode


@contextmanager
def fake_mode():
    with cuda_guard(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def _words(problems, turn):
    return ["converged" if turn > 1 else ""] * problems


def small_basis(X, **more):
    basis = Basis(X, device=GPU, budget=more.pop("budget", 1 << 30))
    assert {t.device.type for t in (basis.mean, basis.spectrum, basis.vectors)} == {"cuda"}
    return basis


@pytest.mark.parametrize("kind", [Resident, Streamed])
@pytest.mark.parametrize("adjustment", ADJUSTMENTS.values(), ids=ADJUSTMENTS)
@pytest.mark.parametrize("home", ["cpu", "cuda"])  # where the features are
def test_evaluators_stay_on_the_device(fake, kind, adjustment, home):
    X = torch.zeros(N, D, device=home)
    basis = small_basis(X)
    targets = torch.zeros(N, dtype=torch.int64, device=GPU)
    loss = BlockCrossEntropy(targets, adjustment, torch.ones(N, device=GPU), basis.dtype)
    evaluator = (
        Resident(basis.rotated(basis.features), loss, RowShare(N))
        if kind is Resident
        else Streamed(basis, basis.features, loss, lambda: None)
    )
    theta = torch.zeros(B, K, D + 1, dtype=basis.dtype, device=GPU)
    l2 = torch.ones(B, dtype=torch.float64, device=GPU)
    outcomes, memory = lbfgs.minimise(
        evaluator, basis.spectrum, theta, l2, tol=0.1, max_iter=5, memory=lbfgs.Memory()
    )
    assert outcomes[0].theta.device.type == "cuda"
    assert all(t.device.type == "cuda" for pair in memory.pairs for t in pair)


@pytest.mark.parametrize("adjustment", ADJUSTMENTS.values(), ids=ADJUSTMENTS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_newton_and_its_blocks_stay_on_the_device(fake, adjustment, dtype):
    basis = small_basis(torch.zeros(N, D))
    targets = torch.zeros(N, dtype=torch.int64, device=GPU)
    loss = BlockCrossEntropy(targets, adjustment, torch.ones(N, device=GPU), basis.dtype)
    rows = basis.rotated(basis.features)
    evaluator = Resident(rows, loss, RowShare(N), None if dtype is None else rows.to(dtype))
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newton, "along", lambda *given: made.append(given) or given[1])
        patch.setattr(certificate, "holds", lambda condition: False)
        theta = torch.zeros(K, D + 1, dtype=basis.dtype, device=GPU)
        outcome = newton.finish(
            evaluator, evaluator, basis.spectrum, theta, 1.0, size=5, tol=0.1, max_iter=999
        )
    assert outcome.theta.device.type == "cuda"
    assert {t.device.type for _, _, *tensors in made for t in tensors} == {"cuda"}


@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["resident", "streamed"])
def test_a_whole_solve_moves_its_rows_and_brings_its_heads_back(fake, monkeypatch, budget):
    monkeypatch.setattr(logistic, "as_labels", lambda y, *_: y)
    monkeypatch.setattr(logistic, "checked", lambda adjustment, _: adjustment)
    monkeypatch.setattr(logistic, "present_classes", lambda *_: torch.arange(K))
    monkeypatch.setattr(logistic, "without_absent", lambda weight, *_: weight)
    X, y = torch.zeros(N, D), torch.zeros(N, dtype=torch.int64)
    basis = small_basis(X, budget=budget)
    solver = logistic.LogisticSolver(X, y, K, basis=basis, adjustment=ClassAdjustment(weight=torch.ones(K)))
    (head,) = solver.solve([1.0], tol=0.1, max_iter=5)
    assert (head.weight.device, head.device.type) == (CPU, "cuda")
    solver._use(ClassAdjustment())
    (again,) = solver.solve([0.5], init=head, tol=0.1, max_iter=5)
    assert again.bias.device == CPU
    assert head.logits(X).device == CPU


def test_ridge_knn_scores_and_statistics_stay_on_the_device(fake, monkeypatch):
    monkeypatch.setattr("probe.solve.ridge.as_labels", lambda y, *_, device: y.to(device))
    X, y = torch.zeros(N, D), torch.zeros(N, dtype=torch.int64)
    (head,) = Ridge(X, y, K, adjustment=ClassAdjustment(weight=torch.ones(K)), device=GPU).path([1.0])
    assert head.weight.device == CPU
    assert linear_logits(X, head.weight, head.bias, GPU).device == CPU
    bank, labels = X.to(GPU), y.to(GPU)
    for weighted in (True, False):
        assert knn.votes(bank, labels, bank[:5], num_classes=K, k=3, weighted=weighted).device.type == "cuda"
    stats = ClassStats(*(torch.ones(K, device=GPU) for _ in range(3)), bank[:K])
    assert stats.second_moment.device.type == "cuda"


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_methods_adjustment_reaches_the_device(name):
    """Declared on the CPU, by real numbers, and used on the device."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(N, D, generator=g), torch.arange(N) % K
    spec = losses.info(name)
    params = spec.resolve({}, whole_set=True)
    needed = spec.needed_stats(params)
    stats = None if needed is None else ClassStats.from_features(X, y, K, p=needed.p, robust=needed.robust)
    if (wanted := spec.unfilled(losses.spec.HELD_OUT_FREQUENCY, params)) is not None:
        params = {**params, wanted: [0.5] * K}
    made = losses.make(name, num_classes=K, class_counts=torch.bincount(y).numpy(), stats=stats, **params)
    adjustment = made.adjustment()
    with fake_mode():
        loss = BlockCrossEntropy(y.to(GPU), adjustment, None, torch.float32)
        value, residual, bends = loss(torch.zeros(B, K, N, device=GPU))
    assert {t.device.type for t in (value, residual, bends)} == {"cuda"}


def test_a_device_without_float64_keeps_exact_numbers_at_home():
    assert devices.exact_home(torch.device("mps")) == CPU
    assert devices.exact_home(GPU) == GPU


def test_tf32_is_off_inside_and_as_before_outside():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with devices.tf32(False):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
