"""Files that are no files, or larger than any that is meant so, cost one line and no time."""

import json
import os
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backbones
from probe.errors import UserError
from probe.evaluation import external
from probe.system import checksums
from probe.train.parallel import deepspeed_config, fsdp_config

pytestmark = pytest.mark.timeout(60)  # a pipe would be waited for without end


def sparse(path):
    with path.open("wb") as file:
        file.truncate(3 << 30)  # takes no space


def endless(path):
    path.symlink_to("/dev/zero")


HOSTILE = pytest.mark.parametrize("hostile", [sparse, os.mkfifo, endless])


@HOSTILE
def test_a_list_of_checksums(tmp_path, hostile):
    (tmp_path / "result.json").write_text("{}")
    hostile(tmp_path / checksums.FILE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (checksums.check, checksums.read):
        with pytest.raises(UserError, match=r"cannot check .*: it (has|is)"):
            read(tmp_path / "result.json")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@HOSTILE
@pytest.mark.parametrize(
    ("name", "config"),
    [("timm", "config.json"), ("hf", "config.json"), ("open_clip", "open_clip_config.json")],
)
def test_the_configuration_of_a_model(tmp_path, hostile, name, config):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    hostile(tmp_path / config)
    with pytest.raises(UserError):
        backbones.load(f"{name}:{tmp_path}")


@HOSTILE
def test_an_accelerate_or_deepspeed_configuration(tmp_path, hostile):
    hostile(tmp_path / "c.yaml")
    with pytest.raises(UserError, match=r"it (has|is)"):
        fsdp_config.read(tmp_path / "c.yaml")
    hostile(tmp_path / "c.json")
    with pytest.raises(UserError, match=r"it (has|is)"):
        deepspeed_config._json(tmp_path / "c.json")


def test_predictions_of_more_rows_than_bytes(tmp_path):
    column = pa.array([0] * 300_000)
    table = pa.table({"id": column, "label": column, "prediction": column})
    pq.write_table(table, tmp_path / "p.parquet", compression="zstd")
    with pytest.raises(UserError, match="300,000 rows in"):
        external.read(tmp_path / "p.parquet")


def test_predictions_with_a_column_twice(tmp_path):
    column = pa.array([0, 1])
    table = pa.Table.from_arrays([column, column, column, column], ["id", "label", "label", "prediction"])
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(UserError, match='2 columns called "label"'):
        external.read(tmp_path / "p.parquet")


def test_predictions_in_any_text_type_are_read_by_name(tmp_path):
    kind = pa.dictionary(pa.int8(), pa.string())
    table = pa.table(
        {
            "id": pa.array(["a", "b", "a", "b"], kind),
            "label": pa.array(["dog", "cat", "dog", "cat"], pa.large_string()),
            "prediction": pa.array(["dog", "dog", "cat", "cat"], kind),
            "method": pa.array(["erm", "erm", "mr2", "mr2"], kind),
        }
    ).replace_schema_metadata({"class_names": json.dumps(["dog", "cat"])})
    pq.write_table(table, tmp_path / "p.parquet")
    found = external.read(tmp_path / "p.parquet")
    assert found.class_names == ("dog", "cat")
    assert found.labels.tolist() == [0, 1]
    assert found.prediction["mr2"].tolist() == [[1, 1]]


def test_predictions_that_mix_names_and_numbers_are_refused_unless_the_names_are_listed(tmp_path):
    table = pa.table({"id": ["a", "b"], "label": ["dog", "cat"], "prediction": [0, 1]})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(UserError, match="names in one column and integers in the other"):
        external.read(tmp_path / "p.parquet")
    pq.write_table(
        table.replace_schema_metadata({"class_names": json.dumps(["dog", "cat"])}), tmp_path / "p.parquet"
    )
    assert external.read(tmp_path / "p.parquet").prediction["model"].tolist() == [[0, 1]]


def test_predictions_of_a_run_that_are_gigabytes_are_not_even_hashed(tmp_path):
    from probe.runs import report

    (tmp_path / checksums.FILE).write_text(f"{'0' * 64}  predictions.parquet\n")
    sparse(tmp_path / "predictions.parquet")
    with pytest.raises(UserError, match=r"it has 3,221 MB, and at most"):
        report.report(tmp_path / "predictions.parquet")
