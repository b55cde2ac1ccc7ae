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


@pytest.mark.parametrize("kind", ["linear", "cosine", "adapter", "gaussian", "adjusted"])
@pytest.mark.parametrize("unit_norm", [False, True])
def test_a_layer_scores_unscaled_features_as_the_fitted_head_does(kind, unit_norm):
    draw = torch.Generator().manual_seed(0)
    weight, centres = (torch.randn(3, 6, generator=draw).double() for _ in range(2))
    tensors = {
        "linear": {"weight": weight, "bias": torch.tensor([0.5, -1.0, 2.0]).double()},
        "cosine": {"weight": weight, "whitening.mean": centres[0], "whitening.matrix": torch.eye(6) + 0.1},
        "gaussian": {"centres": centres, "log_variance": 0.1 * weight},
    }
    tensors["adapter"] = {
        **tensors["linear"],
        "down.weight": torch.randn(2, 6, generator=draw).double(),
        "down.bias": torch.ones(2).double(),
        "up.weight": torch.randn(6, 2, generator=draw).double(),
        "up.bias": torch.ones(6).double(),
    }
    tensors["adjusted"] = {
        **tensors["cosine"],
        "factor": torch.tensor([1.0, 2.0, 0.5]),
        "shift": weight[:, 0],
    }
    settings = {"adapter": {"head": "linear"}, "cosine": {"scale": 9.0}}
    settings["adjusted"] = {"scale": 9.0, "of": "cosine"}
    spread = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.1, 1.5])
    head = fitted.FittedHead(
        kind, tensors[kind], settings.get(kind, {}), Scaling(torch.arange(6.0), spread, unit_norm)
    )
    features = 5 * torch.randn(7, 6, generator=draw)
    torch.testing.assert_close(
        export.HeadLayer(head)(features), head.scores(features).float(), atol=1e-4, rtol=1e-4
    )
    assert (export.as_linear(head) is not None) == (kind == "linear" and not unit_norm)
