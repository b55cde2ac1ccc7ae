"""What a run says to look at first, and the cross-fitted probabilities that it keeps."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import backbones
import probe
from probe import recipe
from probe.errors import UserError
from probe.evaluation import groups
from probe.report.html import thumbnails
from probe.runs.run import run
from probe.system import checksums
from tests.support import tiny_clip

SMALL = {"name": "effnet-lite0", "image_size": 32}


@pytest.fixture(scope="module")
def copied(colours, tmp_path_factory):
    """The colours, of which one test image is a training image, encoded again."""
    root = shutil.copytree(colours, tmp_path_factory.mktemp("data") / "copied")
    first = min((root / "train" / "red").iterdir())
    Image.open(first).convert("RGB").save(root / "test" / "red" / "again.jpg", quality=100, subsampling=0)
    return root, f"red/{first.name}"


@pytest.fixture(scope="module")
def finished(copied, cache, tmp_path_factory):
    r = recipe.build({"backbone": SMALL, "data": str(copied[0]), "method": "erm", "solver": {"l2": 1.0}})
    return run(r, cache=cache, out=tmp_path_factory.mktemp("runs"))


def test_the_kept_probabilities_are_those_of_an_independent_cross_fit(finished, copied, cache):
    from sklearn.linear_model import LogisticRegression

    f = probe.features.extract(backbones.load(**SMALL), probe.data.load(str(copied[0]))["train"], cache=cache)
    X, fold = np.asarray(f.X, dtype=np.float64), groups.folds(f.y, 5, 0)
    expected = np.zeros((len(f.y), 4))
    for part in range(5):
        model = LogisticRegression(C=1.0, max_iter=3000, tol=1e-8).fit(X[fold != part], f.y[fold != part])
        expected[fold == part] = model.predict_proba(X[fold == part])
    table = pq.read_table(finished.folder / "crossfit.parquet")
    assert table["id"].to_pylist() == f.ids
    assert table["fold"].to_pylist() == fold.tolist()
    off = np.abs(np.stack(table["probabilities"].to_numpy()) - expected)
    assert off.mean() < 0.01  # folds are solved to a rough tolerance
    assert off.max() < 0.08
    assert table["label_index"].to_pylist() == f.y.tolist()


def test_a_changed_byte_of_them_is_noticed(finished, tmp_path):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    checksums.check(folder / "crossfit.parquet")
    content = bytearray((folder / "crossfit.parquet").read_bytes())
    content[50] ^= 1
    (folder / "crossfit.parquet").write_bytes(content)
    with pytest.raises(UserError, match="not as it was written"):
        checksums.check(folder / "crossfit.parquet")


def test_a_test_image_that_is_a_training_image_in_other_bytes_is_named_and_shown(finished, copied):
    block = finished.result["diagnostics"]["look_first"]
    assert block["near_duplicates"]["test"] == 1
    pair = next(p for p in block["near_duplicates"]["pairs"] if p["images"][0]["split"] == "test")
    assert "again.jpg" in pair["images"][0]["id"]
    assert pair["images"][1]["id"].endswith(copied[1])
    shown = json.loads((finished.folder / "thumbnails.json").read_text())
    for row in block["classes"]:
        for image in (i for p in row["near_duplicates"][:2] for i in p["images"]):
            assert shown[thumbnails.key(image["split"], image["id"])].startswith("data:image/jpeg")


def test_hard_classes_come_hardest_first_with_a_line_each(finished):
    block = finished.result["diagnostics"]["look_first"]
    accuracy = [row["accuracy"] for row in block["classes"]]
    assert accuracy == sorted(accuracy)
    assert {row["name"] for row in block["classes"]} == set(
        finished.result["test"]["groups"]["hard"]["classes"]
    )
    assert all(row["text"] for row in block["classes"])
    assert "Look at these first" in (finished.folder / "report.html").read_text()


@pytest.mark.parametrize("more", [{"solver": "knn"}, {"groups": "paper", "method": "erm"}])
def test_other_solvers_and_given_groups_have_it_too(more, copied, cache, tmp_path, finished):
    done = run(recipe.build({"backbone": SMALL, "data": str(copied[0]), **more}), cache=cache, out=tmp_path)
    assert done.result["diagnostics"]["look_first"]["near_duplicates"]["test"] == 1
    assert (done.folder / "crossfit.parquet").is_file()


def test_clips_zero_shot_accuracy_is_part_of_the_forecast_and_remembered(colours, tmp_path, monkeypatch):
    weights = tiny_clip.write(tmp_path / "clip")
    backbone = {"name": "open_clip:ViT-B-32", "weights": str(weights)}
    r = recipe.build({"backbone": backbone, "data": str(colours), "method": "erm", "solver": {"l2": 1.0}})
    first = run(r, cache=tmp_path / "cache", out=tmp_path / "runs").result["diagnostics"]["look_first"]
    assert first["forecast"]["by"] == ["spread", "neighbours", "zero-shot"]
    (kept,) = (tmp_path / "cache" / "zero-shot").iterdir()

    b, d = backbones.load(**backbone), probe.data.load(str(colours))
    rows, _ = probe.probing.zero_shot.text_classifier(b, d.class_names, d.templates)
    f = probe.features.extract(b, d["train"], cache=tmp_path / "cache")
    unit = np.asarray(f.X) / np.linalg.norm(np.asarray(f.X), axis=1, keepdims=True)
    guess = (unit @ (rows / rows.norm(dim=1, keepdim=True)).numpy().T).argmax(axis=1)
    expected = [float((guess[f.y == k] == k).mean()) for k in range(4)]
    assert json.loads(kept.read_text())["body"]["accuracy"] == pytest.approx(expected)

    monkeypatch.setattr("probe.runs.look_first.text_classifier", None)  # not needed again
    again = run(r, cache=tmp_path / "cache", out=tmp_path / "again").result["diagnostics"]["look_first"]
    assert again == first
