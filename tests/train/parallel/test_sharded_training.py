"""Two processes train as one: with half of every weight (FSDP), or of the optimiser's memory (DeepSpeed)."""

import functools
import json
import multiprocessing
import signal
import socket
from multiprocessing import forkserver
from pathlib import Path

import pytest
from safetensors.torch import load_file

from probe.train.model import tuned_weights as tuned
from tests.support import sharded_world
from tests.support.training_world import distance, same_bits, tiny_vit


@pytest.fixture(scope="module")
def alone(tmp_path_factory, models):
    out = tmp_path_factory.mktemp("one")
    monkey = pytest.MonkeyPatch()
    monkey.setenv("FSDP_AUTO_WRAP_POLICY", "")  # restored afterwards
    monkey.setenv("FSDP_TRANSFORMER_CLS_TO_WRAP", "")
    sharded_world.train("fsdp", out, models)
    monkey.undo()
    return out


def world(phase, kind, out, models):
    """Two processes with torch loaded and nothing started; returns their exit codes."""
    (out / "split.yaml").write_text(sharded_world.CONFIGS[kind])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.killed_trainings"])
    forkserver.ensure_running()
    words = (port, out / "split.yaml", phase, kind, out, models)
    members = [context.Process(target=sharded_world.member, args=(i, *words), daemon=True) for i in range(2)]
    for process in members:
        process.start()
    for process in members:
        process.join(240)
    return [process.exitcode for process in members]


@pytest.fixture(scope="module")
def together(tmp_path_factory, models):
    """Folders of both kinds, each filled when it is first asked for."""

    @functools.cache
    def trained(kind):
        out = tmp_path_factory.mktemp(kind)
        assert world("train", kind, out, models) == [-signal.SIGKILL, -signal.SIGKILL]
        return out

    return trained


KINDS = sharded_world.CONFIGS
each_kind = pytest.mark.parametrize("kind", KINDS)
each_case = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in sharded_world.cases(kind, Path())]
)


@each_case
def test_losses_weights_and_evaluation_are_those_of_one_process(alone, together, kind, name):
    folders = alone, together(kind)
    one, two = (json.loads((out / f"{name}.json").read_text()) for out in folders)
    split = {"fsdp": ("weights", "memory"), "zero": ("memory",)}[kind]
    for what in split:  # numbers a process has between two steps
        assert two["held"][what] < 0.7 * one["held"][what] or one["held"][what] == 0
    for a, b in zip(one["epochs"], two["epochs"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b.get("validation") == a.get("validation")
    assert distance(*(load_file(out / f"{name}.safetensors") for out in folders)) < 1e-5


@each_case
def test_what_was_given_to_train_is_whole_again_at_the_end(together, kind, name):
    trained, given = (load_file(together(kind) / f"{name}.{end}") for end in ("safetensors", "given"))
    trained.pop("scores")
    assert same_bits(trained, given)


@each_kind
def test_a_training_that_diverges_is_stopped_on_every_process(tmp_path, models, kind):
    assert world("diverge", kind, tmp_path, models) == [0, 0]
    for number in range(2):
        said = (tmp_path / f"said-{number}").read_text()
        # the sixth batch, not the one after it; DeepSpeed's dry run has seen one
        assert f"the gradient's norm is nan at epoch 0, step {5 if kind == 'fsdp' else 4}" in said
        assert "Try a smaller train.lr" in said
        assert "the weights are finite" in said


@each_kind
def test_the_saved_weights_fit_an_ordinary_backbone(together, models, kind):
    path = together(kind) / "vit-erm" / tuned.FILE
    backbone = tuned.restore(tiny_vit(models / "vit"), path)
    assert same_bits(load_file(path), dict(backbone.encoder.state_dict()))
    assert backbone.fingerprint != tiny_vit(models / "vit").fingerprint  # it has learnt something


@each_kind
def test_after_kill_9_it_goes_on_to_the_same_bits(together, models, kind):
    out = together(kind)
    assert world("resume", kind, out, models) == [0, 0]
    ends = [load_file(out / f"{name}.safetensors") for name in ("uninterrupted", "resumed")]
    assert same_bits(*ends)
    last = max((out / "run" / "checkpoints").iterdir())
    kept = load_file(last / "tensors.safetensors")
    assert kept["network.head.weight"].shape == ends[0]["head.weight"].shape  # whole, readable by anybody
