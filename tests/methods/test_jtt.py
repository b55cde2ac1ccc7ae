"""JTT trains, counts its errors, and trains again from the start with the errors repeated."""

import numpy as np
import pytest
import torch

from probe.errors import UserError
from tests.support.training_world import blobs, distance, feature_training, weights


def test_the_second_stage_starts_again_and_sees_errors_as_often_as_asked():
    first = feature_training(epochs=2)
    first.run()
    wrong = first.evaluate(first.task.train).argmax(1).numpy() != blobs()[1]
    assert 0 < wrong.sum() < len(wrong) / 2

    training = feature_training("jtt", {"first_epochs": 2, "up": 3}, epochs=4)
    progress = training.run()
    assert np.array_equal(training.method.repeats(), np.where(wrong, 3, 1))
    assert [row["stage"] for row in progress.epochs] == [0, 0, 1, 1, 1, 1]
    shown = training.make_sampler().order(3)
    assert np.array_equal(np.bincount(shown), np.where(wrong, 3, 1))


def test_repeating_nothing_is_plain_training():
    whole = {"epochs": 10, "batch_size": 4000}  # one batch an epoch: the order of samples plays no part
    training = feature_training("jtt", {"first_epochs": 3, "up": 1}, **whole)
    plain = feature_training(**whole)
    training.run()
    plain.run()
    assert distance(weights(training), weights(plain)) < 1e-5


def test_its_optimum_is_that_of_weights_on_the_errors():
    training = feature_training(
        "jtt", {"first_epochs": 2, "up": 4}, epochs=400, lr=0.5, weight_decay=0.05, batch_size=4000
    )
    training.run()
    count = torch.as_tensor(training.method.repeats()).float()
    X, y = blobs()
    W = training.network.head.weight.detach().clone().requires_grad_(True)
    b = training.network.head.bias.detach().clone().requires_grad_(True)
    losses = torch.nn.functional.cross_entropy(X @ W.T + b, torch.as_tensor(y), reduction="none")
    ((count * losses).sum() / count.sum() + 0.025 * W.square().sum()).backward()
    assert float(W.grad.norm()) < 2e-3
    assert float(b.grad.norm()) < 2e-3


@pytest.mark.parametrize("spoil", [float("nan"), 1e20])
def test_a_first_stage_that_broke_picks_no_errors_and_nothing_starts_again(spoil):
    training = feature_training("jtt", {"first_epochs": 1}, epochs=1)
    end = training._end_epoch

    def broken():
        end()
        training.network.head.weight.data.fill_(spoil)

    training._end_epoch = broken
    with pytest.raises(UserError, match=r"head.weight is (no longer finite|more than 1e\+06 times)"):
        training.run()
    assert training.state.position.stage == 1
    assert len(training.method.count) == 0
    assert not training.network.head.weight.abs().max() < 1e19  # the evidence is still there
