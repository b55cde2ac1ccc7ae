"""Fine-tuning: where it starts and ends, what it writes, and that the test images wait until the end."""

import numpy as np
import pytest
import torch

import backbones
import probe.runs.run
from probe import data, recipe
from probe.errors import UserError
from probe.heads import fitted
from probe.probing import exact as probing
from probe.probing.zero_shot import text_classifier
from probe.runs.inputs import gather
from probe.runs.posing import pose
from probe.train import finetune
from probe.train.build import make_head, make_method
from probe.train.finetune_job import prepare
from probe.train.finetuning import _method, _start, _training
from probe.train.inputs.concat import Samples
from probe.train.model import tuned_weights
from probe.train.model.head_init import set_head
from tests.support import tiny_clip
from tests.support.training_world import distance, tiny_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


def recipe_for(vit, colours, **train):
    method = train.pop("method", "erm")
    settings = {"epochs": 1, "batch_size": 16, "lr": 1e-3, "start": "random", **train}
    return recipe.build(
        {
            "backbone": {"name": f"timm:{vit}", "image_size": 32},
            "data": str(colours),
            "method": method,
            "finetune": True,
            "train": settings,
        }
    )


def cut(d):
    return data.stratified_holdout(d["train"].labels, 0.2, 0)[1]


def poser(r, cache):
    inputs = gather(r, cache=cache)
    return lambda backbone: pose(r, inputs)


def run(r, folder, *, pose=None, seed=0):
    d = data.load(r.data.name)
    return finetune(r, d, cut(d), folder=folder, pose=pose, seed=seed, show=False), d


def at_step_0(r, folder, pose):
    """The scores on the test split before the first step."""
    d = data.load(r.data.name)
    job = prepare(r, d, cut(d), seed=0)
    method = make_method(r.method, num_classes=4, labels=job.samples.labels, dim=job.backbone.dim)
    head = make_head(method, r.train, dim=job.backbone.dim, num_classes=4, seed=0)
    scaling = set_head(r.train.start, head, _start(job, pose))
    training = _training(job, method, head, scaling, folder, "digest", False)
    return training.evaluate(job.loader(Samples([d["test"]]))), training


@pytest.mark.parametrize("scaling", ["none", "standard"])
@pytest.mark.parametrize("method", ["erm", "mr2"])
def test_lp_ft_starts_where_the_exact_probe_ended(vit, colours, cache, tmp_path, method, scaling):
    r = recipe_for(vit, colours, start="probe", method=method)
    r = recipe.build({**r.model_dump(), "features": {"scaling": scaling}, "solver": {"l2": 1.0}})
    inputs = gather(r, cache=cache)
    problem = pose(r, inputs)
    held = inputs.holdout(0, 0.2)
    exact = probing.fit(problem, r.method, r.solver, held).head.scores(inputs.features["test"].X)
    scores, _ = at_step_0(r, tmp_path, lambda backbone: problem)
    assert torch.allclose(scores, exact.float(), atol=2e-4)


@pytest.mark.parametrize("chosen", [{"keep": "best"}, {"wise": (0.0, 1.0)}])
def test_what_will_choose_has_not_taught_the_probe_that_it_starts_from(vit, colours, cache, tmp_path, chosen):
    r = recipe_for(vit, colours, start="probe", **chosen)
    inputs = gather(r, cache=cache)
    problem = pose(r, inputs)
    held = cut(data.load(r.data.name))
    l2 = probing.fit(problem, r.method, r.solver, held).record["l2"]
    others = problem.only(np.setdiff1d(np.arange(len(problem.y)), held))
    exact = probing.fit(others, r.method, r.solver.model_copy(update={"l2": l2}), held).head
    scores, _ = at_step_0(r, tmp_path, lambda backbone: problem)
    assert torch.allclose(scores, exact.scores(inputs.features["test"].X).float(), atol=2e-4)


def test_class_means_start_as_the_nearest_mean_classifier(vit, colours, cache, tmp_path):
    r = recipe_for(vit, colours, start="means")
    inputs = gather(r, cache=cache)
    X, y = inputs.features["train"].X.tensor(), inputs.features["train"].y
    means = torch.stack([X[torch.as_tensor(y == k)].mean(0) for k in range(4)])
    nearest = torch.cdist(inputs.features["test"].X.tensor(), means).argmin(1)
    scores, _ = at_step_0(r, tmp_path, poser(r, cache))
    assert torch.equal(scores.argmax(1), nearest)


