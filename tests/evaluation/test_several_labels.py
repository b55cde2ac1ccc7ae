"""Several right answers: a prediction counts if it is one of them, and images without any do not count."""

import json

import numpy as np
import pytest

from probe.errors import UserError
from probe.evaluation import several_labels
from probe.evaluation.predictions import Predictions
from probe.evaluation.summary import EvaluationSet

IDS = [f"val/n0/ILSVRC2012_val_{number:08d}.JPEG" for number in (3, 1, 2, 4)]
REAL = [[0, 2], [], [1], [2]]  # of images 1, 2, 3, 4


def file(tmp_path, content):
    path = tmp_path / "real.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def predicted(*classes, method="mr2"):
    chosen = np.array(classes)
    top = np.stack([np.roll([0, 1, 2], -c) for c in chosen])
    flat = np.full(len(chosen), 0.5, dtype=np.float32)
    return Predictions(method, 0, chosen, flat, flat, top[:, :2])


def test_real_json_is_matched_by_the_number_in_an_images_name(tmp_path):
    labels = several_labels.read(file(tmp_path, REAL))
    accepted = labels.accepted(IDS, 3)
    assert accepted.tolist() == [[False, True, False], [True, False, True], [False] * 3, [False, False, True]]


def test_a_case_worked_by_hand(tmp_path):
    labels = several_labels.read(file(tmp_path, REAL))
    # images 3, 1, 2, 4: right, right by its second label, not counted, wrong
    own, erm = predicted(1, 2, 0, 0), predicted(0, 0, 0, 0, method="erm")
    eval_set = EvaluationSet(np.array([1, 0, 0, 2]), ("a", "b", "c"), {"all": [0, 1, 2]})
    block = several_labels.evaluate(labels, labels.accepted(IDS, 3), [own, erm], eval_set, ["mr2", "erm"])
    assert (block["images"], block["left_out"]) == (3, 1)
    assert block["test"]["top1"] == pytest.approx(2 / 3)
    assert block["versus"]["gain"]["overall"]["mean"] == pytest.approx(1 / 3)
    by_class = {row["name"]: (row["n"], row["accuracy"]) for row in block["test"]["by_class"]}
    assert by_class == {"a": (1, 1.0), "b": (1, 1.0), "c": (1, 0.0)}  # by the original labels
    assert block["test"]["top5"] == pytest.approx(2 / 3)  # the last image's second guess is class b
    assert "66.7 % " in several_labels.remark(block)
    assert "of 3 test images, 1 without a label left out" in several_labels.remark(block)


def test_one_label_each_is_the_plain_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    y, guess = rng.integers(0, 3, 60), rng.integers(0, 3, 60)
    ids = [f"{i}.png" for i in range(60)]
    labels = several_labels.read(file(tmp_path, {name: [int(k)] for name, k in zip(ids, y, strict=True)}))
    found = several_labels.outcome([predicted(*guess)], labels.accepted(ids, 3), "mr2")
    assert np.array_equal(found.correct[0], guess == y)


def test_ids_or_file_names_can_name_the_images(tmp_path):
    labels = several_labels.read(file(tmp_path, {"a/1.png": [0], "2.png": [0, 1]}))
    assert labels.accepted(["a/1.png", "b/2.png"], 2).tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "cannot read labels from .*real.json"),
        ("[1, 2]", "is not a list of lists of class numbers"),
        ("[]", "is not a list of lists of class numbers"),
        ('{"a": ["cat"]}', "is not a list of lists"),
        ([[0], [1]], r'has no labels of the test image "val/n0/ILSVRC2012_val_00000003'),
        ([[0], [1], [7], [2]], "are not numbers below 3"),
        ([[0], [1], [-1], [2]], "are not numbers below 3"),
        ([[], [], [], []], "has no label for any test image"),
        ({"x.png": [0]}, "its keys are sample ids or file names"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        several_labels.read(file(tmp_path, content)).accepted(IDS, 3)
    assert "\n" not in str(caught.value)
