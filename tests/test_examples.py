"""Every example runs, and ends with a result worth printing. `suspect_labels.py` needs cleanlab, which is not
a dependency: it is only compiled, and the columns that it reads are checked."""

import re
import subprocess
import sys

import pytest

from probe.evaluation import crossfitted
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
NEEDS_MORE = {"suspect_labels.py"}
LEAST = {"own_loop.py": 0.9, "sklearn_pipeline.py": 0.95}  # accuracy; chance is 0.1


def test_each_example_is_known_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == NEEDS_MORE | set(LEAST)


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
