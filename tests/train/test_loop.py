"""The loop does what a hand-written one would, step by step, and says so when it cannot."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probe import heads
from probe.errors import UserError
from probe.train.schedule import factor
from tests.support.training_world import (
    D,
    K,
    N,
    blobs,
    distance,
    feature_training,
    image_training,
    same_bits,
    tiny_resnet,
    tiny_vit,
    weights,
    wobbly_encoder,
)


def by_hand(training, *, epochs, lr, momentum=0.9, decay=5e-4, warmup=0):
    """Plain torch: SGD on a linear layer, batches in the training's own order."""
    X, y = blobs()
    y = torch.as_tensor(y)
    layer = nn.Linear(D, K)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    groups = [{"params": [layer.weight], "weight_decay": decay}, {"params": [layer.bias], "weight_decay": 0}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=True)
    sampler, losses, step = training.make_sampler(), [], 0
    for epoch in range(epochs):
        for batch in sampler.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = lr * factor(step, epochs * sampler.steps, warmup)
            optimizer.zero_grad()
            loss = F.cross_entropy(layer(X[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    return layer, losses


def test_training_equals_a_hand_written_torch_loop(tmp_path):
    training = feature_training(folder=tmp_path, epochs=3, warmup_epochs=1)
    training.run()
    layer, losses = by_hand(training, epochs=3, lr=0.1, warmup=13)
    assert torch.allclose(training.network.head.weight, layer.weight, atol=1e-6)
    assert torch.allclose(training.network.head.bias, layer.bias, atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "lr" in line]
    assert [line["loss"] for line in steps] == pytest.approx(losses)
    assert [line["step"] for line in steps] == list(range(1, 40))
    assert sum(line["samples"] for line in steps) == 3 * N


@pytest.mark.parametrize("micro_batch", [5, 3, 16, "auto"])
def test_accumulation_equals_the_big_batch_also_in_the_short_last_batch(micro_batch):
    whole, parts = feature_training(), feature_training(micro_batch=micro_batch)
    whole.run()
    parts.run()
    assert distance(weights(whole), weights(parts)) < 1e-6


def test_fine_tuning_one_step_equals_a_hand_written_step(tmp_path):
    backbone = tiny_vit(tmp_path)
    training = image_training(backbone, "mr2-paper", {"lam": 0.0}, epochs=1, batch_size=40, clip=0.5)
    reference, head = tiny_vit(tmp_path).requires_grad_(True).train(), nn.Linear(backbone.dim, 4)
    head.load_state_dict(training.network.head.state_dict())
    order = training.make_sampler().epoch(0)[0]
    images = torch.cat([b.inputs for b in training.task.train.train_batches(0, [order], ("own",))])
    targets = torch.as_tensor(training.task.train.labels[order])

    from probe import losses

    h = reference(images)
    losses.make("mr2-paper", num_classes=4, lam=0.0)(head(h), targets, h).backward()
    parameters = [*reference.parameters(), *head.parameters()]
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    with torch.no_grad():
        for p in parameters:  # Nesterov's first step of momentum 0.9 is (1 + 0.9) g, g with decay
            decay = (
                5e-4
                if p.ndim > 1
                and p is not reference.encoder.pos_embed
                and p is not reference.encoder.cls_token
                else 0.0
            )
            p -= 0.01 * 1.9 * (p.grad + decay * p)
    training.run()
    assert distance(dict(training.network.encoder.state_dict()), reference.encoder.state_dict()) < 1e-6
    assert torch.allclose(training.network.head.weight, head.weight, atol=1e-7)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    def run(seed):
        training = feature_training(encoder=wobbly_encoder(), seed=seed, ema=0.9)
        training.run()
        return weights(training)

    assert same_bits(run(0), run(0))
    assert not same_bits(run(0), run(1))


def test_workers_do_not_change_a_bit(tmp_path):
    runs = []
    for workers in (0, 2):
        training = image_training(tiny_vit(tmp_path), epochs=1, workers=workers)
        training.run()
        runs.append(weights(training))
    assert same_bits(*runs)


def test_a_loss_that_is_no_number_stops_at_once_and_names_the_batch(tmp_path):
    training = feature_training(folder=tmp_path, lr=1.0)
    training.task.train.X[17, 3] = float("nan")
    with pytest.raises(
        UserError, match=r"the loss is nan at epoch 0, step \d+.*blob-.*smaller train.lr"
    ) as caught:
        training.run()
    assert "\n" not in str(caught.value)
    assert all(t.isfinite().all() for t in weights(training).values())
    assert not (tmp_path / "checkpoints").exists()


class Steep(nn.Module):
    """The identity, whose gradient is not finite for samples beyond a limit."""

    def __init__(self, limit=-np.inf):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        beyond = x.detach().amax(1, keepdim=True) > self.limit
        y = x + 0
        y.register_hook(lambda gradient: gradient.masked_fill(beyond, float("nan")))
        return y


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("name", ["erm", "sam", "jtt"])
def test_a_gradient_that_is_no_number_never_reaches_the_weights(clip, name):
    encoder = nn.Sequential(nn.Linear(D, D), Steep())
    training = feature_training(name, encoder=encoder, head=heads.make("cosine", D, K), clip=clip)
    with pytest.raises(
        UserError, match=r"gradient's norm is nan at epoch 0, step 0.*before this step was made"
    ):
        training.run()
    assert same_bits(weights(training), training.state.start)


def test_the_micro_batch_that_spoils_a_gradient_is_the_one_that_is_named():
    training = feature_training(encoder=nn.Sequential(nn.Linear(D, D), Steep(limit=1e3)), micro_batch=4)
    spoilt = int(training.make_sampler().epoch(0)[2][5])  # the second part of the third step
    training.network.encoder[0].weight.data.copy_(torch.eye(D))
    training.task.train.X[spoilt] = 1e4
    with pytest.raises(UserError, match="gradient's norm is nan at epoch 0, step 2") as caught:
        training.run()
    named = str(caught.value).partition("the batch holds ")[2].partition(". ")[0].split(", ")
    assert len(named) == 4
    assert f"blob-{spoilt}" in named


def test_weights_that_a_step_ruined_are_told_as_that_and_with_its_own_samples():
    training = feature_training(lr=1e39, momentum=0.0)
    first = {f"blob-{i}" for i in training.make_sampler().epoch(0)[0]}
    with pytest.raises(UserError, match=r"head.\w+ is no longer finite after epoch 0, step 0") as caught:
        training.run()
    named = str(caught.value).partition("the batch holds ")[2].partition(", ...")[0].split(", ")
    assert set(named) <= first
    assert "before this step was made" not in str(caught.value)


def test_weights_that_ran_away_are_not_trained_weights_though_they_are_finite(tmp_path):
    training = feature_training(folder=tmp_path, epochs=1, lr=1e12)
    with pytest.raises(UserError, match=r"head.\w+ is more than 1e\+06 times what it started from"):
        training.run()
    assert not list(tmp_path.glob("checkpoints/*"))


def test_fp16_gives_up_once_its_scale_is_not_what_overflows():
    training = feature_training(
        encoder=nn.Sequential(nn.Linear(D, D), Steep()), head=heads.make("cosine", D, K)
    )
    skipped = []

    class Scaler:
        scale_now = 4.0

        def scale(self, loss):
            return loss

        def get_scale(self):
            return self.scale_now

    def skip():
        skipped.append(training.engine.scaler.scale_now)
        training.engine.scaler.scale_now /= 2

    training.engine.scaler, training.engine._step = Scaler(), skip
    with pytest.raises(UserError, match="gradient's norm is nan at epoch 0, step 3"):
        training.run()
    assert skipped == [4.0, 2.0, 1.0]


def test_scores_that_are_no_numbers_choose_nothing():
    training = feature_training(held=True, keep="best")
    training.task.validation.X[3] = float("inf")
    with pytest.raises(UserError, match=r"scores of 1 of 60 samples are not finite.* held-3"):
        training.run()


def test_the_average_of_weights_is_the_textbook_one_and_is_what_is_kept():
    plain, averaged = feature_training(epochs=1), feature_training(epochs=1, ema=0.8)
    seen = []
    step = type(plain.method).step

    def noting(one):
        loss = step(plain.method, one)
        seen.append(plain.network.head.weight.detach().clone())
        return loss

    plain.method.step = noting
    plain.run()
    averaged.run()
    average = torch.zeros(K, D)
    for number, weight in enumerate(seen):
        memory = min(0.8, (1 + number) / (10 + number))
        average = memory * average + (1 - memory) * weight
    assert torch.allclose(averaged.network.head.weight, average, atol=1e-6)
    assert torch.equal(plain.network.head.weight, seen[-1])


def test_the_best_epoch_is_kept_and_its_weights_with_it():
    training = feature_training(epochs=6, held=True, keep="best", lr=8.0, encoder=wobbly_encoder())
    progress = training.run()
    best = max(row["validation"] for row in progress.epochs)
    assert progress.best["validation"] == best
    guess = training.evaluate(training.task.validation).argmax(1).numpy()
    assert np.mean(guess == training.task.validation.labels) == best


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_and_keeps_full_weights(tmp_path, precision):
    training = image_training(tiny_vit(tmp_path), "mr2", epochs=1, precision=precision)
    before = weights(training)
    progress = training.run()
    assert all(t.dtype == torch.float32 for t in weights(training).values())
    assert np.isfinite(progress.epochs[-1]["loss"])
    assert distance(before, weights(training)) > 0


def test_frozen_batch_norm_stays_as_it_was_loaded(tmp_path):
    def norms(state):
        return {k: v for k, v in state.items() if "bn" in k or "norm" in k}

    for frozen, moved in (("frozen", False), ("train", True)):
        training = image_training(tiny_resnet(tmp_path), epochs=1, batch_norm=frozen)
        before = norms(weights(training))
        assert before
        training.run()
        assert same_bits(before, norms(weights(training))) is not moved


def test_switches_change_memory_and_speed_but_not_the_result(tmp_path):
    from probe.train.model import encoder_options

    def run(change=None, **settings):
        backbone = tiny_vit(tmp_path)
        if change:
            change(backbone.encoder)
        training = image_training(backbone, epochs=1, **settings)
        training.run()
        return weights(training)

    plain = run()
    assert distance(plain, run(encoder_options.checkpoint_activations)) < 1e-6
    assert distance(plain, run(channels_last=True)) < 1e-5
    dropped = run(lambda encoder: encoder_options.drop_paths(encoder, 0.5))
    assert distance(plain, dropped) > 1e-4
    with pytest.raises(UserError, match="no residual branches"):
        encoder_options.drop_paths(nn.Linear(2, 2), 0.1)
    with pytest.raises(UserError, match="cannot recompute"):
        encoder_options.checkpoint_activations(nn.Linear(2, 2))


def test_a_tracker_that_is_not_installed_is_named():
    with pytest.raises(UserError, match="mlflow is not installed; pip install mlflow"):
        feature_training(trackers=("mlflow",))


@pytest.mark.slow
def test_a_compiled_encoder_trains_to_the_same_weights(tmp_path):
    runs = []
    for compiled in (False, True):
        training = image_training(tiny_vit(tmp_path), epochs=1, clip=1.0, compile=compiled)
        training.run()
        runs.append(weights(training))
    assert distance(*runs) < 1e-4


def test_all_networks_of_a_method_are_in_evaluation_mode_while_samples_are_scored():
    training, seen = feature_training("erm"), []
    training.objective.train_mode(training.settings)
    training.network.register_forward_hook(
        lambda *_: seen.append(any(module.training for module in training.objective.modules()))
    )
    training.evaluate(training.task.train)
    assert seen
    assert not any(seen)
    assert training.method.training  # and afterwards as it was
