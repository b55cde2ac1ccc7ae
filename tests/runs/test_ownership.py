"""What another user wrote into a shared folder of runs is not taken up, unless they are trusted."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner

from probe import recipe
from probe.cli import main
from probe.errors import UserError
from probe.runs import staleness
from probe.runs.folder import RunFolder
from probe.runs.naming import slug
from probe.train import checkpoint
from tests.support.painted_images import COLOURS, paint

STRANGER = 12345


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A finished run of our own, with its data and cache."""
    import numpy as np

    root = tmp_path_factory.mktemp("shared")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in list(COLOURS)[:3]:
            paint(root / "data" / split / name, COLOURS[name], 4, rng)
    words = ["--backbone", "cifar-resnet20", "--data", str(root / "data"), "--l2", "1", "--method", "erm"]
    words += ["features.workers=0"]
    done = CliRunner().invoke(
        main, ["run", *words, "--cache", str(root / "cache"), "--out", str(root / "runs")]
    )
    assert done.exit_code == 0, done.output
    (root / "words.json").write_text(json.dumps(words))
    return root


@pytest.fixture
def shared(world, tmp_path, monkeypatch):
    """A copy of it that `theirs(paths...)` gives to another user; tests run as root, or as if."""
    shutil.copytree(world / "runs", tmp_path / "runs")
    (run,) = (tmp_path / "runs").glob("[!.]*")

    def theirs(*paths):
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, STRANGER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)

    return run, theirs


def probe_command(world, *words):
    return CliRunner().invoke(main, [*map(str, words)], env={"PROBE_CACHE": str(world / "cache")})


def refused(done):
    assert done.exit_code == 2, done.output
    assert "belongs to another user" in done.stderr, done.stderr
    assert "PROBE_TRUST_CACHE=1" in done.stderr
    assert done.stderr.count("\n") == 1
    return True


WAYS = {
    "report": lambda world, run: ["report", run],
    "report predictions": lambda world, run: ["report", run / "predictions.parquet"],
    "predict": lambda world, run: ["predict", run, next((world / "data/test").glob("*/*.png"))],
    "compare runs": lambda world, run: ["compare", run, run, "--out", run.parent],
    "groups": lambda world, run: [
        "run", *json.loads((world / "words.json").read_text()), "--method", "mr2", "--groups", run,
        "--out", run.parent,
    ],
    "run again": lambda world, run: [
        "run", *json.loads((world / "words.json").read_text()), "--out", run.parent,
    ],
    "compare grid": lambda world, run: [
        "compare", "--backbones", "cifar-resnet20", "--data", world / "data", "--methods", "erm",
        "solver.l2=1", "features.workers=0", "--out", run.parent,
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_strangers_run_is_not_taken_up(world, shared, way, monkeypatch):
    run, theirs = shared
    before = (run / "result.json").read_bytes()
    theirs(run)
    assert refused(probe_command(world, *WAYS[way](world, run)))
    assert (run / "result.json").read_bytes() == before
    monkeypatch.setenv("PROBE_TRUST_CACHE", "1")
    done = probe_command(world, *WAYS[way](world, run))
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("way", "file"),
    [
        ("report", "result.json"),
        ("report", "SHA256SUMS"),
        ("predict", "head.safetensors"),
        ("compare runs", "predictions.parquet"),
        ("groups", "result.json"),
    ],
)
def test_one_file_of_a_stranger_in_our_folder_is_enough(world, shared, way, file):
    run, theirs = shared
    theirs(run / file)
    assert refused(probe_command(world, *WAYS[way](world, run)))


@pytest.mark.parametrize("way", ["report", "predict", "groups"])
def test_a_strangers_link_is_not_followed_even_to_our_own_run(world, shared, way):
    """They chose which of our runs it is."""
    run, theirs = shared
    link = run.parent / "latest"
    link.symlink_to(run)
    assert probe_command(world, *WAYS[way](world, link)).exit_code == 0
    theirs(link)
    assert refused(probe_command(world, *WAYS[way](world, link)))


def test_loose_predictions_of_another_user_are_data(world, shared):
    run, theirs = shared
    loose = run.parent / "loose.parquet"
    shutil.copy(run / "predictions.parquet", loose)
    theirs(loose)
    assert probe_command(world, "report", loose).exit_code == 0


def test_a_strangers_checkpoint_is_not_gone_on_from(tmp_path, monkeypatch):
    import torch

    state = checkpoint.Checkpoint(
        {"digest": "d", "position": {"steps": 3}}, {"network": {"weight": torch.zeros(2)}}
    )
    folder = tmp_path / "checkpoints"
    final = checkpoint.save(folder, state, step=3)
    assert checkpoint.latest(folder, "d") is not None
    for place in (folder, final, final / checkpoint.STATE, final / checkpoint.TENSORS):
        if os.geteuid() == 0:
            os.chown(place, STRANGER, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
        with pytest.raises(UserError, match="belongs to another user"):
            checkpoint.latest(folder, "d")
        monkeypatch.setenv("PROBE_TRUST_CACHE", "1")
        assert checkpoint.latest(folder, "d") is not None
        monkeypatch.delenv("PROBE_TRUST_CACHE")
        if os.geteuid() == 0:
            os.chown(place, 0, -1)


def test_a_strangers_run_is_no_stored_answer(tmp_path, monkeypatch):
    wanted = recipe.build({"backbone": "cifar-resnet20", "data": "digits", "method": "erm"})
    folder = tmp_path / slug(wanted)
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(UserError, match="another user"):
        staleness.stored(wanted, RunFolder(folder))
