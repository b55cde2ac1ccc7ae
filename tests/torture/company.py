"""Eight extractions on one cache at once, some of them killed, with and without locks."""

from __future__ import annotations

import errno
import shutil
import time
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from probe import features
from probe.features import inventory
from probe.system import locks
from tests.support import feature_world as pictures
from tests.torture.children import HANGS
from tests.torture.kinds import Case, Torture
from tests.torture.runner import context

IMAGES, EIGHT = 64, 8


def _unsupported(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def _no_locks() -> None:
    """A file system without record locks: claims are links."""
    locks.fcntl.lockf = _unsupported  # type: ignore[assignment]


def _no_claims() -> None:
    """One without links as well: everybody works on everything."""
    _no_locks()
    Path.symlink_to = _unsupported  # type: ignore[method-assign,assignment]


KINDS = {"record locks": lambda: None, "links": _no_locks, "nothing": _no_claims}


def _extract(cache: Path, kind: str, wait: float, delay: float, answer: Connection | None) -> None:
    """In a process: the images it has read, and what came out."""
    import torch

    torch.set_num_threads(1)
    KINDS[kind]()
    time.sleep(wait)
    split = pictures.split(IMAGES, delay=delay)
    options = {"shard_rows": 4, "batch_size": 4, "workers": 1, "progress": False}
    f = features.extract(pictures.backbone(), split, cache=cache, **options)
    if answer is not None:
        answer.send((len(split._images.seen), f.X.tensor().numpy().tobytes()))  # type: ignore[attr-defined]


def eight(folder: Path) -> Case:
    _extract(folder / "calm", "record locks", 0.0, 0.0, None)
    expected = pictures.contents(folder / "calm")
    processes = context()

    def case(luck: Random) -> None:
        cache, kind = folder / f"{luck.getrandbits(32):08x}", luck.choice(list(KINDS))
        doomed = luck.choice((0, 0, 2, 4))
        running = []
        for _ in range(EIGHT):
            ours, theirs = processes.Pipe()
            words = (cache, kind, luck.random() * 0.2, 0.005, theirs)
            process = processes.Process(target=_extract, args=words)
            process.start()
            theirs.close()
            running.append((process, ours))
        for process, _ in running[:doomed]:
            time.sleep(luck.random() * 0.2)
            process.kill()
        seen, results, end = 0, set(), time.monotonic() + HANGS
        for process, ours in running[doomed:]:
            assert ours.poll(max(0.0, end - time.monotonic())), "one of them waits for ever"
            images, result = ours.recv()
            seen += images
            results.add(result)
            process.join()
        for process, _ in running[:doomed]:
            process.join()
        assert len(results) == 1, "they do not agree"
        if kind != "nothing" and not doomed:
            assert seen == IMAGES, f"{seen} images were read, of {IMAGES}, with {kind}"
        if doomed:  # one may have died when all others were through: the next to come tidies up
            _extract(cache, "record locks", 0.0, 0.0, None)
        left = [path.name for path in cache.rglob(".*")]
        assert not left, f"{left[0]} outlives its owner"
        assert inventory.verify(cache) == []
        assert pictures.contents(cache) == expected, "not as from one alone"
        shutil.rmtree(cache)

    return case


PROMISE = "the work is done once, all end with the same, no lock outlives its owner"
ROWS = [Torture("company: eight at once", PROMISE, eight, timeout=150.0)]
