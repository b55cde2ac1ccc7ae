"""Fine-tuning with nothing said begins at the frozen probe and does no harm; where it does, it says so."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from probe import data, recipe
from probe.evaluation import predictions
from probe.evaluation.summary import EvaluationSet
from probe.probing import exact
from probe.probing.problem import Fit
from probe.runs.inputs import gather
from probe.runs.posing import pose
from probe.runs.run import run
from probe.runs.training_summary import course
from probe.train import finetune
from probe.train.build import make_head, make_method
from probe.train.finetune_job import prepare
from probe.train.finetuning import _start, _training
from probe.train.model.head_init import automatic, set_head
from tests.support.training_world import tiny_resnet, tiny_vit

CLASSES = (3, 5, 8, 9)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Four digits that are often mistaken for each other: 6 training and 30 test images each."""
    root, seen = tmp_path_factory.mktemp("digits"), dict.fromkeys(CLASSES, 0)
    bunch = load_digits()
    for number, (pixels, label) in enumerate(zip(bunch.images, bunch.target.tolist(), strict=True)):
        if label in seen and seen[label] < 36:
            folder = root / ("train" if seen[label] < 6 else "test") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15.9).astype(np.uint8)).save(folder / f"{number}.png")
            seen[label] += 1
    return root


def plain(folder, **more):
    return recipe.build(
        {
            "backbone": {"name": "effnet-lite0", "image_size": 64},
            "data": str(folder),
            "finetune": True,
            **more,
        }
    )


def test_with_all_defaults_the_default_backbone_ends_no_lower_than_its_frozen_probe(digits, cache, tmp_path):
    done = run(plain(digits), cache=cache, out=tmp_path)
    training, seed = done.result["training"], done.result["seeds"][0]
    assert done.result["recipe"]["method"]["name"] == "erm"
    assert (training["from"], training["start"]) == ("probe", training["probe"])
    assert training["gain"]["mean"] > -0.04  # 120 images: a standard error of about two points
    assert training["end"]["top1"] == done.result["test"]["top1"]
    assert training["settings"] == seed["settings"]
    assert seed["settings"]["family"] == "convnet"
    assert seed["settings"]["lr"] == seed["search"]["lr"]
    assert None not in seed["settings"].values()
    lines = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
    assert lines[0]["settings"]["batch_size"] == seed["settings"]["batch_size"] == 16
    assert lines[1]["search"] == seed["search"]
    assert not any("below its start" in remark for remark in done.result["remarks"])


@pytest.mark.parametrize("name", ["effnet", "resnet", "vit"])
def test_at_step_0_the_network_predicts_what_the_frozen_probe_predicts(name, digits, cache, tmp_path):
    r = plain(digits)
    if name != "effnet":
        {"resnet": tiny_resnet, "vit": tiny_vit}[name](tmp_path / name)
        r = recipe.build(
            {**r.model_dump(), "backbone": {"name": f"timm:{tmp_path / name}", "image_size": 32}}
        )
    inputs = gather(r, cache=cache)
    problem, held = pose(r, inputs), inputs.holdout(0, 0.2)
    frozen = exact.fit(problem, r.method, r.solver, held).head.scores(inputs.features["test"].X)
    job = prepare(r, inputs.data, held, seed=0)
    method = make_method(r.method, num_classes=4, labels=job.samples.labels, dim=job.backbone.dim)
    head = make_head(method, job.settings, dim=job.backbone.dim, num_classes=4, seed=0)
    job = job.starting(head)
    scaling = set_head(job.settings.start, head, _start(job, lambda backbone: problem))
    training = _training(job, method, head, scaling, None, "digest", False)
    scores = training.evaluate(job.loader(job.test))
    assert torch.equal(scores.argmax(1), frozen.argmax(1))
    assert torch.allclose(scores.softmax(1), frozen.float().softmax(1), atol=1e-3)


def test_a_cosine_head_starts_at_class_means_and_a_net_from_scratch_at_random(digits):
    for name, kind in (
        ("cosface", "means"),
        ("dot-regression", "means"),
        ("erm", "probe"),
        ("lgm", "random"),
    ):
        r = plain(digits, method=name)
        method = make_method(r.method, num_classes=4, labels=np.arange(4), dim=8)
        head = make_head(method, r.train, dim=8, num_classes=4, seed=0)
        assert automatic(head, pretrained=True) == kind
        assert automatic(head, pretrained=False) == "random"


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return f"timm:{folder}"


def ruined(vit, digits, **train):
    settings = {"lr": 3.0, "epochs": 2, "batch_size": 8, "clip": "none", **train}
    return plain(digits, backbone={"name": vit, "image_size": 32}, train=settings)


@pytest.mark.parametrize("start", ["auto", "random"])
def test_a_training_that_ends_below_its_start_says_so_and_what_to_try(
    vit, digits, cache, tmp_path, capsys, start
):
    from probe.report.text.run import show

    done = run(ruined(vit, digits, start=start), cache=cache, out=tmp_path)
    training = done.result["training"]
    assert training["end"]["top1"] < training["probe"]["top1"] - 0.2
    what = {"auto": "start", "random": "frozen probe"}[start]
    (said,) = (remark for remark in done.result["remarks"] if f"points below its {what}" in remark)
    assert "try a smaller train.lr" in said
    assert "points below its" in (done.folder / "report.html").read_text()
    show(done.result, str(done.folder))
    assert "below its" in " ".join(capsys.readouterr().out.split())


def test_a_loss_on_held_out_images_is_said_where_the_test_images_cannot_tell():
    labels = np.arange(40) % 4
    scores = torch.eye(4)[labels]
    eval_set = EvaluationSet(
        labels, tuple("abcd"), {"easy": [0, 1], "medium": [2], "hard": [3]}, np.full(4, 9)
    )
    guesses = [predictions.from_scores(scores, labels, name, 0) for name in ("erm-finetune", "erm")]
    record = {"settings": {"start": "probe"}, "held_out": {"start": 0.9, "end": 0.89}}
    options = {"end": "erm-finetune", "probe": "erm", "starts": [scores]}
    _, said = course(eval_set, [Fit(None, record)], guesses, **options)
    assert "1.0 points below its start on held-out images" in said[0]
    record["held_out"]["end"] = 0.896
    assert course(eval_set, [Fit(None, record)], guesses, **options)[1] == []


def test_the_search_for_the_rate_reads_no_test_image(vit, digits, cache, tmp_path):
    r = ruined(vit, digits, lr=None, epochs=1)
    inputs = gather(r, cache=cache)
    problem = pose(r, inputs)
    loaded, order = data.load(r.data.name), []
    for split in ("train", "test"):
        images = loaded[split]._images
        read = images.rgb
        object.__setattr__(images, "rgb", lambda row, o=read, n=split: (order.append(n), o(row))[1])
    tuned = finetune(
        r, loaded, inputs.holdout(0, 0.2), folder=tmp_path, pose=lambda backbone: problem, show=False
    )
    assert len(tuned.record["search"]["tried"]) >= 2
    assert order.count("test") == len(loaded["test"])
    assert set(order[-len(loaded["test"]) :]) == {"test"}
