"""Experts predict by their mean, and whatever is saved, loaded or exported gives the same scores."""

import pytest
import torch

import backbones
import probe
from probe import data, recipe
from probe.core.scaling import NEUTRAL, Scaling
from probe.heads import fitted
from probe.heads.export import HeadLayer
from probe.runs import run
from probe.train import finetune, finetuning
from probe.train.model import tuned_weights
from tests.support.training_world import tiny_vit

TRAIN = {"epochs": 1, "batch_size": 16, "lr": 1e-3, "start": "random"}


def recipe_for(folder, colours, method, **train):
    return recipe.build(
        {
            "backbone": {"name": f"timm:{folder}", "image_size": 32},
            "data": str(colours),
            "method": method,
            "finetune": True,
            "train": {**TRAIN, **train},
        }
    )


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


def tuned(r, folder, monkeypatch):
    """The fine-tuned model, and the trained networks that it came from."""
    seen = {}
    release = finetuning.Training.release

    def watched(training):
        trained = release(training)
        seen["networks"] = trained.method.experts(trained.network)
        return trained

    monkeypatch.setattr(finetuning.Training, "release", watched)
    d = data.load(r.data.name)
    held = data.stratified_holdout(d["train"].labels, 0.2, 0)[1]
    return finetune(r, d, held, folder=folder, show=False), seen["networks"], d


def pixels(backbone, split):
    numbers = backbone.preprocessing
    return numbers.normalise(torch.stack([numbers.pixels(split[i][0]) for i in range(len(split))]))


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["ncl", "dbm-ncl"])
def test_the_mean_of_all_experts_predicts_before_and_after_saving(
    vit, colours, tmp_path, monkeypatch, method
):
    model, networks, d = tuned(recipe_for(vit, colours, method), tmp_path, monkeypatch)
    images = pixels(model.backbone, d["test"])
    with torch.no_grad():
        each = [network.eval()(images) for network in networks]
        features = model.backbone(images)
    assert len(each) == 3
    assert not torch.allclose(each[0], each[1])
    close(model.scores, sum(each) / 3)
    close(model.head.scores(features), model.scores)
    again = backbones.load(f"timm:{vit}", image_size=32)
    dim = again.dim
    tuned_weights.restore(again, model.weights)
    assert (again.dim, again.digest()) == (3 * dim, model.backbone.digest())
    assert model.record["experts"] == {"trained": 3, "predict": 3}


def test_kept_weights_of_one_network_predict_alone(vit, colours, tmp_path, monkeypatch):
    model, networks, d = tuned(recipe_for(vit, colours, "ncl", ema=0.5), tmp_path, monkeypatch)
    with torch.no_grad():
        alone = networks[0].eval()(pixels(model.backbone, d["test"]))
    close(model.scores, alone)
    assert model.record["experts"] == {"trained": 3, "predict": 1}


def test_a_run_of_experts_predicts_images_as_it_was_judged(vit, colours, tmp_path):
    finished = run.run(recipe_for(vit, colours, "ncl"), cache=tmp_path / "cache", out=tmp_path / "runs")
    model = probe.load(finished.folder)
    split = data.load(str(colours))["test"]
    guesses = model.predict([split[i][0] for i in range(len(split))])
    assert guesses.tolist() == finished.predictions[0].prediction.tolist()
    with torch.no_grad():
        scores = model.module()(pixels(model.backbones[0], split))
    assert scores.argmax(1).tolist() == guesses.tolist()
    assert not any("experts" in remark for remark in finished.result["remarks"])
    one = run.run(recipe_for(vit, colours, "ncl", ema=0.5), cache=tmp_path / "cache", out=tmp_path / "runs")
    assert any("the first of 3 experts predicts" in remark for remark in one.result["remarks"])


@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_mean_of_heads_is_the_mean_of_their_scores(tmp_path, kind, unit_norm):
    g = torch.Generator().manual_seed(0)

    def head():
        tensors = {"weight": torch.randn(4, 3, generator=g)}
        if kind == "linear":
            tensors["bias"] = torch.randn(4, generator=g)
        scaling = Scaling(None, None, True) if unit_norm else Scaling(torch.ones(3), torch.full((3,), 2.0))
        return fitted.FittedHead(kind, tensors, {} if kind == "linear" else {"scale": 16.0}, scaling)

    heads = [head(), head()]
    X = torch.randn(5, 6, generator=g)
    want = (heads[0].scores(X[:, :3]) + heads[1].scores(X[:, 3:])) / 2
    made = fitted.mean_of(heads)
    torch.testing.assert_close(made.scores(X), want)
    torch.testing.assert_close(HeadLayer(made)(X), want)
    fitted.save(made, tmp_path, {})
    loaded, _ = fitted.load(tmp_path)
    torch.testing.assert_close(loaded.scores(X), want)
    assert (loaded.num_classes, loaded.scaling) == (4, NEUTRAL)
