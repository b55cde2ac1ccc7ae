"""Methods that contrast views of images: each trains its classifier, resumes to the same bits, and is refused
in one line where it cannot work."""

import math
from functools import partial

import pytest
import torch

from probe import heads, methods, recipe
from probe.errors import UserError
from probe.losses.functional import gml_contrast
from probe.methods import spelling
from probe.recipe import MethodConfig
from probe.recipe.train_settings import TrainConfig
from probe.train.build import check, check_recipe
from tests.support.training_world import (
    D,
    K,
    Pictures,
    feature_training,
    image_training,
    killed,
    same_bits,
    tiny_convnet,
    whole_state,
)

SMALL = {"hidden": 16, "embedding": 8}
QUEUE = {**SMALL, "queue": 40}
EACH = {
    "supcon": ("supcon", SMALL, "linear"),
    "supcon-two": ("supcon", {**SMALL, "stage": "two", "head_epochs": 0.4}, "linear"),
    "bcl": ("bcl", SMALL, "cosine"),
    "dbm-bcl": ("dbm-bcl", SMALL, "cosine"),
    "paco": ("paco", QUEUE, "linear"),
    "gpaco": ("gpaco", QUEUE, "linear"),
    "gml": ("gml", QUEUE, "cosine"),
    "dbm-gml": ("dbm-gml", QUEUE, "cosine"),
}


def training(name, folder=None, **options):
    method, params, kind = EACH[name]
    settings = {"epochs": 10, "lr": 0.03, "optimizer": "adamw", "ema": 0.5, **options}
    return image_training(tiny_convnet(), method, params, folder=folder, kind=kind, **settings)


def accuracy(trained):
    guess = trained.evaluate(trained.task.train).argmax(1)
    return float((guess == torch.as_tensor(Pictures().labels)).float().mean())


@pytest.mark.parametrize("name", EACH)
def test_it_trains_and_resumes_to_the_same_bits(tmp_path, name):
    whole = training(name)
    losses = [row["loss"] for row in whole.run().epochs]
    assert losses[-1] < losses[0]
    assert accuracy(whole) >= 0.9  # chance is 0.25
    stopped = training(name, tmp_path / "run", checkpoint_minutes=1e-9)
    killed(stopped, 8)
    resumed = training(name, tmp_path / "run")
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))


def test_the_second_stage_of_supcon_changes_only_the_classifier():
    trained = training("supcon-two", epochs=3)
    seen = []
    restart = trained.restart_head
    trained.restart_head = lambda: (seen.append(trained.state.weights()), restart())
    trained.run()
    (before,), after = seen, trained.network.snapshot()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert before["head.weight"].abs().max() == 0  # the first stage left it alone


@pytest.mark.parametrize("name", EACH)
def test_on_cached_features_an_adapter_and_the_head_are_trained(name):
    method, params, kind = EACH[name]
    head = heads.make("adapter", D, K, head=kind)
    trained = feature_training(method, params, head=head, epochs=6, lr=0.05)
    losses = [row["loss"] for row in trained.run().epochs]
    assert losses[-1] < losses[0]
    guess = trained.evaluate(trained.task.train).argmax(1)
    assert float((guess == torch.as_tensor(trained.labels)).float().mean()) > 0.6  # chance is 0.2


def test_gml_trains_the_network_with_the_temperature_that_the_second_contrast_learns():
    built = training("gml").method
    rows = torch.Generator().manual_seed(1)
    queries, keys = (torch.randn(12, 8, generator=rows).requires_grad_() for _ in range(2))
    targets = torch.arange(12) % 4
    with torch.no_grad():
        built.log_temperature.fill_(math.log(0.3))  # not where it started
    wanted = built.log_temperature.detach().exp().requires_grad_()
    contrast = partial(gml_contrast, key_labels=targets, class_counts=built.counts)
    first = contrast(queries, targets, keys, temperature=wanted.detach())
    second = contrast(queries, targets, keys, temperature=wanted, own=torch.arange(12))
    value = built._contrasts(queries, keys, targets)
    assert value.item() == pytest.approx((first + second).item(), rel=1e-6)
    got = torch.autograd.grad(value, (queries, keys, built.log_temperature))
    expected = (*torch.autograd.grad(first, (queries, keys)), *torch.autograd.grad(second, wanted))
    for one, other, factor in zip(got, expected, (1, 1, 0.3), strict=True):
        torch.testing.assert_close(one, factor * other)


def test_many_keys_of_a_class_do_not_outweigh_its_label():
    def weight(classes, keys, **params):
        counts = torch.full((classes,), 100)
        built = methods.make("paco", params, num_classes=classes, class_counts=counts, dim=D)
        return built.key_weight(keys, classes)

    assert weight(1000, 8192 + 2 * 512) == 0.05  # as published
    assert weight(10, 1536) * 1536 / 10 == pytest.approx(0.5)  # of a label's weight
    assert weight(10, 1536, beta=2.0) * 1536 / 10 == pytest.approx(1.0)
    assert weight(10, 1536, alpha=0.2) == 0.2


def test_what_cannot_work_is_one_line():
    mixed = TrainConfig(augment={"mix": "mixup"})
    for name in EACH.values():
        with pytest.raises(UserError, match=r"contrasts images by their labels.*use mix=none"):
            check(MethodConfig(name=name[0]), mixed)
    frozen = recipe.build({"method": "bcl", "solver": "sgd"})
    with pytest.raises(UserError, match=r"bcl has no effect on frozen features.*train.head=adapter"):
        check_recipe(frozen)
    with pytest.raises(UserError, match="cached features have none"):
        feature_training("gml", {"teacher": "runs/somewhere"})


def test_a_method_with_a_loss_of_its_own_is_written_without_it():
    for name, inner in (("bcl", "bs"), ("dbm-bcl", "dbm"), ("supcon", "erm"), ("paco", "bs")):
        made = methods.make(name, {}, num_classes=3, class_counts=[3, 2, 1])
        assert made.loss.name == inner
        assert spelling.spelled({"name": name}) == name
    assert spelling.spelled({"name": "bcl", "loss": "ldam"}) == "bcl(ldam)"
    assert methods.make("dbm-gml", {}, num_classes=3, class_counts=[3, 2, 1]).loss.scale == 30
