"""Sharing work between problems changes their cost, never their answer."""

from __future__ import annotations

import pytest
import torch

from probe.core.adjustment import ClassAdjustment
from probe.solve import logistic
from probe.solve.logistic import Basis
from tests.support.solver_problems import blobs

EXACT = 1e-18


class OnDisk:
    """What the solvers need of a cached matrix; counts how often it is read whole."""

    def __init__(self, X):
        self.X, self.shape, self.largest = X, X.shape, 0

    def blocks(self, rows):
        for block in self.X.split(rows):
            self.largest = max(self.largest, len(block))
            yield block


@pytest.mark.parametrize("block", [None, 1, 3, 8])
def test_a_path_equals_independent_solves_in_the_order_given(block):
    X, y = blobs()
    l2s = [1.0, 100.0, 0.01, 3.0, 0.1, 30.0, 10.0]
    done = []
    heads = logistic.path(X, y, 4, l2s, tol=EXACT, block=block, progress=done.append)
    assert sum(done) == len(l2s)
    for l2, head in zip(l2s, heads, strict=True):
        alone = logistic.fit(X, y, 4, l2=l2, tol=EXACT)
        assert head.l2 == l2
        assert head.converged
        torch.testing.assert_close(head.weight, alone.weight, atol=1e-6, rtol=1e-6)
        assert head.objective == pytest.approx(alone.objective, rel=1e-12)


def test_following_a_path_takes_far_fewer_iterations_than_starting_anew():
    X, y = blobs(n=200, dim=20)
    l2s = torch.logspace(2, -4, 33).tolist()
    followed = sum(head.iterations for head in logistic.path(X, y, 4, l2s))
    anew = sum(logistic.fit(X, y, 4, l2=l2).iterations for l2 in l2s)
    assert followed < anew / 3


def test_a_warm_start_is_taken_up():
    X, y = blobs()
    head = logistic.fit(X, y, 4, l2=1.0, tol=EXACT)
    assert logistic.fit(X, y, 4, l2=1.0, init=head).iterations == 0


@pytest.mark.parametrize(
    "rows", [None, ClassAdjustment(scale=torch.tensor([0.5, 1.0, 2.0, 1.5]))], ids=["plain", "MR²"]
)
def test_streamed_blocks_give_the_same_head_as_features_in_memory(rows):
    X, y = blobs(n=1500, dim=8)
    matrix = OnDisk(X.float())
    streamed = logistic.path(
        matrix, y, 4, [10.0, 1.0], adjustment=rows, basis=Basis(matrix, budget=1000), tol=EXACT
    )
    for there, here in zip(
        streamed, logistic.path(X.float(), y, 4, [10.0, 1.0], adjustment=rows, tol=EXACT), strict=True
    ):
        torch.testing.assert_close(there.weight, here.weight, atol=1e-6, rtol=0)
        assert there.objective == pytest.approx(here.objective, rel=1e-10)
    torch.testing.assert_close(streamed[0].logits(matrix), streamed[0].logits(X.float()))


def test_streaming_bounds_the_block_whatever_the_number_of_rows(monkeypatch):
    X, y = blobs(n=3000, dim=8)
    matrix = OnDisk(X.float())
    monkeypatch.setattr("probe.solve.objective.rows_at_once", lambda *_: 256)
    monkeypatch.setattr("probe.solve.basis.rows_at_once", lambda *_: 256)
    monkeypatch.setattr(matrix, "tensor", lambda: pytest.fail("read whole"), raising=False)
    solution = logistic.fit(matrix, y, 4, l2=1.0, basis=Basis(matrix, budget=1000))
    assert matrix.largest == 256
    assert solution.objective == pytest.approx(logistic.fit(X.float(), y, 4, l2=1.0).objective, rel=1e-7)


@pytest.mark.parametrize("dim", [6, 200], ids=["N > D", "D > N"])
def test_one_basis_serves_folds_methods_and_larger_sets(dim):
    X, y = blobs(n=120, dim=dim)
    basis = Basis(X)
    for part in (slice(0, 90), slice(30, 120), slice(None)):
        shared = logistic.fit(X[part], y[part], 4, l2=1.0, basis=basis, tol=EXACT)
        own = logistic.fit(X[part], y[part], 4, l2=1.0, tol=EXACT)
        torch.testing.assert_close(shared.weight, own.weight, atol=1e-6, rtol=0)
    small = Basis(X[:60])
    grown = logistic.fit(X, y, 4, l2=1.0, basis=small, tol=EXACT)
    torch.testing.assert_close(
        grown.weight, logistic.fit(X, y, 4, l2=1.0, tol=EXACT).weight, atol=1e-6, rtol=0
    )


def test_too_many_dimensions_to_rotate_still_reach_the_optimum(monkeypatch):
    X, y = blobs(n=60, dim=12)
    rotated = logistic.fit(X, y, 4, l2=1.0, tol=EXACT)
    monkeypatch.setattr("probe.solve.basis.LARGEST_EIGH", 4)
    plain = logistic.fit(X, y, 4, l2=1.0, tol=EXACT)
    torch.testing.assert_close(plain.weight, rotated.weight, atol=1e-6, rtol=0)
