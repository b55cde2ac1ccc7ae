"""The world has the size that was asked for, or the launcher says why not."""

import os
import subprocess
import sys

import pytest

from probe.errors import UserError
from probe.train import launch
from probe.train.launch import World


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A stand-in for `probe.cli`: each process of the world runs the given lines."""

    def write(body):
        package = tmp_path / "probe_child"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "cli.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        code = (
            "import sys; from probe.train import launch; "
            "run = launch._on_cpus; "
            "launch._on_cpus = lambda w, c: run(w, ['-m', 'probe_child.cli', *c[2:]]); "
            "sys.exit(launch.launch(launch.World(2), sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return write


def test_two_processes_start_on_a_cpu_and_see_each_other(child, tmp_path):
    done = child(
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(\n"
        "    ' '.join(os.environ[k] for k in ('WORLD_SIZE', 'PROBE_PROCESSES', 'OMP_NUM_THREADS')))\n"
    )
    assert done.returncode == 0, done.stderr
    said = {(tmp_path / rank).read_text()[:3] for rank in "01"}
    assert said == {"2 2"}


def test_a_failing_process_ends_the_world_with_its_exit_code_and_without_noise(child):
    done = child(
        "import os, sys\nif os.environ['RANK'] == '0': print('error: bad', file=sys.stderr)\nsys.exit(2)\n"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: bad" in done.stderr


def test_more_processes_than_the_machine_can_start_are_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        UserError, match=r"cannot start 4096 processes: this machine has no GPU and \d+ cores"
    ):
        launch.launch(World(4096), [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="cannot start 3 processes: this machine has 2 GPUs; use at most 2"):
        launch.launch(World(3), [])


def test_gpus_go_through_accelerates_launcher_with_every_choice_spelt_out(monkeypatch):
    import torch

    calls = []

    class Launcher:
        def __init__(self, command):
            calls.append(command)

        def wait(self):
            return 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(subprocess, "Popen", Launcher)
    monkeypatch.setenv(launch.ASKED, "")
    world = World(4, machines=2, machine_rank=1, address="10.0.0.1")
    assert launch.launch(world, ["run", "--finetune"]) == 0
    words = " ".join(calls[0][1:])
    assert words.startswith(
        "-m accelerate.commands.launch --num_processes 8 --num_machines 2 --machine_rank 1"
    )
    assert "--main_process_ip 10.0.0.1 --main_process_port 29500" in words
    assert "--multi_gpu" in words
    assert words.endswith("-m probe.cli run --finetune")
    assert os.environ[launch.ASKED] == "8"


def test_a_world_of_another_size_is_noticed(monkeypatch):
    monkeypatch.setenv(launch.ASKED, "4")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="4 processes were asked for, but 1 were started"):
        launch.check_world()


def test_a_configuration_that_spreads_weights_is_refused_before_anything_is_trained(monkeypatch):
    from types import SimpleNamespace

    import accelerate

    from probe.train import runtime
    from probe.train.settings import Train

    sharded = SimpleNamespace(distributed_type=accelerate.DistributedType.FSDP, num_processes=1)
    monkeypatch.setattr(accelerate, "Accelerator", lambda **_: sharded)
    with pytest.raises(UserError, match=r"asks for FSDP.*use a configuration without it"):
        runtime.accelerator(Train())
