"""Deferred re-weighting is plain before its epoch and class-balanced from it on."""

import numpy as np
import pytest
import torch

from probe.errors import UserError
from probe.train.inputs.batch import Batch
from tests.support.training_world import D, K, feature_training, method, weights

COUNTS = np.repeat(np.arange(K), [100, 40, 20, 10, 5])


def value(name, epoch, **params):
    built = method(name, COUNTS, **params)
    built.start_epoch(epoch, 200)
    torch.manual_seed(0)
    training = feature_training()
    batch = Batch((torch.randn(32, D),), torch.randint(K, (32,)), torch.arange(32))
    training.network.head.weight.data.normal_()
    return float(built.objective(training.network, batch).detach())


def test_the_weights_begin_at_the_epoch_of_the_paper():
    plain, balanced = value("erm", 0), value("cb", 0)
    assert abs(plain - balanced) > 1e-3
    assert value("drw", 159) == pytest.approx(plain, rel=1e-6)
    assert value("drw", 160) == pytest.approx(balanced, rel=1e-6)
    assert value("drw", 400) == pytest.approx(balanced, rel=1e-6)


def test_it_works_around_other_losses_of_samples_and_refuses_the_rest():
    focal = value("focal", 0)
    assert value("drw", 0, loss="focal") == pytest.approx(focal, rel=1e-6)
    assert value("drw", 199, loss="focal") != pytest.approx(focal, rel=1e-3)
    with pytest.raises(UserError, match="dro has no mean over samples"):
        method("drw", COUNTS, loss="dro")


@pytest.mark.parametrize("loss", [{"name": "elm", "alpha": "prior", "lam": 0.3}, {"name": "mr2", "lam": 0.3}])
def test_a_term_beside_the_samples_losses_is_kept_and_not_weighted(loss):
    early, late = value("drw", 0, loss=loss), value("drw", 199, loss=loss)
    bare = {**loss, "lam": 0.0}
    term = early - value("drw", 0, loss=bare)
    assert term > 0.01
    assert late - value("drw", 199, loss=bare) == pytest.approx(term, rel=1e-4)
    assert abs(late - early) > 1e-3


def test_training_with_it_differs_from_plain_only_after_the_switch():
    plain, early, late = (
        feature_training(name, params, epochs=2, lr=1.0)
        for name, params in (("erm", {}), ("drw", {"after": 0.0}), ("drw", {"after": 1.0}))
    )
    for training in (plain, early, late):
        training.run()
    assert torch.allclose(weights(plain)["head.weight"], weights(late)["head.weight"], atol=1e-6)
    assert not torch.allclose(weights(plain)["head.weight"], weights(early)["head.weight"], atol=1e-4)
