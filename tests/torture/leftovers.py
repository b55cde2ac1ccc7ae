"""Temporary files and folders of others beside ours: only what this tool made and nobody uses may go."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from random import Random

from probe import features
from probe.features import inventory
from probe.system import atomic
from probe.train import checkpoint
from tests.support import feature_world as pictures
from tests.torture.kinds import Case, Torture

WORDS = ("download", "half-removed", "00001-abc", "report", "tiny-pets-train", "00000003", "pip-unpack-x1")


def theirs(luck: Random, entry: str, dead: int) -> str:
    """A name that another program, a living process or another machine could have made."""
    here, word = socket.gethostname(), luck.choice(WORDS)
    names = [
        f".tmp-{word}",
        f".tmp-{entry}",
        f".tmp-{word}-{luck.getrandbits(32):08x}",
        f".tmp-{word}-{dead}-{luck.getrandbits(32):08x}",
        f".tmp-{entry}-{os.getpid()}@{here}-{luck.getrandbits(32):08x}",
        f".tmp-{word}-{dead}@elsewhere-{luck.getrandbits(32):08x}",
        f".tmp-{dead}@{here}-{luck.getrandbits(32):08x}.part",
        f".lock{word}",
        word,
        f"{word}-{luck.getrandbits(48):012x}",
    ]
    return luck.choice(names)


def put(luck: Random, path: Path) -> Path:
    """A file, or a folder with something in it; what must survive."""
    while path.exists():
        path = path.with_name(f"{path.name}0")
    if luck.random() < 0.5:
        path.mkdir()
        path = path / "precious"
    path.write_text("keep")
    return path


def other_files(folder: Path) -> Case:
    process = subprocess.Popen(["true"])
    process.wait()
    dead = process.pid

    def case(luck: Random) -> None:
        cache = folder / f"{luck.getrandbits(32):08x}"
        options = {"cache": cache, "shard_rows": 32, "workers": 1, "progress": False}
        features.extract(pictures.backbone(), pictures.split(8), **options)
        entry = next(cache.iterdir())
        ours = f"{dead}@{socket.gethostname()}-{luck.getrandbits(32):08x}"
        left = [cache / f".tmp-{entry.name}-{ours}", entry / f".tmp-manifest.json-{ours}"]
        shutil.copytree(entry, left[0])
        left[1].write_text("half")
        places = [cache, entry, cache / "checkpoints"]
        places[2].mkdir()
        keep = [put(luck, luck.choice(places) / theirs(luck, entry.name, dead)) for _ in range(6)]
        if luck.random() < 0.7:
            assert features.extract(pictures.backbone(), pictures.split(8), **options).cached
            assert not left[1].exists(), "what a killed run left is still there"
        atomic.write_atomic(cache / "pages" / luck.choice(WORDS), "whole")
        assert checkpoint.latest(cache / "checkpoints", "digest") is None
        inventory.remove(cache, everything=True)
        lost = [path for path in keep if not path.exists() or path.read_text() != "keep"]
        assert not lost, f"{lost[0].relative_to(cache)} was not ours to remove"
        assert not [path for path in left if path.exists()], "what a killed removal left is still there"
        assert inventory.entries(cache) == []
        shutil.rmtree(cache)

    return case


PROMISE = "only what this tool made and nobody uses is removed"
ROWS = (Torture("other files: temporary folders", PROMISE, other_files, quick=10),)
