"""Groups of classes by the test accuracy of another run."""

import json

import numpy as np
import pytest

from probe import recipe
from probe.errors import UserError
from probe.evaluation.groups import COUNT_SCHEMES
from probe.runs import groups
from probe.runs.run import run
from probe.runs.table import of_runs
from tests.support.painted_images import COLOURS, paint

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


def test_a_recipe_knows_the_schemes_by_training_images():
    assert set(recipe.COUNT_GROUPS) == set(COUNT_SCHEMES)
    for scheme in recipe.COUNT_GROUPS:
        assert recipe.group_source(scheme) == scheme
        assert groups.given(scheme, NAMES) is None
        assert groups.origin(scheme) == {"groups_by": scheme, "groups_from": None}
    with pytest.raises(UserError, match=r"many/medium/few.* a run is named with its path"):
        recipe.group_source("many")


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("many/medium/few", {"many": [1], "medium": [3, 0], "few": [2]}),
        ("head/torso/tail", {"head": [1, 3], "torso": [0], "tail": [2]}),  # a class of 100 moves
    ],
)
def test_classes_are_grouped_by_their_training_images_the_largest_first(scheme, expected):
    assert groups.by_train_count(scheme, np.array([20, 300, 19, 100])) == expected
    assert groups.by_train_count(scheme, np.array([30, 40])) == {list(COUNT_SCHEMES[scheme])[1][0]: [1, 0]}


def test_one_group_of_all_classes_is_said_to_be_no_news():
    assert 'all classes are in the group "head"' in groups.remark_on({"head": [0, 1, 2]})
    assert groups.remark_on({"head": [0], "tail": [1]}) is None


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """An image folder with 24, 22, 8 and 6 training images of its classes."""
    root = tmp_path_factory.mktemp("data") / "unequal"
    rng = np.random.default_rng(0)
    for number, (name, colour) in zip((8, 24, 6, 22), COLOURS.items(), strict=True):
        paint(root / "train" / name, colour, number, rng)
        paint(root / "test" / name, colour, 6, rng)
    return root


def test_a_run_and_a_comparison_say_the_groups_by_training_images(unequal, cache, tmp_path, monkeypatch):
    import io
    from contextlib import redirect_stdout

    from probe.report.text import comparison, exports
    from probe.report.text import run as terminal

    base = {"backbone": {"name": "effnet-lite0", "image_size": 32}, "data": str(unequal), "solver": {"l2": 1}}
    plain = run(recipe.build({**base, "method": "erm"}), cache=cache, out=tmp_path)
    by_count = {**base, "method": "la", "groups": "many/medium/few"}
    done = run(recipe.build(by_count), cache=cache, out=tmp_path)
    names = list(COLOURS)
    found = {name: group["classes"] for name, group in done.result["test"]["groups"].items()}
    assert found == {"medium": [names[1], names[3]], "few": [names[0], names[2]]}
    assert {"medium", "few"} <= set(done.result["versus"]["gain"])
    assert list(done.result["diagnostics"]["groups"]) == ["medium", "few"]  # figures read these
    monkeypatch.setenv("COLUMNS", "80")

    def printed(show, *args):
        with redirect_stdout(io.StringIO()) as out:
            show(*args)
        copied = ("saved: ", "next: ")  # lines that are never wrapped
        assert all(len(line) <= 80 for line in out.getvalue().splitlines() if not line.startswith(copied))
        return out.getvalue()

    assert "few (2)" in printed(terminal.show, done.result, "x")
    shown = printed(terminal.show, plain.result, "x")
    assert "by class size" in shown
    assert "…" not in shown  # nothing is cut
    assert shown.count("tail (2)") == 0  # the same classes as few
    whole = of_runs([plain.folder, done.folder])
    assert whole["count_groups"]["many/medium/few"] == ["medium", "few"]
    few = whole["rows"][1]["count_statistics"]["many/medium/few"]["few"]
    assert few["gain"]["mean"] == pytest.approx(few["accuracy"] - plain_few(whole), abs=1e-9)
    assert "by training images, many/medium/few" in printed(comparison.show, whole, "x")
    assert "By training images, many/medium/few" in exports.markdown(whole)
    assert "many/medium/few: few" in exports.csv(whole)
    regrouped = of_runs([plain.folder, done.folder], "head/torso/tail")
    assert regrouped["groups"] == ["torso", "tail"]


def plain_few(whole):
    return whole["rows"][0]["count_statistics"]["many/medium/few"]["few"]["accuracy"]
