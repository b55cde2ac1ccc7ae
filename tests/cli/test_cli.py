"""The command line: quick to answer, and clear about mistakes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from probe.cli import main
from tests.support import ROOT

OFFLINE = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}  # nothing listens there


def invoke(*words, **options):
    return CliRunner().invoke(main, [str(word) for word in words], **options)


LISTS = [["backbones"], ["datasets"], ["methods"], ["recipes"], ["cache", "ls"]]


@pytest.mark.parametrize("words", [["--help"], *LISTS])
def test_help_and_listings_load_no_heavy_library(words, tmp_path):
    code = f"""
import sys
sys.argv = ["probe", *{words!r}]
from probe.cli import main
try:
    main()
finally:
    heavy = {{"torch", "timm", "transformers", "datasets", "sklearn", "pandas", "pyarrow"}} & set(sys.modules)
    assert not heavy, heavy
"""
    environment = {**os.environ, "PROBE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("listing", ["backbones", "datasets", "methods"])
def test_listings_as_json_hold_what_the_table_shows(listing):
    rows = json.loads(invoke(listing, "--json").output)
    table = invoke(listing).output
    assert len(rows) >= 10
    assert all(row["name"] in table for row in rows)


def test_a_run_prints_its_table_and_json_on_request(colours, cache, tmp_path):
    words = ["run", "--backbone", "effnet-lite0", "--image-size", "32", "--data", colours]
    places = ["--cache", cache, "--out", tmp_path]
    done = invoke(*words, *places)
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("overall", "easy", "hard", "vs erm", "margins", "saved"))
    *table, saved, following = done.output.splitlines()
    assert max(map(len, table)) <= 80
    assert saved.startswith("saved: ")
    assert following.startswith("next: probe improve --backbone effnet-lite0 --data ")
    done = invoke(*words, *places, "--json")
    assert json.loads(done.output)["test"]["groups"].keys() == {"easy", "medium", "hard"}


def test_flags_recipes_and_overrides_say_the_same_thing(colours, cache, tmp_path):
    (tmp_path / "r.yaml").write_text(
        f"backbone: {{name: effnet-lite0, image_size: 32}}\ndata: {colours}\nmethod: mr2\n"
    )
    places = ["--cache", cache, "--out", tmp_path / "runs", "--json"]
    by_file = json.loads(invoke("run", tmp_path / "r.yaml", "solver.l2=2", *places).output)
    flags = ["--image-size", "32", "--data", colours, "--method", "mr2", "--l2", "2"]
    by_flags = json.loads(invoke("run", *flags, *places).output)
    assert by_file["recipe"] == by_flags["recipe"]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_extract_fills_the_cache_that_ls_lists_verify_checks_and_rm_empties(colours, tmp_path):
    place = ["--cache", tmp_path / "cache"]
    words = ["extract", "--image-size", "32", "--data", colours, *place]
    assert "images/s" in invoke(*words).output
    assert "cached" in invoke(*words).output
    assert [row["cached"] for row in json.loads(invoke(*words, "--json").output)] == [True, True]
    listed = json.loads(invoke("cache", "ls", "--json", *place).output)
    assert sorted(row["rows"] for row in listed) == [32, 60]
    assert json.loads(invoke("cache", "verify", "--json", *place).output) == []
    shard = next(Path(listed[0]["path"]).glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    damaged = invoke("cache", "verify", *place)
    assert damaged.exit_code == 1
    assert shard.name in damaged.output
    names = json.loads(invoke("cache", "rm", "--all", "--json", *place).output)
    assert sorted(names) == sorted(row["name"] for row in listed)
    assert json.loads(invoke("cache", "ls", "--json", *place).output) == []


def test_predict_prints_the_top_classes(colours, cache, tmp_path):
    words = ["run", "--image-size", "32", "--data", colours, "--cache", cache, "--out", tmp_path, "--l2", "1"]
    assert invoke(*words).exit_code == 0
    [folder] = tmp_path.iterdir()
    image = next((colours / "test" / "red").glob("*.png"))
    done = invoke("predict", folder, image, "--top", "2")
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 3
    missing = invoke("predict", folder, tmp_path / "no.png")
    assert missing.exit_code == 2
    assert "no.png" in missing.output
    (folder / "bad.png").write_text("no image")
    bad = invoke("predict", folder, folder / "bad.png")
    assert bad.exit_code == 2
    assert "bad.png: not an image; fix it, or give --skip-bad-images" in bad.output


def folder(root: Path, layout: dict[str, list[str]]) -> Path:
    for split, classes in layout.items():
        for name in classes:
            (root / split / name).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / split / name / "1.png")
            Image.fromarray(np.ones((8, 8, 3), np.uint8)).save(root / split / name / "2.png")
    return root


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone", "clip-rn5"], "clip-rn50"),
        (["--data", "pest"], "pets"),
        (["--method", "mr3"], "mr2"),
        (["--data", "/no/such/folder"], "/no/such/folder"),
        (["--solver", "newton"], "lbfgs"),
        (["--seeds", "0"], "seeds"),
        (["--l2", "-1"], "l2"),
        (["sedes=3"], "seeds"),
        (["--weights", "/no/such/file"], "/no/such/file"),
        (["no-recipe.yaml"], "no-recipe.yaml"),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing_behind(words, message, tmp_path):
    done = invoke("run", "--cache", tmp_path / "cache", "--out", tmp_path / "runs", *words)
    assert done.exit_code == 2
    assert message in done.output
    assert done.output.startswith("error: ")
    assert len(done.output.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"test": ["a", "b"]}, "train"),
        ({"train": ["a"], "test": ["a"]}, "one class"),
        ({"train": ["a", "b"], "test": ["a", "c"]}, "c"),
    ],
)
def test_a_folder_that_cannot_be_probed_is_named(layout, message, tmp_path):
    root = folder(tmp_path / "data", layout)
    done = invoke("run", "--data", root, "--cache", tmp_path / "cache", "--out", tmp_path / "runs")
    assert done.exit_code == 2
    assert message in done.output
    assert str(root) in done.output
    assert not (tmp_path / "runs").exists()


def test_a_corrupt_image_stops_the_run_with_its_path_or_is_skipped_and_counted(tmp_path):
    root = folder(tmp_path / "data", {"train": ["a", "b", "c"], "test": ["a", "b", "c"]})
    for name in "abc":
        for i in range(3, 9):
            noise = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / "train" / name / f"{i}.png")
    (root / "train" / "b" / "bad.png").write_bytes(b"not an image")
    words = [
        "run",
        "--data",
        root,
        "--image-size",
        "32",
        "--cache",
        tmp_path / "cache",
        "--out",
        tmp_path / "r",
    ]
    stopped = invoke(*words, "--l2", "1")
    assert stopped.exit_code == 2
    assert "bad.png" in stopped.output
    skipped = invoke(*words, "--l2", "1", "--skip-bad-images")
    assert skipped.exit_code == 0, skipped.output
    assert "1 images could not be read" in skipped.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(["--backbone", "clip-rn50"], "timm/resnet50_clip.openai"), (["--data", "food101"], "ethz/food101")],
)
def test_an_offline_hub_is_said_within_seconds_with_the_way_out(words, wanted, tmp_path):
    places = ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "probe.cli", "run", *words, *places]
    home = {**OFFLINE, "HF_HOME": str(tmp_path / "hub")}
    imports = [sys.executable, "-c", "import torch, timm, open_clip, huggingface_hub"]
    subprocess.run(imports, env=home, capture_output=True)  # warm: the claim is about waiting, not importing
    start = time.monotonic()
    done = subprocess.run(command, env=home, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - start < 25  # 5 s of waiting at most, the rest is imports on a busy machine
    assert done.returncode == 2
    assert wanted in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_cache_and_a_full_disk_are_one_line(colours, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["run", "--data", str(colours), "--image-size", "32", "--out", str(tmp_path / "runs")]
    blocked = invoke(*words, "--cache", tmp_path / "file" / "cache")
    assert blocked.exit_code == 2
    assert len(blocked.output.strip().splitlines()) == 1
    command = f"ulimit -f 20; exec {sys.executable} -m probe.cli " + " ".join(words)
    done = subprocess.run(
        ["bash", "-c", f"{command} --cache {tmp_path / 'small'}"], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "file size limit" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_doctor_finds_this_machine_fit(tmp_path):
    done = invoke("doctor", "--cache", tmp_path)
    assert done.exit_code == 0, done.output
    assert "effnet-lite0 loads" in done.output
    findings = json.loads(invoke("doctor", "--cache", tmp_path, "--json").output)
    assert all(finding["ok"] is not False for finding in findings)


def test_hostile_make_variables_are_only_words(tmp_path):
    mark = tmp_path / "mark"
    value = f"$(touch {mark})`touch {mark}`; touch {mark}'; touch {mark}\"; touch {mark} $$(touch {mark})"
    command = ["make", "probe", f"DATA={value}", f"BACKBONE={value}", f"METHOD={value}", f"SEEDS={value}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert not mark.exists()


@pytest.mark.parametrize(
    "words", [["run", "--nope"], ["--nope"], ["nope"], ["run", "--seeds", "x\n\x1b[31m"]]
)
def test_a_mistake_in_the_words_is_one_line_too(words):
    done = invoke(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr[:-1].isprintable()
    assert "--help" in done.stderr
