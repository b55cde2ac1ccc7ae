"""Groups of classes by the test accuracy of another run."""

import json

import pytest

from probe.errors import UserError
from probe.runs import groups

NAMES = ("cat", "dog", "fox")


def result_with(accuracies):
    return json.dumps({"test": {"by_class": [{"name": n, "accuracy": a} for n, a in accuracies.items()]}})


def test_groups_from_a_reference_run(tmp_path):
    (tmp_path / "result.json").write_text(result_with({"fox": 0.9, "dog": 0.2, "cat": 0.5}))
    assert groups.from_run(tmp_path, NAMES) == {"easy": [2], "medium": [0], "hard": [1]}


def test_a_reference_run_on_other_classes_is_refused(tmp_path):
    (tmp_path / "result.json").write_text(result_with({"fox": 0.9, "dog": 0.2}))
    with pytest.raises(UserError, match="same classes"):
        groups.from_run(tmp_path, NAMES)
    with pytest.raises(UserError, match="cannot read the reference run"):
        groups.from_run(tmp_path / "absent", NAMES)
    (tmp_path / "result.json").write_text('{"test": {"by_class": [{"name": "fox", "accuracy": "high"}]}}')
    with pytest.raises(UserError, match="holds no result of a run"):
        groups.from_run(tmp_path, NAMES)
