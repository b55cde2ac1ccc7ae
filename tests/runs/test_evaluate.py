"""`probe evaluate`: an existing head on other images of its classes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

from probe import recipe
from probe.cli import main
from probe.data import judged
from probe.errors import UserError
from probe.runs.evaluate import evaluate
from probe.runs.run import run
from tests.support.painted_images import COLOURS, paint
from tests.support.training_world import tiny_vit


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


@pytest.fixture(scope="module", params=["probe", "tuned"])
def done(request, vit, colours, cache, tmp_path_factory):
    content = {"backbone": {"name": f"timm:{vit}", "image_size": 32}, "data": str(colours), "method": "erm"}
    content |= {"solver": {"l2": 1.0}, "features": {"views": "flip"}} if request.param == "probe" else {}
    if request.param == "tuned":
        content |= {"finetune": True, "train": {"epochs": 2, "batch_size": 16, "lr": 1e-3}}
    return run(recipe.build(content), cache=cache, out=tmp_path_factory.mktemp("runs"))


def test_its_own_test_images_give_its_own_numbers_paired(done, colours, cache, tmp_path):
    found = evaluate(done.folder, str(colours), cache=cache, out=tmp_path)
    assert found.result["test"]["top1"] == done.result["test"]["top1"]
    assert found.result["test"]["groups"].keys() == done.result["test"]["groups"].keys()
    assert found.result["shift"]["paired"]
    assert found.result["shift"]["overall"]["mean"] == 0
    assert found.folder.name == f"{done.folder.name}-on-colours"
    assert {"result.json", "predictions.parquet", "report.html"} <= {p.name for p in found.folder.iterdir()}


def test_a_damaged_copy_of_the_test_images_is_paired_with_them(done, colours, cache, tmp_path):
    root = tmp_path / "dark"
    shutil.copytree(colours, root)
    for path in root.rglob("test/**/*.png"):
        Image.fromarray(np.asarray(Image.open(path)) // 8).save(path)
    shift = evaluate(done.folder, str(root), cache=cache, out=tmp_path).result["shift"]
    assert shift["paired"]
    assert shift["overall"]["ci"][0] <= shift["overall"]["mean"] <= shift["overall"]["ci"][1]


def test_other_images_of_some_classes_are_compared_unpaired_and_the_subset_is_said(done, cache, tmp_path):
    root, rng = tmp_path / "few", np.random.default_rng(5)
    for name in ("red", "blue"):
        paint(root / name, COLOURS[name], 6, rng)
    result = evaluate(done.folder, str(root), cache=cache, out=tmp_path).result
    assert not result["shift"]["paired"]
    assert result["shift"]["same_classes"]["classes"] == 2
    assert "few has 2 of the 4 classes; predictions are among all 4" in result["remarks"]
    assert [row["n"] for row in result["test"]["by_class"]] == [6, 0, 0, 6]
    among = evaluate(done.folder, str(root), among="present", cache=cache, out=tmp_path)
    assert {int(k) for k in among.predictions[0].prediction} <= {0, 3}
    assert among.result["test"]["top1"] >= result["test"]["top1"]


def test_unknown_classes_are_one_line(done, cache, tmp_path):
    paint(tmp_path / "odd" / "purple", (120, 0, 120), 3, np.random.default_rng(0))
    paint(tmp_path / "odd" / "red", (200, 0, 0), 3, np.random.default_rng(0))
    with pytest.raises(UserError, match="1 of 2 classes are none of the 4 that the head knows: purple"):
        evaluate(done.folder, str(tmp_path / "odd"), cache=cache, out=tmp_path)


def test_the_command_prints_the_table_the_shift_and_json(done, colours, cache, tmp_path):
    words = [
        "evaluate",
        str(done.folder),
        "--data",
        str(colours),
        "--cache",
        str(cache),
        "--out",
        str(tmp_path),
    ]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    assert "against the run's own test (the same images, paired): 0.0 points" in shown.output
    assert json.loads(CliRunner().invoke(main, [*words, "--json"]).output)["evaluates"] == done.folder.name


def test_shifted_imagenets_are_matched_by_the_names_of_their_folders(tmp_path):
    ids = judged.wordnet_ids()
    assert len(ids) == 1000
    names = [f"class {k}" for k in range(1000)]
    paint(tmp_path / "r" / ids[7], (9, 9, 9), 2, np.random.default_rng(0))
    paint(tmp_path / "r" / ids[950], (9, 9, 9), 1, np.random.default_rng(0))
    found = judged.read("imagenet-r", names, root=str(tmp_path / "r"), cache=tmp_path)
    assert found.split.labels.tolist() == [7, 7, 950]
    assert found.among_present
    paint(tmp_path / "v2" / "12", (9, 9, 9), 2, np.random.default_rng(0))
    found = judged.read("imagenet-v2", names, root=str(tmp_path / "v2"), cache=tmp_path)
    assert found.split.labels.tolist() == [12, 12]
    assert not found.among_present
    with pytest.raises(UserError, match="imagenet-a is read from a local copy: give --root FOLDER"):
        judged.read("imagenet-a", names)


@pytest.mark.parametrize("kind", ["csv", "csv with splits", "parquet", "Test"])
def test_tables_and_folders_of_any_kind_are_judged(kind, tmp_path):
    paint(tmp_path / "d" / "blue", COLOURS["blue"], 2, np.random.default_rng(0))
    paint(tmp_path / "d" / "red", COLOURS["red"], 2, np.random.default_rng(1))
    files = sorted(p.relative_to(tmp_path / "d").as_posix() for p in (tmp_path / "d").rglob("*.png"))
    place, expected = tmp_path / "t.csv", 4
    if kind == "csv":
        place.write_text("path,label\n" + "".join(f"d/{f},{f.split('/')[0]}\n" for f in files))
    elif kind == "csv with splits":
        told = ["train", "test", "train", "test"]
        rows = zip(files, told, strict=True)
        place.write_text("path,label,split\n" + "".join(f"d/{f},{f.split('/')[0]},{s}\n" for f, s in rows))
        expected = 2
    elif kind == "parquet":
        place = tmp_path / "test-00000-of-00001.parquet"
        images = [{"bytes": (tmp_path / "d" / f).read_bytes(), "path": None} for f in files]
        pq.write_table(pa.table({"image": images, "label": [f.split("/")[0] for f in files]}), place)
    else:
        place = tmp_path / "folder"
        place.mkdir()
        (tmp_path / "d").rename(place / kind)
    found = judged.read(str(place), list(COLOURS), cache=tmp_path)
    assert len(found.split) == expected
    assert [list(COLOURS)[k] for k in found.present] == [c for c in COLOURS if c in ("blue", "red")]


@pytest.mark.parametrize("tuned", [False, True])
def test_every_seed_is_judged_and_one_can_be_chosen(tuned, vit, colours, cache, tmp_path):
    content = {"backbone": {"name": f"timm:{vit}", "image_size": 32}, "data": str(colours), "method": "erm"}
    content |= {"seeds": 2, "train": {"epochs": 1, "batch_size": 16, "lr": 0.01}}
    content |= {"finetune": True} if tuned else {"solver": {"name": "sgd", "l2": 1.0}}
    done = run(recipe.build(content), cache=cache, out=tmp_path / "runs")
    found = evaluate(done.folder, str(colours), cache=cache, out=tmp_path)
    assert found.result["test"]["top1"] == done.result["test"]["top1"]
    assert [row["seed"] for row in found.result["seeds"]] == [0, 1]
    for mine, own in zip(found.predictions, done.predictions, strict=True):
        assert mine.seed == own.seed
        assert np.allclose(mine.true_probability, own.true_probability, atol=1e-5)
    assert found.result["shift"]["paired"]
    assert found.result["shift"]["overall"]["mean"] == 0
    one = evaluate(done.folder, str(colours), seed=1, cache=cache, out=tmp_path)
    assert np.array_equal(one.predictions[0].prediction, found.predictions[1].prediction)
    assert one.result["remarks"][0].startswith(f"{done.folder.name} (seed 1)")
    with pytest.raises(UserError, match="holds no head of seed 2; it has those of seeds 0, 1"):
        evaluate(done.folder, str(colours), seed=2, cache=cache, out=tmp_path)
