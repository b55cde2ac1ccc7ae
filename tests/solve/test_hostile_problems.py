"""Bad data end with an answer that says how good it is, or with one clear line; never with NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.core.adjustment import ClassAdjustment
from probe.errors import UserError
from probe.solve import logistic
from tests.support.solver_problems import blobs


def finite(solution):
    return bool(solution.weight.isfinite().all() and solution.bias.isfinite().all()) and np.isfinite(
        solution.objective
    )


def accuracy(solution, X, y):
    return (solution.logits(X).argmax(1) == y).double().mean().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_separable_data_with_almost_no_penalty_are_separated(dtype):
    X, y = blobs(spread=0.05)
    solution = logistic.fit(X.to(dtype), y, 4, l2=1e-6)
    assert finite(solution)
    assert accuracy(solution, X.to(dtype), y) == 1.0
    assert solution.objective < 0.01
    assert solution.converged
    assert solution.gap <= 1e-7 * solution.objective


def test_a_huge_penalty_leaves_the_prior():
    X, y = blobs(counts=[60, 30, 10, 5])
    solution = logistic.fit(X, y, 4, l2=1e9)
    assert solution.weight.abs().max() < 1e-5
    prior = torch.tensor([60.0, 30, 10, 5]).double() / 105
    torch.testing.assert_close(solution.bias.softmax(0), prior, atol=1e-4, rtol=0)


def test_badly_scaled_constant_and_repeated_columns():
    X, y = blobs(n=200)
    X = torch.cat([X * torch.logspace(-4, 4, 6), torch.full((200, 1), 7.0), torch.zeros(200, 1), X[:, :2]], 1)
    solution = logistic.fit(X, y, 4, l2=1.0)
    assert finite(solution)
    assert solution.converged
    torch.testing.assert_close(solution.weight[:, 6:8], torch.zeros(4, 2).double(), atol=1e-8, rtol=0)


def test_rows_far_from_the_origin_lose_no_accuracy():
    X, y = blobs(n=3000, dim=400)
    near = logistic.fit(X.float(), y, 4, l2=1.0)
    far = logistic.fit(((X * 64).round() / 64 + 1024).float(), y, 4, l2=1.0)
    assert far.converged
    assert far.objective == pytest.approx(near.objective, rel=2e-2)


def test_identical_rows_and_classes_of_one_row():
    X, y = torch.ones(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    assert finite(logistic.fit(X, y, 3, l2=1.0))
    X, y = blobs(counts=[30, 30, 1, 1])
    solution = logistic.fit(X, y, 4, l2=1e-3)
    assert finite(solution)
    assert solution.converged


def test_a_class_without_rows_takes_no_part_and_is_never_predicted():
    X, y = blobs()
    y = torch.tensor([0, 2, 3, 5])[y]
    log_prior = torch.bincount(y, minlength=6).double().log()  # -inf for the absent
    for rows in (
        None,
        ClassAdjustment(shift=log_prior),
        ClassAdjustment(scale=torch.ones(6), weight=torch.ones(6)),
    ):
        solution = logistic.fit(X, y, 6, l2=1.0, adjustment=rows)
        assert finite(solution)
        assert set(solution.logits(X).argmax(1).tolist()) <= {0, 2, 3, 5}
        present = logistic.fit(X, torch.tensor([0, -1, 1, 2, -1, 3])[y], 4, l2=1.0)
        torch.testing.assert_close(solution.weight[[0, 2, 3, 5]], present.weight, atol=1e-4, rtol=0)
    weight = (y != 2).double()
    assert 2 not in logistic.fit(X, y, 6, l2=1.0, sample_weight=weight).logits(X).argmax(1)


def test_a_limit_of_iterations_is_stated():
    X, y = blobs()
    solution = logistic.fit(X, y, 4, l2=1e-4, max_iter=2)
    assert (solution.status, solution.converged, solution.iterations) == ("iterations", False, 2)
    assert solution.gap > 1e-7 * solution.objective


def test_an_impossible_tolerance_ends_stalled_not_forever():
    X, y = blobs()
    solution = logistic.fit(X, y, 4, l2=1.0, tol=0.0)
    assert solution.status == "stalled"
    assert solution.gap < 1e-12 * solution.objective


@pytest.mark.parametrize("kind", ["float16", "read-only", "integers", "list"])
def test_any_kind_of_matrix_is_read(kind):
    X, y = blobs(n=40, dim=3)
    array = X.numpy().round().astype(np.float64)
    given = {
        "float16": array.astype(np.float16),
        "read-only": array.copy(),
        "integers": array.astype(np.int64),
        "list": array.tolist(),
    }[kind]
    if kind == "read-only":
        given.flags.writeable = False
    solution = logistic.fit(given, y.tolist(), 4, l2=1.0, tol=1e-12)
    expected = logistic.fit(array, y, 4, l2=1.0, tol=1e-12)
    torch.testing.assert_close(solution.weight.double(), expected.weight, atol=1e-5, rtol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", [(50, 4), (10, 40)])
def test_a_bad_number_is_named_by_its_row(value, shape):
    X = torch.randn(shape)
    X[7, 2] = value
    with pytest.raises(UserError, match=r"row 7, column 2"):
        logistic.fit(X, torch.arange(len(X)) % 2, 2, l2=1.0)


def test_a_bad_number_is_named_even_when_the_basis_came_from_good_rows():
    X, y = blobs(n=40)
    basis = logistic.Basis(X)
    bad = X[:20].clone()
    bad[11, 3] = float("nan")
    with pytest.raises(UserError, match="row 11"):
        logistic.fit(bad, y[:20], 4, l2=1.0, basis=basis)


X, Y = torch.randn(6, 2), [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0, 1, 3, 0, 1, 2]}, "label 3 in row 2 is outside 0..2"),
        ({"y": [0, 1, -1, 0, 1, 2]}, "label -1 in row 2"),
        ({"y": [0.0, 1, 2, 0, 1, 2]}, "integers"),
        ({"y": [0, 1]}, "6 rows of features need 6 labels"),
        ({"y": [1] * 6}, "1 class has rows"),
        ({"l2": 0.0}, "l2 must be positive"),
        ({"l2": float("nan")}, "l2 must be positive"),
        ({"X": torch.randn(6)}, "must be a matrix"),
        ({"X": torch.randn(0, 2), "y": []}, "must be a matrix"),
        ({"X": 1e300 * torch.randn(6, 2).double()}, "too large"),
        ({"sample_weight": [1.0, -1, 1, 1, 1, 1]}, "not negative"),
        ({"sample_weight": [1.0]}, "6 sample weights"),
        ({"adjustment": ClassAdjustment(scale=torch.tensor([1.0, 0.0, 1.0]))}, "adjustment.scale must be"),
        ({"adjustment": ClassAdjustment(weight=torch.ones(2))}, "adjustment.weight has shape"),
        ({"basis": logistic.Basis(torch.randn(9, 3))}, "3 dimensions"),
    ],
)
def test_what_cannot_be_solved_is_refused_in_one_line(change, message):
    given = {"X": X, "y": Y, "l2": 1.0} | change
    with pytest.raises(UserError, match=message) as error:
        logistic.fit(given.pop("X"), given.pop("y"), 3, **given)
    assert "\n" not in str(error.value)
