"""`probe predict`: folders, patterns and tables in, text, CSV or parquet out, bad images named."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from datasets import Dataset

from probe import recipe
from probe.cli import main
from probe.data.unlabelled import Unlabelled
from probe.errors import UserError
from probe.runs.predict import predictions
from probe.runs.run import run
from tests.support.training_world import tiny_vit


@pytest.fixture(scope="module")
def folder(colours, cache, tmp_path_factory):
    vit = tmp_path_factory.mktemp("vit")
    tiny_vit(vit)
    content = {"backbone": {"name": f"timm:{vit}", "image_size": 32}, "data": str(colours), "method": "erm"}
    out = tmp_path_factory.mktemp("runs")
    return run(recipe.build({**content, "solver": {"l2": 1.0}}), cache=cache, out=out).folder


def invoke(*words):
    return CliRunner().invoke(main, ["predict", *map(str, words)])


@pytest.fixture
def tables(colours, tmp_path):
    files = sorted((colours / "test" / "red").glob("*.png"))
    (tmp_path / "t.csv").write_text("id,path\n" + "".join(f"{i},{f}\n" for i, f in enumerate(files)))
    pq.write_table(pa.table({"path": [str(f) for f in files]}), tmp_path / "paths.parquet")
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    stored = pa.array([{"bytes": f.read_bytes(), "path": f.name} for f in files], struct)
    pq.write_table(pa.table({"image": stored}), tmp_path / "images.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"image": str(f)}) + "\n" for f in files))
    (tmp_path / "semicolons.csv").write_text("id;path\n" + "".join(f"1;{f}\n" for f in files))
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for file in files:  # names with dots, which tell samples apart only where there are labels
            tar.add(file, f"inbox/photo.{file.stem}.png")
    (tmp_path / "shards").mkdir()
    for number, part in enumerate((stored[:5], stored[5:])):
        pq.write_table(pa.table({"image": part}), tmp_path / "shards" / f"part-{number}.parquet")
    Dataset.from_dict({"image": stored.to_pylist()}).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "cache-1a2b.arrow").write_bytes(b"left by a map")
    return tmp_path


def test_every_kind_of_source_gives_the_same_predictions(folder, colours, tables):
    test = colours / "test" / "red"
    names = ("t.csv", "semicolons.csv", "t.jsonl", "paths.parquet", "images.parquet", "shard.tar", "shards")
    sources = [test, test / "*.png", *(tables / name for name in (*names, "saved"))]
    found = [[row.classes for row in predictions(folder, [source], top=2)] for source in sources]
    assert len(found[0]) == 8
    assert all(other == found[0] for other in found[1:])


def test_a_table_is_written_as_csv_and_as_parquet_whose_names_datasets_shows(folder, colours, tmp_path):
    from datasets import load_dataset

    rows = [row.as_dict() for row in predictions(folder, [colours / "test"], top=3)]
    assert invoke(folder, colours / "test", "--top", 3, "--to", tmp_path / "p.csv").exit_code == 0
    with (tmp_path / "p.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["prediction"] for row in table] == [row["classes"][0]["name"] for row in rows]
    assert [row["prediction_3"] for row in table] == [row["classes"][2]["name"] for row in rows]
    assert invoke(folder, colours / "test", "--top", 3, "--to", tmp_path / "p.parquet").exit_code == 0
    loaded = load_dataset("parquet", data_files=str(tmp_path / "p.parquet"), cache_dir=str(tmp_path))["train"]
    label = loaded.features["prediction"]
    assert [label.int2str(k) for k in loaded["prediction"]] == [row["prediction"] for row in table]


def test_bad_images_are_fatal_or_named_and_left_out(folder, colours, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    good = next((colours / "test" / "red").glob("*.png"))
    words = (folder, tmp_path / "bad.png", tmp_path / "gone.png", good)
    refused = invoke(*words)
    assert refused.exit_code == 2
    assert "fix it, or give --skip-bad-images" in refused.output
    kept = invoke(*words, "--skip-bad-images", "--to", tmp_path / "p.csv")
    assert kept.exit_code == 0
    assert "1 predictions in" in kept.output
    assert "left out: bad image" in kept.output
    assert "gone.png: No such file" in kept.output


def test_what_cannot_be_read_or_written_is_one_line(folder, colours, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "w.csv").write_text("path\nred\\0.png\n")
    (tmp_path / "gap.csv").write_text("path,id\nred.png,1\n,2\n")
    (tmp_path / "photos.tar.gz").write_bytes(b"\x1f\x8b packed")
    for words, told in (
        ((tmp_path / "t.csv",), "has no column of images; call it path or image (it has a, b)"),
        ((tmp_path / "empty",), "no images in"),
        ((tmp_path / "*.jpeg",), "no images in"),
        ((tmp_path / "w.csv",), "its path has backslashes, as on Windows: write / instead"),
        ((tmp_path / "gap.csv",), "row 2 has no path of an image"),
        (
            (tmp_path / "photos.tar.gz",),
            "what is read is image files, folders, patterns, or tables and shards",
        ),
        ((colours, "--to", "x.txt"), "neither .csv nor .parquet"),
        ((colours, "--to", "x.csv", "--json"), "choose one"),
    ):
        done = invoke(folder, *words)
        assert done.exit_code == 2
        assert told in done.output
        assert done.output.count("\n") == 1
    with pytest.raises(UserError):
        predictions(folder, [tmp_path / "t.csv"])


def test_only_a_few_images_of_a_table_are_in_memory(tables):
    images = iter(Unlabelled([str(tables / "images.parquet")]))
    first = next(images)
    assert first.read() == (Path(str(first.name).split(":")[0]) and first.content)
    assert len(list(images)) == 7


def test_json_holds_the_classes(folder, colours):
    rows = json.loads(invoke(folder, colours / "test" / "red", "--top", 1, "--json").output)
    assert len(rows) == 8
    assert rows[0].keys() == {"image", "classes"}
