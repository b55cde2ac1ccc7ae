"""`probe run` with FSDP, with DeepSpeed, and on two machines: the documented commands, end to end."""

import json
import os
import socket
import subprocess
import sys

import pytest

from probe import recipe
from probe.runs.naming import slug
from probe.runs.predict import predict
from probe.runs.run import run
from tests.support.sharded_world import CONFIGS
from tests.support.training_world import tiny_vit

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path_factory, colours, cache, tmp_path):
    """Start `probe run` on a recipe, with more words; its JSON is what it prints."""
    vit = tmp_path_factory.mktemp("vit")
    tiny_vit(vit)

    def begin(out, *words, **train):
        settings = {"epochs": 2, "batch_size": 16, "lr": 1e-3, "optimizer": "sgd", **train}
        content = recipe.build(
            {
                "backbone": {"name": f"timm:{vit}", "image_size": 32},
                "data": str(colours),
                "finetune": True,
                "train": settings,
                "solver": {"l2": 1.0},
                "seeds": 2,
            }
        )
        (tmp_path / "recipe.yaml").write_text(content.to_yaml())
        options = ["--cache", str(cache), "--out", str(tmp_path / out), "--json", *words]
        command = [sys.executable, "-m", "probe.cli", "run", str(tmp_path / "recipe.yaml"), *options]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return content, subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return begin


def ended(process):
    said, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(said) if said else None


def same_story(one, two):
    assert two["test"]["top1"] == one["test"]["top1"]
    for mine, other in zip(one["seeds"], two["seeds"], strict=True):
        assert other.get("wise") == mine.get("wise")
        for a, b in zip(mine["epochs"], other["epochs"], strict=True):
            assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_split_run_equals_one_process_and_its_folder_predicts(start, cache, colours, tmp_path, kind):
    (tmp_path / "split.yaml").write_text(CONFIGS[kind].replace("zero_stage: 2", "zero_stage: 1"))
    choices = {"start": "probe", "keep": "best", "wise": (0.0, 0.5, 1.0), "clip": 1.0, "ema": 0.9}
    words = ["--gpus", "2", "--accelerate-config", str(tmp_path / "split.yaml")]
    content, process = start("two", *words, **choices)
    two = ended(process)
    done = run(content, cache=cache, out=tmp_path / "one")
    same_story(done.result, two)
    image = next(colours.rglob("*.png"))
    guesses = [predict(tmp_path / out / slug(content), [image], top=1)[0] for out in ("one", "two")]
    assert guesses[0]["classes"][0]["name"] == guesses[1]["classes"][0]["name"]


def test_two_machines_run_the_same_command_and_write_one_run(start, cache, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    machines = ["--num_machines", "2", "--address", "127.0.0.1", "--port", port]
    content, first = start("two", *machines, "--machine_rank", "0")
    _, second = start("two", *machines, "--machine-rank", "1")
    two = ended(first)
    ended(second)
    same_story(run(content, cache=cache, out=tmp_path / "one").result, two)
    assert [path.name for path in (tmp_path / "two").iterdir()] == [slug(content)]
