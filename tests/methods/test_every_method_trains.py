"""Every method of the catalogue trains a small net from scratch, resumes to the same bits when killed, and
trains by two processes as by one."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from tests.support import every_method
from tests.support.every_method import FORMS, TRAINED, outcome, training
from tests.support.training_world import killed, same_bits, whole_state

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def cross_entropy(t):
    return float(F.cross_entropy(t.training_logits(), torch.as_tensor(t.labels)))


@pytest.mark.parametrize("name", TRAINED)
def test_it_learns_its_training_set_and_resumes_to_the_same_bits(name, tmp_path):
    whole = training(name)
    before = cross_entropy(whole)
    whole.run()
    assert cross_entropy(whole) < before
    killed(training(name, tmp_path), 5)
    resumed = training(name, tmp_path)
    resumed.run()
    assert same_bits(whole_state(whole), whole_state(resumed))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What all methods came to by two processes, which start once for all of them."""
    out = tmp_path_factory.mktemp("two")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launcher, every_method.__file__, str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PROBE_PROCESSES": "2"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize(("number", "method"), enumerate([*TRAINED, *FORMS]), ids=[*TRAINED, *FORMS])
def test_two_processes_equal_one(together, number, method):
    """Losses, weights, the method's networks, queues and statistics, and scores."""
    told, tensors = outcome(method)
    two = json.loads((together / f"{number}.json").read_text())
    assert (told["processes"], two["processes"]) == (1, 2)
    assert two["losses"] == pytest.approx(told["losses"], rel=1e-5)
    found = load_file(together / f"{number}.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            found[name], tensor, **CLOSE, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
