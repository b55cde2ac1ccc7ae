"""A method may build networks, ask for named views, keep queues and memories, and follow the weights: all of
it is trained, saved and resumed like the network."""

import numpy as np
import pytest
import torch
from torch import nn

from probe.errors import UserError
from probe.methods.memories import ClassQueue, Queue, class_places
from probe.recipe.train_settings import AugmentConfig, TrainConfig
from probe.train.inputs.augment import mixer
from probe.train.inputs.batch import Batch
from tests.support.seam_method import everything
from tests.support.training_world import (
    K,
    Pictures,
    feature_training,
    image_loader,
    image_training,
    killed,
    same_bits,
    tiny_resnet,
    tiny_vit,
    whole_state,
    wobbly_encoder,
)


@pytest.mark.parametrize("step", [1, 17])
def test_networks_queues_and_memories_resume_to_the_same_bits(tmp_path, step):
    def features(folder):
        return feature_training(
            method=everything(K),
            folder=folder,
            encoder=wobbly_encoder(),
            optimizer="adamw",
            ema=0.9,
            epochs=2,
            checkpoint_minutes=1e-9,
        )

    whole = features(None)
    whole.run()
    killed(features(tmp_path), step)
    resumed = features(tmp_path)
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))
    assert int(resumed.method.queue.pushed) == 2 * 203
    assert bool((resumed.method.memory > 0).all())


def test_what_a_method_builds_is_trained_and_its_copy_follows_without_gradient():
    training = feature_training(method=everything(K), encoder=wobbly_encoder(), epochs=1)
    start = whole_state(training)
    training.run()
    end = whole_state(training)
    assert not torch.equal(start["method.projection.0.weight"], end["method.projection.0.weight"])
    trained = {id(p) for p in training.engine.parameters}
    assert not any(id(p) in trained for p in training.method.copy.parameters())
    followed, network = end["method.copy.network.encoder.0.weight"], end["encoder.0.weight"]
    assert (
        0 < float((followed - network).abs().max()) < float((start["encoder.0.weight"] - network).abs().max())
    )


def test_its_weights_are_a_function_of_the_seed():
    first, again, other = (
        whole_state(feature_training(method=everything(K), seed=seed)) for seed in (0, 0, 1)
    )
    assert same_bits(first, again)
    assert not torch.equal(first["method.projection.0.weight"], other["method.projection.0.weight"])


def test_frozen_batch_norm_is_frozen_in_copies_and_learns_in_new_networks(tmp_path):
    training = image_training(tiny_resnet(tmp_path), method=everything(4), epochs=1, batch_norm="frozen")
    start = whole_state(training)
    training.run()
    end = whole_state(training)
    moved = {name for name in end if "running_mean" in name and not torch.equal(start[name], end[name])}
    assert moved == {"method.projection.1.running_mean", "method.copy.projection.1.running_mean"}


def test_views_are_drawn_by_name(tmp_path):
    backbone = tiny_vit(tmp_path)
    settings = TrainConfig(augment={"crop": "none", "policy": "randaugment", "erase": "cutout"})
    loader = image_loader(Pictures(8), backbone, settings)
    plain = next(loader.eval_batches([np.arange(8)])).inputs
    own, weak, contrast = next(loader.train_batches(0, [np.arange(8)], ("own", "weak", "contrast"))).views
    assert torch.equal(weak, plain)
    assert not torch.equal(own, plain)
    assert not torch.equal(contrast, plain)
    assert torch.equal(own, next(loader.train_batches(0, [np.arange(8)], ("own",))).inputs)
    with pytest.raises(UserError, match=r'there is no view "stron".*strong'):
        loader.train_batches(0, [np.arange(8)], ("stron",))


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_mixing_mixes_every_view_with_the_same_partner(mix):
    torch.manual_seed(0)
    views = (torch.rand(6, 3, 16, 16), torch.rand(6, 3, 16, 16))
    batch = mixer(AugmentConfig(mix=mix), 4)(Batch(views, torch.arange(6) % 4, torch.arange(6)))
    assert len(batch.views) == 2
    torch.manual_seed(1)
    alone = mixer(AugmentConfig(mix=mix), 4)(Batch(views[:1], torch.arange(6) % 4, torch.arange(6)))
    torch.manual_seed(1)
    both = mixer(AugmentConfig(mix=mix), 4)(Batch(views, torch.arange(6) % 4, torch.arange(6)))
    assert torch.equal(alone.inputs, both.inputs)
    assert torch.equal(alone.targets, both.targets)
    assert not torch.equal(both.views[1], views[1])


def test_a_method_that_cannot_do_with_one_view_is_refused_on_features():
    method = everything(K)
    method.one_view = False
    with pytest.raises(UserError, match=r"several views.*use --finetune"):
        feature_training(method=method)


def test_a_queue_holds_the_last_keys_in_a_defined_order():
    queue = Queue(5, 1)
    for start, n in ((0, 3), (3, 4), (7, 1)):
        numbers = torch.arange(start, start + n)
        queue.push(numbers.float().unsqueeze(1), numbers % 2)
    keys, labels = queue.held()
    assert sorted(keys.flatten().tolist()) == [3, 4, 5, 6, 7]
    assert torch.equal(keys.flatten().long() % 2, labels)
    queue.push(torch.arange(20.0).unsqueeze(1), torch.zeros(20, dtype=torch.int64))
    assert sorted(queue.held()[0].flatten().tolist()) == [15, 16, 17, 18, 19]


def test_a_class_queue_holds_the_last_keys_of_every_class():
    rng = np.random.default_rng(0)
    queue, seen = ClassQueue(torch.tensor([3, 1, 2]), 1), {0: [], 1: [], 2: []}
    number = 0
    for n in (1, 9, 2, 4):
        labels = rng.integers(0, 2, n)  # class 2 never comes
        keys = np.arange(number, number + n)
        number += n
        for key, label in zip(keys.tolist(), labels.tolist(), strict=True):
            seen[label].append(key)
        queue.push(torch.tensor(keys).float().unsqueeze(1), torch.tensor(labels))
        keys_, labels_ = queue.held()
        for k, most in enumerate((3, 1, 2)):
            assert sorted(keys_[labels_ == k].flatten().tolist()) == seen[k][-most:]


def test_places_of_classes_add_up_and_follow_their_frequency():
    places = class_places(torch.tensor([100, 50, 25, 1]), 40, 2)
    assert int(places.sum()) == 40
    assert int(places.min()) >= 2
    assert places.tolist() == sorted(places.tolist(), reverse=True)
    with pytest.raises(UserError, match="a queue of 7 is too small for 2 keys of 4 classes; use 8"):
        class_places(torch.ones(4), 7, 2)


def test_a_repeated_step_gets_its_memory_back():
    training = feature_training(method=everything(K), encoder=nn.Identity())
    step = next(training.steps(training.task.train, training.make_sampler(), 0))
    start = whole_state(training)
    with step.frozen_statistics():
        step.gradients()
        assert int(training.method.queue.pushed) == 16
    assert same_bits(start, whole_state(training))
