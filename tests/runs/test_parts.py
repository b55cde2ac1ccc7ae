"""Features of several backbones, or taps, side by side: one probe of all of them."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import backbones
import probe
from backbones.backbone import Parts
from backbones.preprocess import Preprocessing
from backbones.sources import Scratch
from probe import recipe
from probe.errors import UserError
from probe.features import inventory
from probe.heads import fitted
from probe.runs import compare, posing, staleness
from probe.runs.folder import RunFolder
from probe.runs.inputs import gather
from probe.runs.posing import pose
from probe.runs.predict import predict
from probe.runs.report import report
from probe.runs.run import check, run
from probe.runs.strategy import choose
from tests.support.stored_runs import predictions

# random weights tell colours apart, and are small
LEFT = {"name": "cifar-resnet20", "image_size": 32}
RIGHT = {"name": "cifar-preact20", "image_size": 24}


def content(colours, **more):
    return {"backbone": [LEFT, RIGHT], "data": str(colours), "method": "mr2", **more}


@pytest.fixture(scope="module")
def finished(colours, cache, tmp_path_factory):
    r = recipe.build(content(colours, features={"views": "flip"}))
    return run(r, cache=cache, out=tmp_path_factory.mktemp("runs"))


def part_features(settings, split, cache, **more):
    b = backbones.load(**settings)
    return np.asarray(probe.features.extract(b, split, cache=cache, progress=False, **more).X)


def test_the_problem_is_the_scaled_parts_side_by_side(colours, cache):
    r = recipe.build(content(colours))
    problem = pose(r, gather(r, cache=cache))
    parts = [part_features(s, probe.data.load(str(colours))["train"], cache) for s in (LEFT, RIGHT)]
    scaled = [part / np.sqrt(part.astype(np.float64).var(axis=0).sum()) for part in parts]
    np.testing.assert_allclose(np.asarray(problem.X), np.hstack(scaled), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(problem.head_scaling(torch.tensor(np.hstack(parts))), problem.X)


def test_each_part_is_an_entry_of_its_own_and_others_find_it(finished, colours, cache):
    before = {entry.name for entry in inventory.entries(cache)}
    alone = gather(recipe.build({"backbone": RIGHT, "data": str(colours)}), cache=cache)
    assert all(f.cached for f in alone.features.values())
    assert {entry.name for entry in inventory.entries(cache)} == before


def test_the_result_tells_the_parts(finished):
    told = finished.result["backbone"]
    assert (told["name"], told["dim"], told["tap"]) == ("cifar-resnet20+cifar-preact20", 128, "pooled+pooled")
    assert [part["preprocessing"]["size"] for part in told["parts"]] == [32, 24]
    assert finished.folder.name.startswith("cifar-resnet20-cifar-preact20-colours-mr2-")
    page = report(finished.folder).path.read_text()
    assert all(part["fingerprint"] in page for part in told["parts"])


def test_the_saved_head_scales_the_parts_itself(finished, colours, cache):
    test = probe.data.load(str(colours))["test"]
    head, _ = fitted.load(finished.folder)
    views = [
        np.hstack([part_features(s, test, cache, view=v) for s in (LEFT, RIGHT)]) for v in ("center", "flip")
    ]
    mean = torch.stack([head.scores(torch.tensor(X)) for X in views]).mean(0).softmax(1)
    stored = predictions(finished.folder, "mr2")
    np.testing.assert_allclose(stored["probability"], mean.max(1).values.numpy(), atol=1e-5)
    loaded = probe.load(finished.folder)
    assert loaded.n_features_in_ == 128
    assert (loaded.predict(views[0]) == head.scores(torch.tensor(views[0])).argmax(1).numpy()).all()


def test_a_file_is_predicted_as_the_test_image_was(finished, colours):
    stored = predictions(finished.folder, "mr2")
    found = predict(finished.folder, [colours / image for image in stored["id"]], top=1)
    for row, probability in zip(found, stored["probability"], strict=True):
        assert row["classes"][0]["probability"] == pytest.approx(float(probability), abs=1e-3)


def test_features_too_large_for_memory_give_the_same_probe(finished, colours, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(posing, "IN_MEMORY", 0)
    r = recipe.build(content(colours, features={"views": "flip"}))
    again = run(r, cache=cache, out=tmp_path)
    assert again.result["seeds"][0]["l2"] == finished.result["seeds"][0]["l2"]
    assert again.result["test"]["top1"] == finished.result["test"]["top1"]


@pytest.mark.parametrize("solver", ["ridge", "knn", "sgd"])
def test_every_solver_takes_parts(solver, colours, cache, tmp_path):
    more = {"train": {"epochs": 3}} if solver == "sgd" else {}
    r = recipe.build({**content(colours), "method": "erm", "solver": solver, **more})
    assert run(r, cache=cache, out=tmp_path).result["test"]["top1"] > 0.5


def test_a_comparison_knows_them_and_reuses_a_stored_run(colours, cache, tmp_path):
    words = {"data": [str(colours)], "methods": ["erm"], "seeds": 1, "cache": cache, "out": tmp_path}
    names = ["cifar-resnet20 cifar-resnet20+cifar-preact20"]
    first, _ = compare.command(["backbone.image_size=24"], backbones=names, **words)
    assert [row["backbone"] for row in first["rows"]] == names[0].split()
    second, _ = compare.command(["backbone.image_size=24"], backbones=names, **words)
    assert [row["reused"] for row in second["rows"]] == [True, True]


def test_changed_weights_of_any_part_make_a_run_stale(finished, colours, cache, monkeypatch):
    r = recipe.build(content(colours, features={"views": "flip"}))
    present = staleness.Present(cache)
    assert present.change(r, finished.result) is None
    other = next(key for key in present._weights if "preact20" in key)
    present._weights[other] = "f" * 64
    assert "weights of cifar-resnet20+cifar-preact20 have changed" in present.change(r, finished.result)


@pytest.mark.parametrize(
    ("more", "line"), [({"finetune": True}, "--finetune"), ({"solver": "zeroshot"}, "zero-shot")]
)
def test_one_network_is_refused_two_names_in_one_line(colours, more, line):
    r = recipe.build({**content(colours), "method": "erm", **more})
    with pytest.raises(
        UserError, match=f"{line} .*one backbone, not cifar-resnet20\\+cifar-preact20"
    ) as told:
        check(choose(r))
    assert "\n" not in str(told.value)


def two_taps(spec, weights, *, tap, image_size):
    """Means of the colours, or their maxima."""
    pool = nn.AdaptiveMaxPool2d(1) if tap == "largest" else nn.AdaptiveAvgPool2d(2)
    encoder = nn.Sequential(pool, nn.Flatten(), nn.BatchNorm1d(3 if tap == "largest" else 12))
    return Parts(
        encoder, 3 if tap == "largest" else 12, tap or "mean", Preprocessing(16, 16), "x", str(Scratch())
    )


@pytest.fixture(scope="module")
def with_taps():
    taps = {"mean": 12, "largest": 3}
    backbones.register(backbones.Spec("two-taps", two_taps, "x", Scratch(), taps, 16, "mit"))
    yield "two-taps"
    backbones.catalogue._by_name.pop("two-taps")


def test_two_taps_of_one_backbone_stand_side_by_side(with_taps, colours, cache, tmp_path):
    r = recipe.build(
        {"backbone": {"name": with_taps, "tap": ["mean", "largest"]}, "data": str(colours), "method": "erm"}
    )
    done = run(r, cache=cache, out=tmp_path)
    assert done.result["backbone"]["dim"] == 15
    assert [part["tap"] for part in done.result["backbone"]["parts"]] == ["mean", "largest"]
    assert (
        json.loads((done.folder / "result.json").read_text())["recipe"]["backbone"]["also"][0]["tap"]
        == "largest"
    )
    assert RunFolder.of(r, tmp_path).path == done.folder


def test_an_unknown_part_is_refused_before_anything_is_extracted(colours, tmp_path):
    r = recipe.build({"backbone": [LEFT, "cifar-resnet21"], "data": str(colours)})
    with pytest.raises(UserError, match='there is no backbone "cifar-resnet21"'):
        gather(r, cache=tmp_path)
    assert inventory.entries(tmp_path) == []
