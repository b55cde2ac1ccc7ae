"""Methods that train a second network or more: LfF with its memory of samples, NCL with its experts."""

import pytest
import torch
from torch import nn

from probe.errors import UserError
from probe.losses import functional
from probe.methods.networks import twin
from tests.support.training_world import (
    K,
    N,
    distance,
    feature_training,
    image_training,
    killed,
    method,
    same_bits,
    tiny_vit,
    weights,
    whole_state,
    wobbly_encoder,
)


def lff(folder=None, **settings):
    options = {"encoder": wobbly_encoder(), "epochs": 3, "checkpoint_minutes": 1e-9, **settings}
    return feature_training("lff", folder=folder, **options)


def ncl(model, folder=None, name="ncl", **settings):
    params = {"experts": 3, "hard": 2, "weight": 1.0, "contrast": settings.pop("contrast", 0.0)}
    options = {"epochs": 2, **settings}
    return image_training(tiny_vit(model), name, params, folder=folder, **options)


def falls(training):
    rows = training.run().epochs
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_lff_trains_a_twin_and_remembers_every_sample():
    training = lff(epochs=4)
    start = whole_state(training)
    falls(training)
    end = whole_state(training)
    assert not torch.equal(start["method.twin.head.weight"], end["method.twin.head.weight"])
    assert distance(end, {**end, "head.weight": end["method.twin.head.weight"]}) > 1e-3
    assert bool((end["method.seen_labels"] >= 0).all())
    assert len(end["method.biased_losses"]) == N


@pytest.mark.parametrize("step", [1, 17])
def test_lff_resumes_to_the_same_bits(tmp_path, step):
    whole = lff()
    whole.run()
    killed(lff(tmp_path), step)
    resumed = lff(tmp_path)
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))


def test_a_step_of_lff_is_the_formula():
    training = feature_training("lff", epochs=1)
    step = next(training.steps(training.task.train, training.make_sampler(), 0))
    batch = step.batches[0]
    nn.init.normal_(training.method.twin.head.weight)
    loss = step.gradients()
    z, other = training.network(batch.inputs), training.method.twin(batch.inputs)
    d = nn.functional.cross_entropy(z, batch.targets, reduction="none")
    b = nn.functional.cross_entropy(other, batch.targets, reduction="none")
    w, _ = functional.lff_step(b, d, batch.targets, batch.index, None, ema=0.7)
    own = (w * d).mean()
    gce = (1 - (-b).exp() ** 0.7).mean()
    assert loss == pytest.approx((own + gce).item(), rel=1e-5)
    (grad,) = torch.autograd.grad(own, training.network.head.weight)
    torch.testing.assert_close(training.network.head.weight.grad, grad)


def test_lff_works_around_means_over_samples_only():
    with pytest.raises(UserError, match="dro is not a mean over samples"):
        method("lff", loss="dro")
    falls(feature_training("lff", {"loss": "cb"}))


@pytest.mark.parametrize(("name", "kind"), [("ncl", "linear"), ("dbm-ncl", "cosine")])
def test_experts_learn_and_differ(tmp_path, name, kind):
    training = ncl(tmp_path, name=name, kind=kind, epochs=3)
    start = whole_state(training)
    falls(training)
    end = whole_state(training)
    for other in ("method.others.0.head.weight", "method.others.1.head.weight"):
        assert not torch.equal(start[other], end[other])
        assert not torch.equal(end["head.weight"], end[other])  # each sees a view of its own


def test_experts_and_queues_resume_to_the_same_bits(tmp_path):
    whole = ncl(tmp_path / "vit", contrast=1.0)
    whole.run()
    killed(ncl(tmp_path / "vit", tmp_path / "run", contrast=1.0), 4)
    resumed = ncl(tmp_path / "vit", tmp_path / "run", contrast=1.0)
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))
    assert int(resumed.method.queues[1].pushed) == 80


def test_a_step_of_ncl_is_the_formula(tmp_path):
    training = ncl(tmp_path)
    step = next(training.steps(training.task.train, training.make_sampler(), 0))
    batch = step.batches[0]
    loss = step.gradients()
    experts = [training.network, *training.method.others]
    logits = [expert(view) for expert, view in zip(experts, batch.views, strict=True)]
    want = functional.ncl(logits, batch.targets, [10.0] * 4, hard=2, factor=0.6)
    assert loss == pytest.approx(want.item(), rel=1e-5)


def test_one_expert_alone_with_all_classes_hard_is_cross_entropy(tmp_path):
    """On balanced classes: its two parts are the same, and each has half the weight."""
    params = {"experts": 1, "hard": 4}
    plain = image_training(tiny_vit(tmp_path), epochs=1, lr=0.01, momentum=0.0, weight_decay=0.0)
    alone = image_training(
        tiny_vit(tmp_path), "ncl", params, epochs=1, lr=0.01, momentum=0.0, weight_decay=0.0
    )
    for training in (alone, plain):
        training.run()
    assert distance(weights(alone), weights(plain)) < 1e-5


def test_experts_need_views_and_logits():
    with pytest.raises(UserError, match=r"several views.*use --finetune"):
        feature_training("ncl").run()
    with pytest.raises(UserError, match="mr2 has none to share"):
        method("ncl", loss="mr2")
    assert method("ncl", num_classes=K).hard == 2  # 30 % of five classes
    assert method("ncl", hard=4).hard == 4


def test_a_twin_of_a_network_from_scratch_has_weights_of_its_own():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    same, fresh = twin(network, fresh=False), twin(network, fresh=True)
    assert torch.equal(same[0].weight, network[0].weight)
    assert same[0].weight is not network[0].weight
    assert not torch.equal(fresh[0].weight, network[0].weight)
