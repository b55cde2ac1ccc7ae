"""Groups are thirds of the classes by a reference model's accuracy."""

import json

import numpy as np
import pytest

from probe.errors import UserError
from probe.evaluation import groups


def test_thirds_of_a_hand_worked_case():
    accuracy = np.array([0.9, 0.1, 0.5, 0.8, 0.3, 0.7, 0.2])
    assert groups.thirds(accuracy) == {"easy": [0, 3, 5], "medium": [2, 4], "hard": [6, 1]}


def test_ties_are_broken_by_the_finer_score_then_by_index():
    accuracy, confidence = np.ones(6), np.array([0.5, 0.9, 0.9, 0.1, 0.2, 0.3])
    assert groups.thirds(accuracy, confidence) == {"easy": [1, 2], "medium": [0, 5], "hard": [4, 3]}


def test_every_class_is_spread_evenly_over_folds():
    labels = np.repeat(np.arange(4), [10, 11, 3, 5])
    fold = groups.folds(labels, 5, seed=1)
    for k in range(4):
        sizes = np.bincount(fold[labels == k], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_crossfitting_holds_every_row_out_exactly_once():
    labels = np.repeat(np.arange(3), 20)
    held_out: list[int] = []

    def fit_predict(kept, held):
        assert not set(kept) & set(held)
        held_out.extend(held)
        return np.tile([0.5, 0.3, 0.2], (len(held), 1))

    accuracy, confidence = groups.crossfit(labels, 3, fit_predict)
    assert sorted(held_out) == list(range(60))
    np.testing.assert_allclose(accuracy, [1, 0, 0])
    np.testing.assert_allclose(confidence, [0.5, 0.3, 0.2])


def test_a_perfect_reference_scores_every_class_one():
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    accuracy, _ = groups.crossfit(labels, 3, lambda kept, held: np.eye(3)[labels[held]])
    np.testing.assert_array_equal(accuracy, np.ones(3))


def test_groups_by_training_count_differ_between_the_papers_at_one_hundred():
    schemes = groups.by_count(np.array([500, 101, 100, 99, 20, 19, 0]))
    assert schemes["many/medium/few"] == {"many": [0, 1], "medium": [2, 3, 4], "few": [5, 6]}
    assert schemes["head/torso/tail"] == {"head": [0, 1, 2], "torso": [3, 4], "tail": [5, 6]}


NAMES = ("cat", "dog", "fox")


def test_groups_from_a_file(tmp_path):
    path = tmp_path / "groups.json"
    path.write_text(json.dumps({"pets": ["dog", "cat"], "wild": ["fox"]}))
    assert groups.from_file(path, NAMES) == {"pets": [1, 0], "wild": [2]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot read groups"),
        ("[]", "groups must be written as"),
        ("{}", "groups must be written as"),
        ('{"a": ["cat", "dog", "fox"], "b": []}', "groups must be written as"),
        ('{"overall": ["cat", "dog", "fox"]}', 'cannot be named "overall"'),
        ('{"a": [["cat"], "dog", "fox"]}', "there is no class"),
        ('{"a": ["cat", "dgo", "fox"]}', 'did you mean "dog"'),
        ('{"a": ["cat", "dog"]}', '"fox" is in no group'),
        ('{"a": ["cat", "dog", "fox"], "b": ["fox"]}', "more than once"),
    ],
)
def test_a_bad_groups_file_is_one_clear_line(tmp_path, content, says):
    path = tmp_path / "groups.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says) as error:
        groups.from_file(path, NAMES)
    assert "\n" not in str(error.value)
