"""An exported head is the same function of the features as the trained module."""

import pytest
import torch

from probe import heads
from probe.core.scaling import Scaling
from probe.core.whitening import whitening
from probe.heads import export, fitted

DIM, K = 8, 5
G = torch.Generator().manual_seed(0)
X = 3 * torch.randn(60, DIM, generator=G) + 20
CONDITIONING = Scaling(X.mean(0), torch.full((DIM,), 2.5))


def moved(kind, **params):
    """A head whose weights are anything but those it starts with."""
    head = heads.make(kind, DIM, K, **params)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=G))
    return head


@pytest.mark.parametrize("kind", ["cosine", "etf"])
def test_a_whitened_head_is_exported_and_saved_with_its_whitening(kind, tmp_path):
    head = moved(kind)
    raw = head(X)
    head.whiten(whitening(X))
    assert not torch.allclose(head(X), raw)
    found = export.fitted(head)
    torch.testing.assert_close(found.scores(X), head(X))
    fitted.save(found, tmp_path, {})
    assert torch.equal(fitted.load(tmp_path)[0].scores(X), found.scores(X))


@pytest.mark.parametrize(
    ("kind", "params"), [("linear", {}), ("adapter", {}), ("adapter", {"head": "cosine"})]
)
def test_a_head_for_conditioned_features_becomes_the_same_function_of_raw_ones(kind, params):
    head = moved(kind, **params)
    if params:
        head.classifier.whiten(whitening(CONDITIONING(X)))
    found = export.unconditioned(export.fitted(head), CONDITIONING)
    torch.testing.assert_close(found.scores(X), head(CONDITIONING(X)), rtol=1e-3, atol=1e-3)


def test_class_means_start_a_whitened_head_as_the_nearest_angle():
    by, head = whitening(X), heads.make("cosine", DIM, K)
    head.whiten(by)
    head.start_from_means(X[:K])
    assert head.cosines(X[:K]).argmax(1).tolist() == list(range(K))
    torch.testing.assert_close(head.cosines(X[:K]).diagonal(), torch.ones(K))
