"""Newton's method near the optimum: its Hessian, the blocks that precondition it, and when it takes over."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.core import bfloat16
from probe.core.adjustment import ClassAdjustment
from probe.core.row_share import RowShare
from probe.solve import class_blocks, logistic, objective, schedule
from probe.solve.basis import Basis
from probe.solve.class_blocks import ClassBlocks, block_size
from probe.solve.objective import BlockCrossEntropy, Resident
from tests.support.solver_problems import blobs

K, DIM, L2 = 4, 6, 0.7
SCALE = torch.tensor([0.6, 1.3, 0.9, 1.2])
SHIFT = torch.tensor([[0.0, 0.5, -1.0, 0.2]]).expand(K, K) + torch.eye(K)
ADJUSTMENTS = {
    "plain": ClassAdjustment(),
    "scale": ClassAdjustment(scale=SCALE),
    "shift": ClassAdjustment(shift=SHIFT[0]),
    "shift by label": ClassAdjustment(shift=SHIFT),
    "weight": ClassAdjustment(weight=SCALE),
    "all": ClassAdjustment(scale=SCALE, shift=SHIFT, weight=SCALE.flip(0)),
}
ROWS = {"balanced": {"n": 60}, "long tail": {"counts": [40, 12, 6, 2]}}


def resident(adjustment=None, rows="balanced", weighted=True):
    X, y = blobs(dim=DIM, **ROWS[rows])
    basis = Basis(X)
    weight = torch.linspace(0.2, 2, len(y), dtype=torch.float64) if weighted else None
    loss = BlockCrossEntropy(y, adjustment or ClassAdjustment(), weight, torch.float64)
    return Resident(basis.rotated(basis.features), loss, RowShare(len(y))), basis


def somewhere(seed=0):
    made = torch.randn(1, K, DIM + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made - made.mean(dim=1, keepdim=True)


def hessian_at(evaluator, theta):
    return evaluator.hessian(evaluator.logits(theta)[0], L2)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("adjustment", ADJUSTMENTS.values(), ids=ADJUSTMENTS)
def test_the_hessian_is_the_derivative_of_the_gradient(adjustment, rows):
    evaluator, _ = resident(adjustment, rows)
    theta, direction, l2 = somewhere(), somewhere(1), torch.tensor([L2], dtype=torch.float64)
    h = 1e-5
    ahead, behind = (evaluator.at(theta + sign * h * direction, l2).gradient for sign in (1, -1))
    torch.testing.assert_close(
        hessian_at(evaluator, theta)(direction[0]), (ahead - behind)[0] / (2 * h), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("adjustment", ADJUSTMENTS.values(), ids=ADJUSTMENTS)
def test_what_rows_bend_adds_up_to_the_classes_curvature(adjustment):
    evaluator, _ = resident(adjustment)
    theta = somewhere()
    by_row = hessian_at(evaluator, theta).by_row()
    point = evaluator.at(theta, torch.tensor([L2], dtype=torch.float64))
    torch.testing.assert_close(by_row.sum(dim=1), point.curvature[0])


@pytest.mark.parametrize("size", [1, 7, 59])
def test_blocks_are_the_inverse_that_they_say(size):
    """Class by class, in NumPy: the heaviest rows as they are, all others as the shared diagonal."""
    evaluator, basis = resident()
    hessian = hessian_at(evaluator, somewhere())
    variances = torch.cat([basis.spectrum, basis.spectrum.new_ones(1)])
    g = somewhere(2)[0]
    wanted = []
    rows, spectrum = evaluator.rows.numpy(), variances.numpy()
    for k, weights in enumerate(hessian.by_row().numpy()):
        order = np.argsort(-weights)
        others = max(weights[order[size:]].sum(), 1e-4 * weights.sum()) * spectrum
        others[:-1] += L2
        inside = sum(weights[i] * np.outer(rows[i], rows[i]) for i in order[:size])
        wanted.append(np.linalg.solve(np.diag(others) + inside, g[k].numpy()))
    wanted = np.stack(wanted)
    found = ClassBlocks.of(hessian, variances, size).solve(g)
    np.testing.assert_allclose(found, wanted - wanted.mean(axis=0), rtol=1e-8, atol=1e-10)


def test_blocks_are_made_a_few_classes_at_a_time(monkeypatch):
    evaluator, basis = resident()
    hessian, g = hessian_at(evaluator, somewhere()), somewhere(2)[0]
    variances = torch.cat([basis.spectrum, basis.spectrum.new_ones(1)])
    whole = ClassBlocks.of(hessian, variances, 9).solve(g)
    monkeypatch.setattr(class_blocks, "AT_ONCE", 1)
    torch.testing.assert_close(ClassBlocks.of(hessian, variances, 9).solve(g), whole)


def test_a_class_whose_block_does_not_factor_has_the_diagonal_alone():
    """In float32 1 is nothing beside 2^26: of two equal rows that long, the factor's second pivot is 0."""
    V = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    long = torch.zeros(6)
    long[0] = 2.0**13
    V[1, :2] = long
    assert torch.linalg.cholesky_ex(V[1] @ V[1].T + torch.eye(4)).info > 0
    W = class_blocks._divided(V)
    assert not W[1].any()
    torch.testing.assert_close(W[[0, 2]], class_blocks._divided(V[[0, 2]]))
    torch.testing.assert_close(
        torch.eye(6) - W[0].T @ W[0], torch.linalg.inv(torch.eye(6) + V[0].T @ V[0]), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("length", [1e3, 1e4, 1e5, 1e6])
def test_blocks_of_heavy_rows_stay_positive_in_float32(length):
    """Else conjugate gradients end at once, and Newton's method with them."""
    g = torch.Generator().manual_seed(0)
    V = torch.randn(1, 60, 200, generator=g)
    V *= (length / torch.linalg.matrix_norm(V[0], 2) ** 2).sqrt()
    W = class_blocks._divided(V)[0].double()
    assert torch.linalg.eigvalsh(torch.eye(200, dtype=torch.float64) - W.T @ W).min() > 0.5 / (1 + length)


def test_blocks_never_need_more_memory_than_there_is():
    assert block_size(10_000, 10, 3) == 3
    assert block_size(1_000_000, 10, 10**9) == class_blocks.MOST
    assert block_size(24, 4, 10**9) == 0  # so few rows that L-BFGS is as good
    X, y = (t.repeat(40, *[1] * (t.ndim - 1)) for t in blobs(n=120, dim=6))
    solver = logistic.LogisticSolver(X, y, 4, basis=Basis(X, budget=8 * len(X) * (6 + 5 * 4) + 8 * 4 * 7 * 5))
    assert solver._block_size(1) == 5


def hard(n=3000, dim=400, classes=60):
    """Float32 rows whose directions differ much in size, as those of real features do."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    decay = torch.linspace(0, -4, dim).exp()
    centres = torch.randn(classes, dim, generator=g)
    return ((centres[y] + 6 * torch.randn(n, dim, generator=g)) * decay + 0.3).contiguous(), y


def test_newton_ends_at_the_same_head_in_two_thirds_of_the_iterations_or_less(monkeypatch):
    X, y = hard()
    basis = Basis(X)
    ours = logistic.fit(X, y, 60, l2=0.01, basis=basis)
    monkeypatch.setattr(logistic, "block_size", lambda *_: 0)
    plain = logistic.fit(X, y, 60, l2=0.01, basis=basis)
    assert ours.converged
    assert plain.converged
    assert ours.objective == pytest.approx(plain.objective, rel=2e-7)
    assert torch.equal(ours.logits(X).argmax(1), plain.logits(X).argmax(1))
    assert 3 * ours.iterations <= 2 * plain.iterations


@pytest.mark.parametrize("adjustment", ADJUSTMENTS.values(), ids=ADJUSTMENTS)
def test_every_adjustment_is_solved_by_newton_as_without(adjustment, monkeypatch):
    """Newton from the first iteration on, to the last digits of float64."""
    X, y = blobs(n=120, dim=DIM)
    weight = torch.linspace(0.2, 2, len(y), dtype=torch.float64)
    given = {"l2": 0.02, "adjustment": adjustment, "sample_weight": weight, "tol": 1e-16}
    monkeypatch.setattr(schedule, "NEAR", torch.inf)
    monkeypatch.setattr(schedule, "GRACE", 0)
    monkeypatch.setattr(schedule._Pace, "slow", lambda self, ratio: True)
    ours = logistic.fit(X, y, K, **given)
    monkeypatch.setattr(logistic, "block_size", lambda *_: 0)
    plain = logistic.fit(X, y, K, **given)
    torch.testing.assert_close(ours.weight, plain.weight, rtol=0, atol=1e-6)
    assert ours.converged


def test_lbfgs_goes_on_where_it_is_quick_and_stops_where_it_is_slow():
    def ends(gaps):
        pace = schedule._Pace(goal=1e-7)
        return next((i for i, gap in enumerate(gaps) if pace.slow(gap)), None)

    assert ends(10 * 0.3**i for i in range(40)) is None  # half a digit an iteration
    assert ends(10 * 0.95**i for i in range(400)) == 90 + schedule.GRACE  # 0.1 after 90 of them
    assert ends([10.0] * 50) is None  # not near yet
    assert ends([0.05] * 50) == schedule.GRACE  # stuck


def test_a_class_without_curvature_and_many_l2_at_once_are_solved():
    X, y = blobs(n=400, dim=6, classes=4, spread=0.05)  # separable: almost no row is unsure
    heads = logistic.path(X, y, 4, [1e-3, 1e-4, 1e-5], block=3, tol=1e-7)
    assert all(head.converged for head in heads)
    assert all(torch.equal(head.logits(X).argmax(1), y) for head in heads)


def crowded(counts, dim, spread, decay):
    """Classes of very different size, in float32."""
    g = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    centres = torch.randn(len(counts), dim, generator=g)
    rows = centres[y] + spread * torch.randn(len(y), dim, generator=g)
    return rows * torch.linspace(0, -decay, dim).exp(), y


def test_rows_that_are_sure_do_not_bend_by_rounding(monkeypatch):
    """Rare classes with large weights: where p rounds to 1, p (z - mean) was rounding times the weight."""
    counts = [1, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 1000]
    X, y = crowded(counts, dim=400, spread=6, decay=6)
    weight = len(y) / (len(counts) * torch.tensor(counts, dtype=torch.float32))
    given = {"l2": 1e-4, "adjustment": ClassAdjustment(weight=weight), "basis": Basis(X)}
    ours = logistic.fit(X, y, len(counts), **given)
    monkeypatch.setattr(logistic, "block_size", lambda *_: 0)
    plain = logistic.fit(X, y, len(counts), **given)
    assert ours.converged
    assert ours.objective == pytest.approx(plain.objective, rel=2e-7)
    assert ours.iterations <= plain.iterations + schedule.MOST


def test_blocks_that_hold_every_row_that_counts_leave_a_diagonal():
    g = torch.Generator().manual_seed(3)
    X = torch.randn(5000, 30, generator=g).double() * torch.linspace(0, -8, 30).exp()
    y = torch.randint(0, 5, (5000,), generator=g)
    weight = torch.zeros(5000)
    weight[:400] = 1
    heads = logistic.path(X, y, 5, [1e-2, 1e-5, 1e-8], sample_weight=weight, tol=1e-7)
    assert all(head.converged for head in heads)


def test_where_newton_takes_too_long_lbfgs_goes_on(monkeypatch):
    X, y = hard()
    basis = Basis(X)
    monkeypatch.setattr(schedule, "MOST", 3)
    head = logistic.fit(X, y, 60, l2=0.01, basis=basis)
    assert head.converged


def long_tail():
    counts = [400, 300, 250, 200, 150, 100, 80, 60, 40, 30, 20, 10] * 2
    return crowded(counts, dim=400, spread=4, decay=5)


@pytest.mark.parametrize("rows", [hard, long_tail])
@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_products_in_bfloat16_end_at_the_same_certified_head(rows, name, monkeypatch):
    """On the way, and in Newton's Hessians; every processor can, those without units for it slowly."""
    X, y = rows()
    classes = int(y.max()) + 1
    g = torch.Generator().manual_seed(1)
    scale, shift = 0.7 + 0.6 * torch.rand(classes, generator=g), torch.randn(classes, generator=g)
    given = {"plain": {}, "scale": {"scale": scale}, "shift": {"shift": shift}, "weight": {"weight": scale}}
    given["shift by label"] = {"shift": shift.expand(classes, -1) + torch.eye(classes)}
    given["all"] = given["scale"] | given["shift by label"] | given["weight"]
    adjustment, basis, heads = ClassAdjustment(**given[name]), Basis(X), {}
    for native in (False, True):
        monkeypatch.setattr(bfloat16, "is_native", lambda device, native=native: native)
        made = Products(monkeypatch)
        heads[native] = logistic.fit(X, y, classes, l2=0.05, adjustment=adjustment, basis=basis)
        assert made.rounded == native
    assert heads[True].converged
    assert heads[True].objective == pytest.approx(heads[False].objective, rel=2e-7)
    assert torch.equal(*(head.logits(X).argmax(1) for head in heads.values()))


class Products:
    """Watches which precision products are made in."""

    def __init__(self, monkeypatch):
        self.rounded, made = False, objective._product

        def watched(a, rows):
            self.rounded = self.rounded or rows.dtype == torch.bfloat16
            return made(a, rows)

        monkeypatch.setattr(objective, "_product", watched)


@pytest.mark.parametrize("tol", [1e-2, 1.5e-4])
def test_rough_solves_are_the_same_to_the_bit_with_and_without_bfloat16(tol, monkeypatch):
    """What ends early shows by which way it came, and a choice of l2 must not depend on the processor."""
    X, y = hard()
    found = []
    for native in (False, True):
        monkeypatch.setattr(bfloat16, "is_native", lambda device, native=native: native)
        solver = logistic.LogisticSolver(X, y, 60)
        found.append(solver.path([10.0, 1.0, 0.1], tol=tol, judged=False))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.weight, other.weight)


