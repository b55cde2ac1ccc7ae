"""The world has the size that was asked for, or the launcher says why not."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn

from probe.errors import UserError
from probe.recipe.train_settings import TrainConfig
from probe.train.parallel import accelerator, fsdp_config, launch
from probe.train.parallel.launch import World
from tests.support.training_world import gone


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
            "import sys; from probe.train.parallel import launch; "
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


def test_a_mistake_of_all_processes_is_told_once_where_the_first_is_slow_to_end(child):
    done = child(
        "import atexit, os, time\n"
        "from probe.cli.errors import plain_errors\n"
        "from probe.errors import UserError\n"
        "if os.environ['RANK'] == '0': atexit.register(time.sleep, 4)\n"
        "with plain_errors():\n"
        "    raise UserError('bad')\n"
    )
    assert done.returncode == 2
    assert done.stderr.count("error: bad") == 1


def test_a_failing_process_ends_the_world_with_its_exit_code_and_without_noise(child):
    done = child(
        "import os, sys\nif os.environ['RANK'] == '0': print('error: bad', file=sys.stderr)\nsys.exit(2)\n"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: bad" in done.stderr


def test_processes_do_not_outlive_their_launcher(tmp_path):
    """Not even one that was killed: their successors would write into the same folders."""
    body = (
        "import os, pathlib, sys, time\n"
        "from probe.train.parallel import launch\n"
        "launch.follow()\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    (tmp_path / "sleeper.py").write_text(body)
    code = (
        "import sys; from probe.train.parallel import launch; "
        "launch._on_cpus(launch.World(2), ['-m', 'sleeper', sys.argv[1]])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    launcher = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    deadline = time.monotonic() + 60
    while not all((tmp_path / rank).exists() for rank in "01") and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    for rank in "01":
        assert gone(int((tmp_path / rank).read_text()))


def test_more_processes_than_the_machine_can_start_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        UserError, match=r"cannot start 4096 processes: this machine has no GPU and \d+ cores"
    ):
        launch.launch(World(4096), [])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="cannot start 3 processes: this machine has 2 GPUs; use at most 2"):
        launch.launch(World(3), [])


def test_gpus_go_through_accelerates_launcher_with_every_choice_spelt_out(monkeypatch, on_gpus):
    monkeypatch.setenv(launch.ASKED, "")
    world = World(4, machines=2, machine_rank=1, address="10.0.0.1")
    assert launch.launch(world, ["run", "--finetune"]) == 0
    words = " ".join(on_gpus[0][1:])
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


@pytest.fixture
def config(tmp_path):
    """Write an Accelerate configuration file and give its path."""

    def write(kind="FSDP", **words):
        path = tmp_path / "accelerate.yaml"
        path.write_text(yaml.safe_dump({"distributed_type": kind, "fsdp_config": words}))
        return path

    return write


def test_a_configuration_file_reaches_the_processes_of_a_machine_without_gpus(config):
    words = {"fsdp_version": 2, "fsdp_transformer_layer_cls_to_wrap": "Block"}
    told = fsdp_config.environment(config(**words))
    assert told["ACCELERATE_USE_FSDP"] == "true"
    assert (told["FSDP_VERSION"], told["FSDP_TRANSFORMER_CLS_TO_WRAP"]) == ("2", "Block")
    assert told["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"  # every process loads its own weights


def test_a_file_that_is_no_configuration_for_this_machine_is_one_line(config, tmp_path):
    with pytest.raises(UserError, match="distributed_type: MULTI_GPU; this machine has no GPU"):
        fsdp_config.environment(config("MULTI_GPU"))
    for content in ("distributed_type: [", "- a list", "no_such_key: 1"):
        (tmp_path / "odd.yaml").write_text(content)
        with pytest.raises(UserError, match=r"odd.yaml is not an Accelerate configuration: [^\n]+$"):
            fsdp_config.environment(tmp_path / "odd.yaml")
    with pytest.raises(UserError, match="is not an Accelerate configuration"):
        fsdp_config.environment(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("words", "settings", "why"),
    [
        ({"fsdp_version": 1}, {}, "set fsdp_version: 2"),
        ({"fsdp_offload_params": True}, {}, "fsdp_offload_params is not supported"),
        ({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, {}, "use TRANSFORMER_BASED_WRAP"),
        ({"fsdp_auto_wrap_policy": "BLOCKS"}, {}, "fsdp_config: Invalid auto wrap policy"),
        ({"fsdp_ignored_modules": "head"}, {}, "fsdp_ignored_modules would be trained by each process"),
        ({"fsdp_activation_checkpointing": True}, {}, "set train.grad_checkpointing=true"),
        ({}, {"precision": "fp16"}, "set train.precision=bf16"),
        ({}, {"channels_last": True}, "set train.channels_last=false"),
        ({}, {"micro_batch": "auto"}, "set train.micro_batch to a number"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_trained(
    config, monkeypatch, words, settings, why
):
    for name, value in fsdp_config.environment(config(**{"fsdp_version": 2, **words})).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=why):
        fsdp_config.check(TrainConfig(**settings))


def test_layers_that_are_not_there_are_named_with_those_that_are(config, monkeypatch):
    words = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "Blok"}
    for name, value in fsdp_config.environment(config(fsdp_version=2, **words)).items():
        monkeypatch.setenv(name, value)
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    scalar = nn.ParameterDict({"scale": torch.tensor(1.0)})
    with pytest.raises(UserError, match=r"Blok is not a layer.*TransformerEncoderLayer"):
        fsdp_config.check_weights(nn.TransformerEncoder(layer, 2), fsdp_config.check(TrainConfig()))
    with pytest.raises(UserError, match="cannot split scale, a weight without dimensions"):
        fsdp_config.check_weights(scalar, fsdp_config.check(TrainConfig()))


def test_one_process_has_nobody_to_split_weights_with(config):
    with pytest.raises(UserError, match="splits weights between processes; use --gpus 2 or more"):
        launch.launch(World(1, config=config(fsdp_version=2)), [])


def test_megatron_is_refused_and_the_way_is_named(config, monkeypatch):
    import accelerate

    monkeypatch.setenv(launch.ASKED, "1")
    found = SimpleNamespace(distributed_type=accelerate.DistributedType.MEGATRON_LM, num_processes=1)
    monkeypatch.setattr(accelerate, "Accelerator", lambda **_: found)
    with pytest.raises(UserError, match="MEGATRON_LM is not supported; use distributed_type: FSDP"):
        accelerator.accelerator(TrainConfig())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="MEGATRON_LM is not supported; use distributed_type: FSDP"):
        launch.launch(World(2, config=config("MEGATRON_LM")), [])


def test_splitting_along_several_axes_is_refused(tmp_path):
    words = {"distributed_type": "FSDP", "parallelism_config": {"parallelism_config_tp_size": 2}}
    (tmp_path / "axes.yaml").write_text(yaml.safe_dump(words))
    with pytest.raises(UserError, match="parallelism_config is not supported"):
        launch.launch(World(2, config=tmp_path / "axes.yaml"), [])
