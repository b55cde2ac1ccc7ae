"""Ridge and k-NN agree with scikit-learn and with the closed form."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier

from probe.core.adjustment import ClassAdjustment
from probe.errors import UserError
from probe.solve import knn, ridge

rng = np.random.default_rng(0)


@pytest.mark.parametrize(("n", "dim"), [(60, 7), (20, 35)], ids=["N > D", "D > N"])
def test_every_strength_equals_scikit_learns_ridge(n, dim):
    X, y = rng.normal(size=(n, dim)) + 3, rng.integers(4, size=n)
    weight = rng.uniform(0.1, 2, n)
    for head in ridge.Ridge(X, y, 4, sample_weight=weight).path([1e-3, 1.0, 50.0]):
        theirs = Ridge(alpha=head.l2).fit(X, np.eye(4)[y], sample_weight=weight)
        np.testing.assert_allclose(head.weight, theirs.coef_, atol=1e-8)
        np.testing.assert_allclose(head.logits(X), theirs.predict(X), atol=1e-8)


def test_class_weights_equal_sample_weights():
    X, y = torch.randn(30, 5, dtype=torch.float64), torch.arange(30) % 3
    by_class = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    [one] = ridge.Ridge(X, y, 3, adjustment=ClassAdjustment(weight=by_class)).path([1.0])
    [other] = ridge.Ridge(X, y, 3, sample_weight=by_class[y]).path([1.0])
    torch.testing.assert_close(one.weight, other.weight)


def test_non_finite_features_are_named():
    X = torch.zeros(5, 2)
    X[3, 1] = float("nan")
    with pytest.raises(UserError, match="row 3"):
        ridge.Ridge(X, [0, 1, 0, 1, 0], 2)


def test_plain_votes_agree_with_scikit_learn_where_there_is_no_tie():
    X, y, Q = rng.normal(size=(80, 6)), rng.integers(3, size=80), rng.normal(size=(40, 6))
    votes = knn.votes(*map(torch.from_numpy, (X, y, Q)), num_classes=3, k=7, weighted=False)
    unit = lambda A: A / np.linalg.norm(A, axis=1, keepdims=True)  # noqa: E731
    theirs = KNeighborsClassifier(7).fit(unit(X), y).predict_proba(unit(Q))
    whole = (7 * theirs).round()
    np.testing.assert_allclose(votes, whole, atol=0.3)
    clear = np.sort(whole, axis=1)[:, -1] > np.sort(whole, axis=1)[:, -2]
    assert (votes.numpy().argmax(1) == whole.argmax(1))[clear].all()


def test_weighted_votes_by_hand():
    bank, labels = torch.tensor([[1.0, 0], [0, 1.0], [1.0, 1.0]]), torch.tensor([0, 1, 2])
    votes = knn.votes(bank, labels, torch.tensor([[1.0, 0.0]]), num_classes=3, k=2)
    half = np.exp((np.sqrt(0.5) - 1) / 0.07)
    np.testing.assert_allclose(votes[0], [1, 0, half], rtol=1e-5)


def test_a_tie_goes_to_the_nearer_class_and_blocks_change_nothing(monkeypatch):
    bank, labels = torch.tensor([[1.0, 0.1], [1.0, 0.5]]), torch.tensor([1, 0])
    query = torch.tensor([[1.0, 0.0]]).repeat(5, 1)
    plain = knn.votes(bank, labels, query, num_classes=2, k=2, weighted=False)
    assert (plain.argmax(1) == 1).all()
    monkeypatch.setattr(knn, "BLOCK_BYTES", 1)
    torch.testing.assert_close(knn.votes(bank, labels, query, num_classes=2, k=2, weighted=False), plain)


def test_k_larger_than_the_bank_is_the_whole_bank_and_zero_is_refused():
    bank, labels = torch.eye(3), torch.arange(3)
    assert (knn.votes(bank, labels, bank, num_classes=3, k=50) > 0).all()
    with pytest.raises(UserError, match="k = 0"):
        knn.votes(bank, labels, bank, num_classes=3, k=0)