def test_a_random_head_follows_the_seed(vit, colours, tmp_path):
    r = recipe_for(vit, colours)
    scores, training = at_step_0(r, tmp_path, None)
    again, _ = at_step_0(r, tmp_path, None)
    assert torch.equal(scores, again)
    assert 0 < float(training.network.head.weight.detach().std()) < 0.02


def test_a_zero_shot_head_starts_as_clip_does(colours, tmp_path):
    folder = tiny_clip.write(tmp_path / "clip")
    r = recipe_for("", colours, start="zeroshot")
    r = recipe.build({**r.model_dump(), "backbone": {"name": "open_clip:ViT-B-32", "weights": str(folder)}})
    scores, training = at_step_0(r, tmp_path, None)
    b = backbones.load("open_clip:ViT-B-32", weights=folder)
    d = data.load(str(colours))
    rows, scale = text_classifier(b, d.class_names, d.templates)
    images = torch.stack([b.transform(d["test"][i][0]) for i in range(len(d["test"]))])
    h = torch.nn.functional.normalize(b(images), dim=1)
    expected = scale * h @ torch.nn.functional.normalize(rows, dim=1).T
    assert torch.allclose(scores, expected, atol=1e-4)
    training.run()
    assert np.isfinite(training.state.progress.epochs[-1]["loss"])


def test_the_whole_way_from_a_recipe_to_weights_that_classify_the_same(vit, colours, tmp_path):
    r = recipe_for(vit, colours, epochs=3, ema=0.5, layer_decay=0.7, drop_path=0.1, warmup_epochs=0.5)
    tuned, d = run(r, tmp_path)
    before = backbones.load(f"timm:{vit}", image_size=32)
    fresh = tuned_weights.restore(backbones.load(f"timm:{vit}", image_size=32), tuned.weights)
    assert fresh.fingerprint == tuned.backbone.digest() != before.fingerprint
    images = torch.stack([fresh.transform(d["test"][i][0]) for i in range(len(d["test"]))])
    fitted.save(tuned.head, tmp_path / "head", {})
    head, _ = fitted.load(tmp_path / "head")
    assert torch.allclose(head.scores(fresh(images)), tuned.scores, atol=1e-4)
    assert (tuned.scores.argmax(1).numpy() == d["test"].labels).mean() > 0.5
    assert len(tuned.record["epochs"]) == 3


def test_wise_ft_at_its_ends_is_the_start_and_the_end(vit, colours, tmp_path):
    plain, _ = run(recipe_for(vit, colours), tmp_path / "plain")
    start, _ = at_step_0(recipe_for(vit, colours), tmp_path / "start", None)
    for alpha, expected in ((0.0, start), (1.0, plain.scores)):
        tuned, _ = run(recipe_for(vit, colours, wise=[alpha]), tmp_path / str(alpha))
        assert torch.equal(tuned.scores, expected)
        assert tuned.record["alpha"] == alpha


def test_several_alphas_are_each_validated_and_the_best_is_kept(vit, colours, tmp_path):
    r = recipe_for(vit, colours, wise=[0.0, 0.5, 1.0], epochs=2)
    tuned, _ = run(r, tmp_path)
    rows = tuned.record["wise"]
    assert [row["alpha"] for row in rows] == [0.0, 0.5, 1.0]
    best = max(row["validation"] for row in rows)
    assert next(row for row in rows if row["alpha"] == tuned.record["alpha"])["validation"] == best


def test_held_rows_are_trained_on_only_where_nothing_is_chosen_on_them(vit, colours):
    d = data.load(str(colours))
    assert len(prepare(recipe_for(vit, colours), d, cut(d), seed=0).trained) == 60
    chosen = prepare(recipe_for(vit, colours, keep="best"), d, cut(d), seed=0).trained
    assert len(chosen) == 48
    assert not set(chosen) & set(cut(d))


def test_test_images_are_read_once_at_the_end(vit, colours, tmp_path, monkeypatch):
    d = data.load(str(colours))
    seen = []
    test, train = d["test"]._images, d["train"]._images
    for images, name in ((test, "test"), (train, "train")):
        monkeypatch.setattr(type(images), "rgb", type(images).rgb)
        original = images.rgb
        object.__setattr__(images, "rgb", lambda row, o=original, n=name: (seen.append(n), o(row))[1])
    finetune(recipe_for(vit, colours, keep="best"), d, cut(d), folder=tmp_path, show=False)
    assert seen.count("test") == 32
    assert set(seen[-32:]) == {"test"}


