"""Two processes train as one does on the joined batch: the same losses, weights and evaluation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support import two_process_training as two_processes
from tests.support.training_world import distance


@pytest.fixture(scope="module")
def alone(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("one")
    two_processes.main(out, models)
    return out


@pytest.fixture(scope="module")
def together(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("two")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launcher, two_processes.__file__, str(out), str(models)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PROBE_PROCESSES": "2"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("name", two_processes.cases(Path()))
def test_two_processes_equal_one_with_the_joined_batch(alone, together, name):
    one, two = (json.loads((out / f"{name}.json").read_text()) for out in (alone, together))
    assert (one["processes"], two["processes"]) == (1, 2)
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b["step"] == a["step"]
        assert b.get("validation") == a.get("validation")
    ends = [load_file(out / f"{name}.safetensors") for out in (alone, together)]
    assert distance(*ends) < 1e-5
