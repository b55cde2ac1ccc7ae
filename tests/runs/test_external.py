"""Predictions from elsewhere give the same result as a run would."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probe.errors import UserError
from probe.runs import external

LABELS = np.repeat([0, 1, 2], 10)
NAMES = ["cat", "dog", "fox"]


def write(path, **columns):
    metadata = columns.pop("metadata", None)
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)
    return path


def guesses(*right):
    """The first `right` images of each class are correct, the rest are mistaken for the next class."""
    return np.concatenate([[k] * r + [(k + 1) % 3] * (10 - r) for k, r in enumerate(right)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "predictions.parquet"


def test_labels_and_predictions_are_enough(path):
    result = external.result(write(path, id=np.arange(30), label=LABELS, prediction=guesses(10, 5, 2)))
    assert result["test"]["top1"] == pytest.approx(17 / 30)
    assert [row["name"] for row in result["test"]["by_class"]] == ["0", "1", "2"]
    assert result["versus"] is None
    assert list(result["test"]["groups"]) == ["all"]
    assert "nothing ranks the classes" in result["remarks"][0]
    first = result["diagnostics"]["confusions"][0]
    assert (first["true"], first["predicted"], first["count"]) == ("2", "0", 8)
    json.dumps(result, allow_nan=False)


def test_names_scores_methods_and_seeds_are_understood(path):
    rng = np.random.default_rng(0)
    columns = {"id": [], "label": [], "scores": [], "method": [], "seed": []}
    for method, strength in (("erm", 0.5), ("mr2", 3.0)):
        for seed in range(5):
            scores = rng.normal(size=(30, 3)) + strength * np.eye(3)[LABELS]
            columns["id"] += [f"image {i}" for i in range(30)]
            columns["label"] += [NAMES[k] for k in LABELS]
            columns["scores"] += scores.tolist()
            columns["method"] += [method] * 30
            columns["seed"] += [seed] * 30
    result = external.result(write(path, **columns))
    assert result["method"] == "mr2"
    assert result["versus"]["method"] == "erm"
    assert result["versus"]["gain"]["overall"]["clear"]
    assert result["test"]["top5"] == 1
    assert result["test"]["ece"] is not None
    assert [row["name"] for row in result["test"]["by_class"]] == NAMES
    assert sum(result["diagnostics"]["methods"]["mr2"]["g_n"]) > 0
    assert "flatters" in result["remarks"][0]


def test_the_order_of_rows_does_not_matter(path, tmp_path):
    order = np.random.default_rng(0).permutation(30)
    one = external.result(write(path, id=np.arange(30), label=LABELS, prediction=guesses(10, 5, 2)))
    other = write(tmp_path / "b.parquet", id=order, label=LABELS[order], prediction=guesses(10, 5, 2)[order])
    assert external.result(other)["test"] == one["test"]


def test_probabilities_are_not_squashed_again(path):
    scores = np.full((30, 3), 0.1) + 0.7 * np.eye(3)[LABELS]
    result = external.result(write(path, id=np.arange(30), label=LABELS, scores=scores.tolist()))
    assert result["test"]["ece"] == pytest.approx(0.2)


def test_groups_can_come_from_a_file(path, tmp_path):
    (tmp_path / "groups.json").write_text(json.dumps({"easy": ["cat"], "hard": ["dog", "fox"]}))
    names = {"class_names": json.dumps(NAMES)}
    write(path, id=np.arange(30), label=LABELS, prediction=guesses(10, 5, 2), metadata=names)
    result = external.result(path, groups=str(tmp_path / "groups.json"))
    assert result["test"]["groups"]["hard"]["accuracy"] == pytest.approx(0.35)


BAD = {
    "needs the columns": {"id": [1], "label": [0]},
    "holds no predictions": {"id": [], "label": [], "prediction": []},
    "row 1: prediction 7 is not one of the 3 classes": {
        "id": [1, 2],
        "label": [0, 1],
        "prediction": [0, 7],
        "metadata": {"class_names": json.dumps(NAMES)},
    },
    "an id occurs twice": {"id": [1, 1], "label": [0, 1], "prediction": [0, 1]},
    "different images or labels": {
        "id": [1, 2, 1, 3],
        "label": [0, 1, 0, 1],
        "prediction": [0, 1, 0, 1],
        "method": ["erm", "erm", "mr2", "mr2"],
    },
    "keep one": {
        "id": [1, 1, 1],
        "label": [0, 0, 0],
        "prediction": [0, 0, 0],
        "method": ["erm", "mr2", "la"],
    },
    "scores must be": {"id": [1, 2], "label": [0, 1], "scores": [[0.1, 0.2], [0.3, float("nan")]]},
    "the same count in every row": {"id": [1, 2], "label": [0, 1], "scores": [[0.1, 0.2], [0.3]]},
}


@pytest.mark.parametrize("says", BAD)
def test_a_bad_file_is_one_clear_line(path, says):
    write(path, **BAD[says])
    with pytest.raises(UserError, match=says) as error:
        external.result(path)
    assert "\n" not in str(error.value)
    assert "predictions.parquet" in str(error.value)


def test_a_file_that_is_no_parquet_is_one_clear_line(path):
    path.write_text("id,label\n")
    with pytest.raises(UserError, match="cannot read predictions"):
        external.result(path)
