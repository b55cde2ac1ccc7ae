"""A run on several views of each image: what it learns from, predicts by, says and refuses."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import backbones
import probe
from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.heads import fitted
from probe.runs.inputs import gather
from probe.runs.posing import pose
from probe.runs.predict import predict
from probe.runs.run import check, run
from probe.runs.strategy import choose
from tests.support.stored_runs import predictions

SMALL = {"name": "effnet-lite0", "image_size": 32}


@pytest.fixture(scope="module")
def finished(colours, cache, tmp_path_factory):
    r = recipe.build({"backbone": SMALL, "data": str(colours), "method": "mr2", "features": {"views": 2}})
    return run(r, cache=cache, out=tmp_path_factory.mktemp("runs"))


def view_logits(folder, colours, cache, names):
    """The head's logits on each view of the test images."""
    b, test = backbones.load(**SMALL), probe.data.load(str(colours))["test"]
    head, _ = fitted.load(folder)
    sets = [probe.features.extract(b, test, cache=cache, view=name, progress=False) for name in names]
    assert all(f.cached for f in sets)
    return torch.stack([head.scores(f.X) for f in sets])


def test_stored_predictions_are_those_of_the_mean_logits(finished, colours, cache):
    each = view_logits(finished.folder, colours, cache, ["center", "crop-1", "crop-2"])
    stored = predictions(finished.folder, "mr2")
    mean = each.mean(0).softmax(1)
    assert np.array_equal(stored["prediction"], mean.argmax(1).numpy())
    np.testing.assert_allclose(stored["probability"], mean.max(1).values.numpy(), atol=1e-5)
    assert not np.allclose(stored["probability"], each[0].softmax(1).max(1).values.numpy(), atol=1e-3)


def test_the_result_says_which_views(finished):
    views = ["center", "crop-1", "crop-2"]
    assert finished.result["views"] == {"learnt": views, "averaged": views}
    assert finished.result["data"]["sizes"] == {"train": 60, "test": 32}  # images
    assert sum(row["n"] for row in finished.result["test"]["by_class"]) == 32
    assert finished.result["diagnostics"]["features"]["train_rows"] == 60


def test_a_file_is_predicted_as_the_test_image_was(finished, colours):
    stored = predictions(finished.folder, "mr2")
    files = [colours / image for image in stored["id"]]
    found = predict(finished.folder, files, top=1)
    for row, probability in zip(found, stored["probability"], strict=True):
        assert row["classes"][0]["probability"] == pytest.approx(float(probability), abs=1e-4)


def test_test_views_alone_change_predictions_and_not_what_is_learnt(finished, colours, cache):
    content = {"backbone": SMALL, "data": str(colours), "features": {"views": 2, "test_views": "center"}}
    inputs = gather(recipe.build(content), cache=cache)
    problem = pose(recipe.build(content), inputs)
    assert (problem.images, len(problem.y), len(problem.test_rows), len(inputs.test_views)) == (
        60,
        180,
        60,
        1,
    )
    assert torch.equal(problem.test_rows, problem.X[:60])
    content["features"] = {"views": "center", "test_views": 2}
    other = pose(recipe.build(content), gather(recipe.build(content), cache=cache))
    assert (other.images, len(other.y), len(other.test_rows)) == (60, 60, 180)


@pytest.mark.parametrize("solver", ["ridge", "knn", "sgd"])
def test_every_solver_takes_views(solver, colours, cache, tmp_path):
    content = {"backbone": SMALL, "data": str(colours), "method": "erm", "solver": solver}
    content |= {"features": {"views": 1}, **({"train": {"epochs": 3}} if solver == "sgd" else {})}
    result = run(recipe.build(content), cache=cache, out=tmp_path).result
    assert result["test"]["top1"] > 0.5


def test_extract_fills_what_each_split_needs(colours, tmp_path):
    words = ["extract", "--data", str(colours), "--image-size", "32", "--backbone", "effnet-lite0"]
    words += ["--views", "flip", "features.test_views=center", "--cache", str(tmp_path), "--json"]
    told = CliRunner().invoke(main, words)
    assert [(row["split"], row["view"]) for row in json.loads(told.stdout)] == [
        ("train", "center"),
        ("test", "center"),
        ("train", "flip"),
    ]
    listed = json.loads(CliRunner().invoke(main, ["cache", "ls", "--cache", str(tmp_path), "--json"]).stdout)
    assert sorted(row["view"] for row in listed) == ["center", "center", "flip"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("views", value)
            for value in (0, -1, 65, 10**15, "9" * 5000, 1.5, True, "auto", "flop", "-2", "", None, [2])
        ),
        *(("test_views", value) for value in (0, 65, "none")),
    ],
)
def test_a_choice_of_views_that_is_none_is_one_line(key, value):
    line = rf"^recipe: features\.{key}: .*a number of crops from 1 to 64"
    with pytest.raises(UserError, match=line) as told:
        recipe.build({"features": {key: value}})
    assert "\n" not in str(told.value)


def test_words_and_numbers_are_understood_alike():
    assert recipe.build({"features": {"views": "4"}}).features.views == 4
    assert recipe.build({"features": {"views": "flip"}}).features.views_tested == "flip"


@pytest.mark.parametrize("key", ["views", "test_views"])
def test_fine_tuning_refuses_views(key):
    tuned = recipe.build({"finetune": True, "features": {key: "flip"}})
    with pytest.raises(UserError, match=rf"features\.{key}=flip .*train\.augment"):
        check(choose(tuned))


def test_runs_from_before_views_keep_their_names():
    former = "e594531245cd7dff84b2b3e9de7ff1258a2365972c421dab5e2bb7aaf2f33429"
    assert recipe.build({"backbone": "clip-rn50", "data": "pets"}).digest == former
    with_views = recipe.build({"backbone": "clip-rn50", "data": "pets", "features": {"views": "flip"}})
    assert with_views.digest != former
