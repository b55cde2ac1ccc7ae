"""Effective frequencies of a training: cross-fitted, or measured on held-out images after the warm-up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe import recipe
from probe.errors import UserError
from probe.evaluation.groups import class_mean
from probe.runs.run import run
from probe.train import frequency
from probe.train.signals import Stopped
from tests.support.training_world import K, blobs, feature_training, same_bits, tiny_vit, weights


def measuring(folder=None, **settings):
    params = {"frequency": [1.0] * K}
    training = feature_training("ef", params, folder=folder, held=True, epochs=4, warmup_epochs=2, **settings)
    training.method.loss.measures_frequency = True
    return training


def test_they_are_measured_once_on_held_out_images_when_the_warm_up_ends():
    training, seen = measuring(), []
    end = training._end_epoch

    def watched():
        scores = training.evaluate(training.task.validation).double().softmax(1).numpy()
        labels = blobs(60, seed=1)[1]
        own = class_mean(scores[np.arange(60), labels], labels, K)
        seen.append((training.method.loss.frequency.clone(), torch.tensor(own / own.sum())))
        end()

    training._end_epoch = watched
    training.run()
    (before, _), (measured, expected), *later = seen
    assert before.tolist() == pytest.approx([1 / K] * K)
    torch.testing.assert_close(measured, expected, atol=1e-6, rtol=0)
    assert all(torch.equal(frequencies, measured) for frequencies, _ in later)


@pytest.mark.parametrize("step", [10, 30])  # before and after they are measured
def test_a_stopped_training_goes_on_to_the_same_bits(step, tmp_path):
    whole = measuring()
    whole.run()
    stopped = measuring(tmp_path)
    make = stopped._step

    def until(*args):
        done = make(*args)
        if stopped.state.position.steps == step:
            stopped.stop.signal = 15
        return done

    stopped._step = until
    with pytest.raises(Stopped):
        stopped.run()
    resumed = measuring(tmp_path)
    resumed.run()
    assert same_bits(weights(resumed), weights(whole))
    assert torch.equal(resumed.method.loss.frequency, whole.method.loss.frequency)


def test_given_ones_are_kept():
    training = feature_training("ef", {"frequency": [0.9, 0.5, 0.4, 0.3, 0.2]}, held=True)
    before = training.method.loss.frequency.clone()
    training.run()
    assert torch.equal(training.method.loss.frequency, before)


def test_fine_tuning_finds_them_by_itself_and_from_scratch_needs_images_to_hold_out(colours, cache, tmp_path):
    tiny_vit(tmp_path / "vit")
    backbone = {"name": f"timm:{tmp_path / 'vit'}", "image_size": 32}
    train = {"epochs": 2, "batch_size": 16, "lr": 1e-3}
    base = {
        "backbone": backbone,
        "data": str(colours),
        "finetune": True,
        "train": train,
        "solver": {"l2": 1.0},
    }
    done = run(recipe.build({**base, "method": "drw(ef)"}), cache=cache, out=tmp_path)
    assert done.result["method"] == "drw(ef)-finetune"
    scratch = {**base, "backbone": "cifar-resnet20", "method": "ef", "solver": {}}
    with pytest.raises(UserError, match=r"use train\.keep=best, or give method\.frequency"):
        run(recipe.build(scratch), cache=cache, out=tmp_path)
    frequency.check(recipe.build({**scratch, "train": {**train, "keep": "best"}}))
