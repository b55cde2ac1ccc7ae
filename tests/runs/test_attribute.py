"""`data.attribute` and `method.groups`: from a column beside the images to results, tables and the page."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.runs.run import run
from tests.support.training_world import tiny_vit

HEADER = "file_name,camera,serial\n"


def camera(path):
    return "old" if int(path.stem) % 4 == 0 else "new <b>"


@pytest.fixture(scope="module")
def photographed(colours, tmp_path_factory):
    """The colours with a camera for each image; red has no training image of the old one."""
    root = tmp_path_factory.mktemp("photographed") / "colours"
    shutil.copytree(colours, root)
    rows = []
    for path in sorted(root.rglob("*.png")):
        name = path.relative_to(root).as_posix()
        value = "new <b>" if name.startswith("train/red") else camera(path)
        rows.append(f"{name},{value},{name}\n")
    (root / "metadata.csv").write_text(HEADER + "".join(rows))
    return root


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    tiny_vit(folder)
    return folder


def content(vit, images, *, data=None, **more):
    backbone = {"name": f"timm:{vit}", "image_size": 32}
    made = {"backbone": backbone, "method": "dro", "solver": {"l2": 1.0}, **more}
    made["data"] = {"name": str(images), "attribute": "camera", **(data or {})}
    if more.get("finetune") or made["solver"].get("name") == "sgd":
        made["train"] = {"epochs": 2, "batch_size": 16, "lr": 1e-3}
    return made


def test_a_run_shows_every_value_the_cells_and_the_gap(vit, photographed, cache, tmp_path):
    done = run(recipe.build(content(vit, photographed)), cache=cache, out=tmp_path)
    block = done.result["attribute"]
    assert [(row["value"], row["n"], row["train_n"]) for row in block["test"]["values"]] == [
        ("new <b>", 24, 48),
        ("old", 8, 12),
    ]
    assert len(block["test"]["cells"]) == 8
    own = done.predictions[0].prediction
    ids = sorted(p.relative_to(photographed).as_posix() for p in (photographed / "test").rglob("*.png"))
    right = {i: own[n] == n // 8 for n, i in enumerate(ids)}
    old = np.mean([ok for i, ok in right.items() if int(i[-6:-4]) % 4 == 0])
    assert block["test"]["values"][1]["accuracy"] == pytest.approx(old)
    assert block["versus"]["gain"].keys() == {"new <b>", "old"}
    page = (done.folder / "report.html").read_text()
    assert "Accuracy by camera" in page
    assert "new &lt;b&gt;" in page
    assert "new <b> minus" not in page


@pytest.mark.parametrize("how", [{}, {"solver": {"name": "sgd", "l2": 1.0}}, {"finetune": True}])
@pytest.mark.parametrize("method", ["dro(groups=attribute)", "cb(groups=both)"])
def test_methods_act_on_the_groups_by_every_way_to_a_head(vit, photographed, cache, tmp_path, how, method):
    r = recipe.build(content(vit, photographed, method=method, **how))
    result = run(r, cache=cache, out=tmp_path).result
    assert result["recipe"]["method"]["groups"] == r.method.groups
    assert method.split(")")[0] in result["method"]
    empty = [line for line in result["remarks"] if "no training images" in line]
    if method.startswith("cb") and not how.get("finetune"):
        assert empty == ["1 of 8 groups have no training images and get no weight: red, camera=old"]
    elif not how.get("finetune"):
        assert empty == []


def test_fairdro_acts_on_groups_after_every_pass(vit, photographed, cache, tmp_path):
    words = {"solver": {"name": "sgd", "l2": 1.0}, "method": "fairdro(groups=both, every=pass)"}
    result = run(recipe.build(content(vit, photographed, **words)), cache=cache, out=tmp_path).result
    assert 0 < result["test"]["top1"] <= 1


def test_the_old_name_of_a_run_does_not_change():
    plain = recipe.build({"method": "dro", "data": "digits"})
    assert (
        plain.digest == recipe.build({"method": {"name": "dro", "groups": "class"}, "data": "digits"}).digest
    )
    assert plain.digest != recipe.build({"method": "dro(groups=both)", "data": "digits"}).digest


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"data": {"attribute": "lens"}}, 'has no column "lens"'),
        ({"data": {"attribute": None}, "method": "dro(groups=both)"}, "needs data.attribute=COLUMN"),
        (
            {"method": "la(groups=both)"},
            "la takes no method.groups: it acts on classes; cb, dro, fairdro act",
        ),
        ({"method": "jtt(groups=both)"}, "jtt takes no method.groups: it finds its images by their errors"),
        ({"method": "dro(groups=both, sharpness=[1, 2])"}, "without ranges; give one value"),
        ({"data": {"attribute": "serial"}}, None),
    ],
)
def test_what_cannot_be_is_one_line(vit, photographed, cache, tmp_path, more, told):
    if told is None:  # 92 values: allowed, as many as there are images
        assert run(recipe.build(content(vit, photographed, **more)), cache=cache, out=tmp_path).result[
            "attribute"
        ]
        return
    with pytest.raises(UserError, match=told.replace("(", r"\(")) as error:
        run(recipe.build(content(vit, photographed, **more)), cache=cache, out=tmp_path)
    assert "\n" not in str(error.value)


def test_the_terminal_shows_values_gap_and_worst_group(vit, photographed, cache, tmp_path):
    words = ["run", f"--backbone=timm:{vit}", "--image-size", "32", f"--data={photographed}", "--l2", "1"]
    places = ["--cache", str(cache), "--out", str(tmp_path)]
    done = CliRunner().invoke(main, [*words, "data.attribute=camera", *places])
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("by camera", "new <b> minus old:", "worst group: "))
    [folder] = tmp_path.iterdir()
    assert json.loads((folder / "result.json").read_text())["attribute"]["name"] == "camera"


def test_a_missing_value_is_named(photographed, vit, cache, tmp_path):
    root = tmp_path / "holes"
    shutil.copytree(photographed, root)
    lines = (root / "metadata.csv").read_text().splitlines()
    (root / "metadata.csv").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(
        UserError, match=r"data\.attribute=camera: 1 images of t.* have no value, the first is"
    ):
        run(recipe.build(content(vit, root)), cache=cache, out=tmp_path)
