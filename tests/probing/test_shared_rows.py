"""Two and four processes that share the rows find what one process finds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.support import ROOT
from tests.support.shared_rows import everything

LARGE = ("large", "rounded", "mixed")  # problems in float32
CERTIFIED = (
    *(f"{n} {x}" for n in LARGE for x in ("objective", "gap")),
    "saddle",
)  # to a tolerance, not to the last digits


@pytest.fixture(scope="module")
def alone():
    return everything()


def world(processes, *words):
    """torchrun on this machine, as a user would start it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return [*launcher, str(processes), *words], environment


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_share_rows_equal_one(alone, tmp_path, processes):
    command, environment = world(processes, "-m", "tests.support.shared_rows", str(tmp_path))
    subprocess.run(command, env=environment, check=True, cwd=ROOT, timeout=300, capture_output=True)
    for rank in range(processes):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found.keys() == alone.keys()
        assert int(found.pop("processes")) == processes
        assert int(found.pop("rows read")) == 120 // processes
        for name, value in found.items():
            if name not in CERTIFIED:
                torch.testing.assert_close(
                    value, alone[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
                )
        for name in LARGE:
            value = f"{name} objective"
            assert float(found[f"{name} gap"]) <= 1e-9
            torch.testing.assert_close(found[value], alone[value], rtol=2e-9, atol=0)
        torch.testing.assert_close(found["saddle"], alone["saddle"], rtol=1e-3, atol=1e-4)


def test_when_one_process_is_killed_the_other_ends_with_a_clear_line():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1]), "WORLD_SIZE": "2"}
    base = {**os.environ, **meeting, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.shared_rows", "endless"],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        assert second.stdout.readline() == "solved\n"
        second.kill()
        _, said = first.communicate(timeout=120)
        assert first.returncode == 1
        assert "error: process 0 lost its connection to another process" in said
        assert "Traceback" not in said
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
