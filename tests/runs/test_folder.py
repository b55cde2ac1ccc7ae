"""A run folder is written whole, checked when it is read, and its file names are written down once."""

import ast
import json
import shutil

import pytest

from probe.errors import UserError
from probe.runs import folder
from probe.runs.folder import RunFolder
from tests.support import ROOT

RESULT = {"test": {"top1": 0.5}}


def written(path):
    with RunFolder(path).replaced() as new:
        new.write_result(RESULT)
        new.write_page("<p>a page</p>")
    return RunFolder(path)


def test_what_was_written_is_read_and_a_changed_byte_is_noticed(tmp_path):
    run = written(tmp_path / "run")
    assert run.result() == RESULT
    (run.path / folder.PAGE).write_text("drawn again")
    assert run.result() == RESULT
    (run.path / folder.RESULT).write_text(json.dumps({"test": {"top1": 0.6}}))
    with pytest.raises(UserError, match="not as it was written"):
        run.result()


def test_a_failed_writer_leaves_the_older_folder_as_it_was(tmp_path):
    run = written(tmp_path / "run")

    def interrupted():
        with run.replaced() as new:
            new.write_result({"test": {"top1": 1.0}})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert run.result() == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_result_file_can_be_named_by_itself(tmp_path):
    run = written(tmp_path / "run")
    shutil.copy(run.path / folder.RESULT, tmp_path / "other.json")
    assert folder.read_result(tmp_path / "other.json") == folder.read_result(run.path) == RESULT


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "is not a run"), ("{", "cannot read"), ("[]", "no result"), ("{}", "no result")],
)
def test_what_is_no_run_is_named_in_one_line(tmp_path, content, says):
    if content is not None:
        (tmp_path / folder.RESULT).write_text(content)
    with pytest.raises(UserError, match=says) as caught:
        RunFolder(tmp_path).result()
    assert "\n" not in str(caught.value)


def test_a_comparison_without_predictions_says_what_is_missing(tmp_path):
    run = written(tmp_path / "run")
    assert not run.has_predictions
    with pytest.raises(UserError, match=r"has no predictions\.parquet, which a comparison needs"):
        run.checked_predictions()


NAMES = {
    *("result.json", "recipe.yaml", "log.jsonl", "report.html", "predictions.parquet"),
    *("head.safetensors", "crossfit.parquet", "training_images.parquet", "thumbnails.json", "SHA256SUMS"),
}


def test_every_file_name_of_a_run_is_written_in_one_module():
    """As a string of its own; docstrings and messages may name a file."""
    homes = {name: set() for name in NAMES}
    for path in (ROOT / "probe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in NAMES:
                homes[node.value].add(path.relative_to(ROOT).as_posix())
    assert {name: len(files) for name, files in homes.items()} == dict.fromkeys(NAMES, 1), homes
