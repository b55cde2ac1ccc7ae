"""Every example runs, and ends with a result worth printing. `suspect_labels.py` needs cleanlab and
`in_fiftyone.py` FiftyOne, which are no dependencies: what these read is checked, against a real
run and with plain records in the place of FiftyOne's."""

import json
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

from probe import recipe
from probe.evaluation import crossfitted
from probe.runs.run import run
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
NEEDS_MORE = {"suspect_labels.py", "in_fiftyone.py", "probe.sbatch"}
LEAST = {"own_loop.py": 0.9, "sklearn_pipeline.py": 0.95}  # accuracy; chance is 0.1


NOTEBOOK = EXAMPLES / "tutorial.ipynb"
RUNNER = [sys.executable, str(ROOT / ".ci" / "notebook.py")]


def test_each_example_is_known_here():
    assert {path.name for path in EXAMPLES.iterdir()} == NEEDS_MORE | set(LEAST) | {NOTEBOOK.name}


@pytest.mark.parametrize("name", sorted(LEAST))
def test_an_example_runs_and_learns(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = float(re.findall(r"(?:accuracy|:) (0\.\d+)", done.stdout)[-1])
    assert found > LEAST[name], done.stdout


def test_what_needs_more_packages_reads_columns_that_exist():
    text = (EXAMPLES / "suspect_labels.py").read_text(encoding="utf-8")
    compile(text, "suspect_labels.py", "exec")
    assert crossfitted.FILE in text
    source = (ROOT / "probe" / "evaluation" / "crossfitted.py").read_text(encoding="utf-8")
    read = set(re.findall(r'table\["(\w+)"\]', text)) | {"id", "label", "rival", "rival_probability"}
    assert all(f'"{name}"' in source for name in read)


class Records(list):
    """What the example asks of FiftyOne's `Dataset`."""

    def __init__(self, name, **_):
        self.name = name

    add_samples = list.extend


def test_the_fiftyone_example_shows_every_image_of_a_run(colours, cache, tmp_path, monkeypatch):
    fiftyone = SimpleNamespace(Sample=SimpleNamespace, Classification=SimpleNamespace, Dataset=Records)
    monkeypatch.setitem(sys.modules, "fiftyone", fiftyone)
    settings = {"backbone": {"image_size": 32}, "data": str(colours), "method": "mr2", "solver": {"l2": 1.0}}
    done = run(recipe.build(settings), cache=cache, out=tmp_path)
    example = runpy.run_path(str(EXAMPLES / "in_fiftyone.py"))
    shown = example["dataset"](done.folder, tmp_path / "pictures")
    tagged = {tag: [s for s in shown if tag in s.tags] for tag in ("train", "test", "hard", "wrong")}
    assert [len(tagged[split]) for split in ("train", "test")] == [60, 32]
    assert {s.ground_truth.label for s in tagged["hard"]} == set(
        done.result["test"]["groups"]["hard"]["classes"]
    )
    wrong = sum(s in tagged["wrong"] for s in tagged["test"])
    assert wrong / 32 == pytest.approx(1 - done.result["test"]["top1"])
    assert len({s.image_id for s in shown}) == len({s.filepath for s in shown}) == 92
    assert all(0 < s.prediction.confidence <= 1 for s in shown)


def test_the_tutorial_runs_and_prints_what_it_shows():
    done = subprocess.run([*RUNNER, str(NOTEBOOK), "--check"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    shown = [out for cell in cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in shown) == 1
    assert len(shown) >= 8


def test_a_stale_output_of_a_notebook_is_noticed_and_stored_anew(tmp_path):
    stale = {"output_type": "stream", "name": "stdout", "text": ["3\n"]}
    cell = {"cell_type": "code", "execution_count": 1, "source": ["print(1 + 1)"], "outputs": [stale]}
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    done = subprocess.run([*RUNNER, str(path), "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "cell 1 says\n3\n\nand now prints\n2\n\n"
    for words in ([], ["--check"]):
        assert subprocess.run([*RUNNER, str(path), *words]).returncode == 0
