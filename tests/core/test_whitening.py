"""Whitened features: what a cosine head measures angles of."""

import torch
from torch.nn import functional as F

from probe.core.whitening import whitening


def features(n=300, d=7, shift=50.0):
    g = torch.Generator().manual_seed(0)
    mixed = torch.randn(n, d, generator=g) @ torch.randn(d, d, generator=g)
    return mixed * torch.logspace(-1, 1, d) + shift


def cosines(X):
    unit = F.normalize(X.double(), dim=1)
    return unit @ unit.T


def test_the_matrix_is_a_root_of_the_shrunk_inverse_covariance():
    X, shrink = features(), 0.4
    found = whitening(X, shrink)
    covariance = torch.cov(X.double().T, correction=0)
    variance = covariance.trace() / len(covariance)
    shrunk = (1 - shrink) * covariance / variance + shrink * torch.eye(7)
    A = found.matrix.double()
    torch.testing.assert_close(A @ shrunk @ A.T, torch.eye(7, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.mean, X.mean(0))
    torch.testing.assert_close(found(X).mean(0), torch.zeros(7), atol=1e-3, rtol=0)


def test_angles_notice_neither_place_nor_size_nor_rotation_of_the_features():
    X = features(shift=0.0)
    turn = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(1))).Q
    same = cosines(whitening(X)(X))
    for other in (X + 5, 100 * X, X @ turn):
        torch.testing.assert_close(cosines(whitening(other)(other)), same, atol=1e-3, rtol=0)


def test_a_common_direction_hides_angles_and_whitening_shows_them():
    X = features()
    assert cosines(X).mean() > 0.9
    assert abs(cosines(whitening(X)(X)).mean()) < 0.05


def test_shrunk_all_the_way_it_only_centres_and_equal_features_stay_finite():
    X = features()
    torch.testing.assert_close(whitening(X, 1.0)(X), X - X.mean(0))
    equal = torch.full((5, 3), 2.0)
    assert torch.equal(whitening(equal)(equal), torch.zeros(5, 3))


def test_more_dimensions_than_rows_are_fine():
    X = features(n=12, d=40)
    assert whitening(X)(X).isfinite().all()