def test_directions_that_bfloat16_cannot_tell_from_the_mean_are_still_solved(monkeypatch):
    """Two classes differ by a thousandth of the rows' length: rotated, that is a number of its own."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(4000, 300, generator=g)
    y = torch.randint(0, 2, (4000,), generator=g)
    X[:, 0] = 100 + 0.03 * (2 * y - 1) + 0.01 * torch.randn(4000, generator=g)
    heads = []
    for native in (False, True):
        monkeypatch.setattr(bfloat16, "is_native", lambda device, native=native: native)
        heads.append(logistic.fit(X, y, 2, l2=1e-3))
    assert all(head.converged for head in heads)
    assert heads[1].objective == pytest.approx(heads[0].objective, rel=2e-7)


def test_memory_is_asked_before_rows_are_rounded(monkeypatch):
    monkeypatch.setattr(bfloat16, "is_native", lambda device: True)
    X, y = hard()
    needed = 4 * len(X) * (400 + 5 * 60)
    for budget, rounds in ((needed, False), (needed + 2 * len(X) * 401, True)):
        assert logistic.LogisticSolver(X, y, 60, basis=Basis(X, budget=budget))._rounds is rounds


def test_a_path_takes_no_more_iterations_in_bfloat16_where_nothing_can_be_learnt(monkeypatch):
    """Rounded gradients are worse than a near start where the penalty is weak, and nothing pulls back."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(4000, 100, generator=g), torch.randint(0, 20, (4000,), generator=g)
    iterations = {}
    for native in (False, True):
        monkeypatch.setattr(bfloat16, "is_native", lambda device, native=native: native)
        heads = logistic.path(X, y, 20, torch.logspace(3, -6, 20).tolist())
        iterations[native] = sum(head.iterations for head in heads)
    assert iterations[True] <= 1.2 * iterations[False]


def test_rows_that_rounding_spoils_cost_some_iterations_and_no_certificate(monkeypatch):
    """As where the penalty is weaker than what is rounded off: the rows themselves take over."""
    X, y = hard()
    monkeypatch.setattr(bfloat16, "is_native", lambda device: True)
    good = logistic.fit(X, y, 60, l2=0.01)
    rounded = logistic.LogisticSolver._rounded.func

    def spoilt(solver):
        rows = rounded(solver)
        noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
        return rows + (0.3 * rows.std() * noise).to(rows)

    monkeypatch.setattr(logistic.LogisticSolver, "_rounded", property(spoilt))
    head = logistic.fit(X, y, 60, l2=0.01)
    assert head.converged
    assert head.objective == pytest.approx(good.objective, rel=2e-7)
    assert head.iterations < 4 * good.iterations
