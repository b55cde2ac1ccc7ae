"""Two processes that hold half of every weight (FSDP) train as one process does that holds all of them."""

import json
import multiprocessing
import signal
import socket
from multiprocessing import forkserver
from pathlib import Path

import pytest
import sharded_world
from safetensors.torch import load_file
from training_world import distance, same_bits, tiny_vit

from probe.train import weights as tuned

HERE = Path(__file__).parent


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
    """Two processes with torch loaded and nothing started; returns their exit codes."""
    (out / "fsdp.yaml").write_text(sharded_world.CONFIG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["victims"])
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setenv("PYTHONPATH", str(HERE))  # where the server finds what it loads
        forkserver.ensure_running()
    words = (port, out / "fsdp.yaml", phase, out, models)
    members = [context.Process(target=sharded_world.member, args=(i, *words), daemon=True) for i in range(2)]
    for process in members:
        process.start()
    for process in members:
        process.join(240)
    return [process.exitcode for process in members]


@pytest.fixture(scope="module")
def together(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("two")
    assert world("train", out, models) == [-signal.SIGKILL, -signal.SIGKILL]
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
    path = together / "vit-erm" / tuned.FILE
    backbone = tuned.restore(tiny_vit(models / "vit"), path)
    assert same_bits(load_file(path), dict(backbone.encoder.state_dict()))
    assert backbone.fingerprint != tiny_vit(models / "vit").fingerprint  # it has learnt something


def test_after_kill_9_it_goes_on_to_the_same_bits(together, models):
    assert world("resume", together, models) == [0, 0]
    ends = [load_file(together / f"{name}.safetensors") for name in ("uninterrupted", "resumed")]
    assert same_bits(*ends)
    last = max((together / "run" / "checkpoints").iterdir())
    kept = load_file(last / "tensors.safetensors")
    assert kept["network.head.weight"].shape == ends[0]["head.weight"].shape  # whole, readable by anybody
