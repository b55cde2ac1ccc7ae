"""Two processes that hold half of every weight (FSDP) train as one process does that holds all of them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_world
from safetensors.torch import load_file
from training_world import distance, same_bits, tiny_resnet, tiny_vit

from probe.train import sharding
from probe.train import weights as tuned

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_vit(folder / "vit")
    tiny_resnet(folder / "rn")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("one")
    monkey = pytest.MonkeyPatch()
    monkey.setenv("FSDP_AUTO_WRAP_POLICY", "")  # restored afterwards
    monkey.setenv("FSDP_TRANSFORMER_CLS_TO_WRAP", "")
    sharded_world.train(out, models)
    monkey.undo()
    return out


def world(phase, out, models):
    (out / "fsdp.yaml").write_text(sharded_world.CONFIG)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launcher, str(HERE / "sharded_world.py"), phase, str(out), str(models)]
    asked = {"OMP_NUM_THREADS": "1", "PROBE_PROCESSES": "2", **sharding.environment(out / "fsdp.yaml")}
    env = {**os.environ, **asked}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def together(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("two")
    killed = world("train", out, models)
    assert (out / "run" / "checkpoints").is_dir(), killed.stderr[-3000:]
    assert f"exitcode  : -{signal.SIGKILL:d}" in killed.stderr
    return out


@pytest.mark.parametrize("name", sharded_world.cases(Path()))
def test_losses_weights_and_evaluation_are_those_of_one_process(alone, together, name):
    one, two = (json.loads((out / f"{name}.json").read_text()) for out in (alone, together))
    assert two["held"] < 0.7 * one["held"]  # weights a process has between two steps
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b.get("validation") == a.get("validation")
    assert distance(*(load_file(out / f"{name}.safetensors") for out in (alone, together))) < 1e-5


@pytest.mark.parametrize("name", sharded_world.cases(Path()))
def test_what_was_given_to_train_is_whole_again_at_the_end(together, name):
    trained, given = (load_file(together / f"{name}.{end}") for end in ("safetensors", "given"))
    trained.pop("scores")
    assert same_bits(trained, given)


def test_the_saved_weights_fit_an_ordinary_backbone(together, models):
    backbone = tiny_vit(models / "vit")
    before = backbone.fingerprint
    assert tuned.restore(backbone, together / tuned.FILE) is backbone
    assert distance(load_file(together / tuned.FILE), backbone.encoder.state_dict()) == 0
    assert tiny_vit(models / "vit").fingerprint == before


def test_after_kill_9_it_goes_on_to_the_same_bits(together, models):
    done = world("resume", together, models)
    assert done.returncode == 0, done.stderr[-3000:]
    ends = [load_file(together / f"{name}.safetensors") for name in ("uninterrupted", "resumed")]
    assert same_bits(*ends)
    last = max((together / "run" / "checkpoints").iterdir())
    kept = load_file(last / "tensors.safetensors")
    assert kept["network.head.weight"].shape == ends[0]["head.weight"].shape  # whole, readable by anybody
