"""docs/clusters.md: the script for Slurm does what the page says, and a stopped command tells by its code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "clusters.md").read_text()
SCRIPT = next(block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) if "#SBATCH" in block)


def test_the_script_of_the_page_is_the_example():
    assert (ROOT / "examples" / "probe.sbatch").read_text() == SCRIPT


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (143, True), (2, False)])
def test_the_job_goes_back_into_the_queue_when_it_was_stopped_and_only_then(tmp_path, code, requeued):
    stub(tmp_path, "srun", '"$@"')
    stub(tmp_path, "probe", f'echo "$@" > {tmp_path}/command; exit {code}')
    stub(tmp_path, "scontrol", f'[ "$1" = requeue ] && echo "$2" > {tmp_path}/requeued; echo node-1')
    variables = {"SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_JOB_ID": "77"}
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", SCRIPT], env={**variables, **places, "SLURM_JOB_NODELIST": "n[1-2]"})
    assert done.returncode == code
    assert (tmp_path / "requeued").exists() == requeued
    command = (tmp_path / "command").read_text()
    assert command.startswith("run --finetune --backbone")
    assert command.strip().endswith("--gpus 4 --machines 2 --machine-rank 1 --address node-1")


def test_sigterm_to_a_real_training_saves_it_and_ends_with_143(tmp_path, cache):
    command = [sys.executable, "-m", "probe.cli", "run", "--finetune", "--backbone", "cifar-resnet20"]
    command += ["--data", "digits", "--cache", str(cache), "--out", str(tmp_path), "train.epochs=40"]
    command += ["train.lr=0.1", "train.checkpoint_minutes=0.001", "versus=same"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as training:
        deadline = time.monotonic() + 200
        while not list(tmp_path.glob(".*/seed-0/checkpoints/0*")) and time.monotonic() < deadline:
            assert training.poll() is None, training.stderr.read()  # type: ignore[union-attr]
            time.sleep(0.1)
        training.send_signal(signal.SIGTERM)
        _, said = training.communicate(timeout=100)
    assert training.returncode == 143
    assert "the same command resumes" in said
    assert list(tmp_path.glob(".*/seed-0/checkpoints/0*"))