@pytest.mark.parametrize(
    "backbone",
    ["cifar-resnet20", {"name": "timm:test_resnet", "weights": "scratch", "image_size": 32}],
    ids=["cifar", "timm"],
)
def test_every_net_from_scratch_has_the_defaults_of_one(colours, backbone):
    content = {"backbone": backbone, "data": str(colours), "finetune": True, "train": {"keep": "best"}}
    d = data.load(str(colours))

    def never(backbone):
        raise AssertionError("features of random weights say nothing")

    def made(method):
        return _method(prepare(recipe.build({**content, "method": method}), d, cut(d), seed=0), never)

    assert made("mr2").loss.scale == "total"
    assert made("ef").loss.frequency.tolist() == [0.25] * 4
    assert made("lff").from_scratch


def test_nets_from_scratch_follow_the_seed_and_learn(colours, tmp_path):
    train = {"epochs": 3, "batch_size": 20, "lr": 0.1, "augment": {"crop": "padded-crop"}}
    content = {"backbone": "cifar-resnet20", "data": str(colours), "method": "mr2", "finetune": True}
    r = recipe.build({**content, "train": train})
    tuned, _ = run(r, tmp_path / "a")
    again, _ = run(r, tmp_path / "b")
    other, _ = run(r, tmp_path / "c", seed=1)
    assert torch.equal(tuned.scores, again.scores)
    assert not torch.equal(tuned.scores, other.scores)
    assert tuned.record["epochs"][-1]["loss"] < tuned.record["epochs"][0]["loss"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ldam", "head": "linear"}, "ldam works on cosines.*train.head=cosine"),
        ({"method": "lff", "augment": {"mix": "mixup"}}, "lff takes labels"),
        ({"start": "probe", "head": "cosine"}, "start: probe is a linear solution"),
        ({"start": "zeroshot"}, "has no text encoder"),
        ({"sampler": "pairs", "batch_size": 1}, "smaller than one class pair"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(vit, colours, tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        run(recipe_for(vit, colours, **change), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet"])
def test_a_timm_net_trains_from_scratch_by_name_and_comes_back_from_its_weights(colours, tmp_path, name):
    content = {"backbone": {"name": name, "weights": "scratch", "image_size": 32}, "data": str(colours)}
    train = {"epochs": 2, "batch_size": 20, "lr": 0.003}
    r = recipe.build({**content, "method": "erm", "finetune": True, "train": train})
    tuned, _ = run(r, tmp_path / "a")
    other, _ = run(r, tmp_path / "b", seed=1)
    assert not torch.equal(tuned.scores, other.scores)
    fresh = backbones.load(name, weights="scratch", image_size=32)
    assert tuned_weights.restore(fresh, tuned.weights).digest() == tuned.backbone.digest()
    assert tuned.record["epochs"][-1]["loss"] < tuned.record["epochs"][0]["loss"]


@pytest.mark.parametrize("start", ["probe", "means"])
def test_a_net_without_weights_has_no_features_to_start_from(colours, tmp_path, start):
    content = {
        "backbone": "cifar-resnet20",
        "data": str(colours),
        "finetune": True,
        "train": {"start": start},
    }
    with pytest.raises(UserError, match=f"start: {start} needs features.*cifar-resnet20 is trained from"):
        probe.runs.run.run(recipe.build(content), out=tmp_path)


def test_a_finished_fine_tuning_is_found_again_with_its_best_epoch(vit, colours, tmp_path):
    r = recipe_for(vit, colours, epochs=3, ema=0.9, keep="best")
    tuned, _ = run(r, tmp_path)
    again, _ = run(r, tmp_path)
    assert torch.equal(tuned.scores, again.scores)
    assert distance(tuned.backbone.encoder.state_dict(), again.backbone.encoder.state_dict()) == 0


def test_batch_norm_is_frozen_where_weights_are_pretrained_and_trained_from_scratch(colours, tmp_path):
    from tests.support.training_world import tiny_resnet

    tiny_resnet(tmp_path / "rn")
    for name, moves in ((f"timm:{tmp_path / 'rn'}", False), ("cifar-resnet20", True)):
        content = {"backbone": {"name": name, "image_size": 32}, "data": str(colours), "method": "erm"}
        train = {"epochs": 1, "batch_size": 30, "start": "random", "lr": 1e-3}
        r = recipe.build({**content, "finetune": True, "train": train})
        _, training = at_step_0(r, tmp_path / "run", None)
        before = {k: v for k, v in training.network.snapshot().items() if "running_mean" in k}
        training.checkpoints.folder = None
        training.run()
        after = training.network.snapshot()
        assert all(torch.equal(v, after[k]) for k, v in before.items()) is not moves
