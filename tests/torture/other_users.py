"""Shared folders in which some files are another user's, and what others left in the environment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import torch

from probe.report.html import page
from probe.system import world
from probe.train import checkpoint
from tests.torture.answers import check_line, command
from tests.torture.children import Child, last_line
from tests.torture.finished import run, without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture, complaint
from tests.torture.tiny import hasten

OTHER_USER = 54321
REFUSED = "belongs to another user"


def give(*paths: Path) -> None:
    """To another user; where only root could, all that is not root's is another user's."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, OTHER_USER, -1, follow_symlinks=False)
    else:
        os.geteuid = lambda: OTHER_USER


def prepare_runs(folder: Path) -> Case:
    page.library = without_charts
    made, data = run(folder), folder / "photographs"
    shared, me = folder / "here" / "shared", os.geteuid
    image = next((data / "test").glob("*/*.png"))
    small = ["run", "--backbone", "cifar-resnet20", "--data", str(data), "--l2", "1", "features.workers=0"]
    theirs = shared / made.name
    # What a command takes of a run folder: one of these of another user is enough.
    takes: dict[str, tuple[tuple[str, ...], list[str]]] = {
        "report": ((".", "result.json", "SHA256SUMS"), ["report", str(theirs)]),
        "predictions": (
            (".", "predictions.parquet", "SHA256SUMS"),
            ["report", str(theirs / "predictions.parquet")],
        ),
        "predict": ((".", "head.safetensors", "SHA256SUMS"), ["predict", str(theirs), str(image)]),
        "compare": (
            (".", "result.json", "predictions.parquet", "SHA256SUMS"),
            ["compare", str(theirs), str(made), "--out", str(folder / "compared")],
        ),
        "groups": (
            (".", "result.json", "SHA256SUMS"),
            [*small, "--method", "mr2", "--groups", str(theirs), "--out", str(folder / "again")],
        ),
        "run": ((".",), [*small, "--out", str(shared)]),
    }

    def case(luck: Random) -> None:
        os.geteuid = me
        shutil.rmtree(shared, ignore_errors=True)
        shutil.copytree(made, theirs)
        files, words = takes[luck.choice(list(takes))]
        given = luck.sample(files, luck.randrange(len(files) + 1))
        trusted = luck.random() < 0.3
        give(*(theirs / name for name in given))
        os.environ["PROBE_TRUST_CACHE"] = str(int(trusted))
        try:
            done = command(words)
        finally:
            os.environ["PROBE_TRUST_CACHE"], os.geteuid = "0", me
        expected = 2 if given and not trusted else 0
        assert done.exit_code == expected, f"{words[0]} with {given}, trusted: {trusted}: {done.stderr}"
        assert not expected or REFUSED in done.stderr

    return case


def prepare_checkpoints(folder: Path) -> Case:
    me, place = os.geteuid, folder / "here" / "checkpoints"

    def case(luck: Random) -> None:
        os.geteuid = me
        shutil.rmtree(place, ignore_errors=True)
        steps = sorted(luck.sample(range(1, 99), luck.randrange(1, 4)))
        for step in steps:
            about = {"digest": "d", "position": {"steps": step}}
            last = checkpoint.save(
                place, checkpoint.Checkpoint(about, {"network": {"w": torch.full((3,), step)}}), step=step
            )
        given = luck.choice([place, last, last / checkpoint.STATE, last / checkpoint.TENSORS, None])
        if given is not None:
            give(given)
        try:
            told = complaint(lambda: checkpoint.latest(place, "d"))
        finally:
            os.geteuid = me
        assert (told is not None) == (given is not None), f"{given}: {told}"
        assert told is None or REFUSED in told

    return case


VALUES = ("0", "1", "2", "7", "-1", "x", "", "1e3", " 1", "127.0.0.1")
NAMES = (*world.NUMBERS, *world.MEETING)
OTHERS = (world.LOCAL_SIZE, *world.MPI)  # never a launcher's set, whatever they say
TRAINED = ("--solver", "sgd", "train.epochs=1", "train.lr=0.1")  # by Accelerate, which believes all of them


def prepare_environment(folder: Path) -> Case:
    """Some of a launcher's variables, in a process of its own."""
    page.library = without_charts
    os.environ["PROBE_CACHE"] = str(folder / "cache")
    (folder / "here").mkdir()
    run(folder)
    words = ["run", "--backbone", "cifar-resnet20", "--data", str(folder / "photographs"), "--l2", "1"]
    words += ["features.workers=0"]

    def case(luck: Random) -> None:
        out = folder / "here" / f"{luck.getrandbits(32):08x}"
        left = {name: luck.choice(VALUES) for name in luck.sample(NAMES, luck.randrange(1, len(NAMES)))}
        odd = luck.choice(
            [{}, {}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"PROBE_CACHE": "~nobody-of-that-name"}]
        )
        others = {name: luck.choice(VALUES) for name in luck.sample(OTHERS, luck.randrange(4))}
        environment = {**odd, **left, **others}
        asked = [*words, *luck.choice([(), TRAINED]), "--out", str(out)]
        child = Child(asked, out / "said", environment=environment, before=hasten)
        code = child.ended(60.0)
        assert "Traceback" not in child.err, last_line(child.err)
        if code == 2:
            check_line(child.err.splitlines(keepends=True)[-1], f"{environment}")
            return
        assert code == 0, f"{environment}: exit code {code}, {last_line(child.err)}"
        written = list(out.glob("*/result.json"))
        assert written or "process 0 writes the results" in child.err, f"{left}: nothing was written"
        told = [name for name in world.NUMBERS if name in left]
        assert not told or "note: " in child.err, f"{left}: nothing was said"
        shutil.rmtree(out)

    return case


ROWS = (
    Torture(
        "other users: run folders",
        "refused in one line, unless they are trusted",
        jailed(prepare_runs),
        quick=12,
        timeout=SECONDS,
    ),
    Torture(
        "other users: checkpoints", "refused, and none is resumed", jailed(prepare_checkpoints), quick=20
    ),
    Torture(
        "environment: what others left in it",
        "a result, or one line that says why not",
        prepare_environment,
        quick=2,
        timeout=120.0,
    ),
)
