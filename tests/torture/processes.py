"""One of two processes dies in the middle of an epoch: the other does not wait for it for ever."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from probe.runs.naming import slug
from tests.torture.children import Child, last_line, ranks, wait_until
from tests.torture.kinds import Case, Torture
from tests.torture.tiny import World, contents, hasten, leftovers

PATIENCE = 60.0  # seconds in which the survivor must have ended


def _running_ranks(launcher: int) -> list[int]:
    """The processes that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in children if b"probe.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()]


class Pair:
    """A fine-tuning on two processes, under the launcher or, as on two machines, without one."""

    def __init__(self, folder: Path, *, launched: bool) -> None:
        self.folder, self.launched = folder, launched
        self.world = World.make(folder / "world")
        self.recipe = self.world.recipe_file("finetune", train={"epochs": 4, "workers": 0})
        self.slug = slug(self.world.recipe("finetune", train={"epochs": 4, "workers": 0}))

    def start(self, place: Path) -> list[Child]:
        words = ["run", str(self.recipe), "--cache", str(self.folder / "cache"), "--out", str(place / "runs")]
        words += ["--gpus", "2"] if self.launched else []
        environments = [{}] if self.launched else ranks(2)
        cache = {"PROBE_CACHE": str(self.folder / "cache")}
        before = None if self.launched else hasten
        return [
            Child(words, place / f"said-{number}", environment=environment | cache, before=before)
            for number, environment in enumerate(environments)
        ]

    def finish(self, place: Path) -> dict[str, object]:
        children = self.start(place)
        codes = [child.ended() for child in children]
        assert set(codes) == {0}, f"it ended with {codes}: {last_line(children[0].err)}"
        assert leftovers(place / "runs") == []
        return contents(place / "runs")


def torture(*, launched: bool) -> Callable[[Path], Case]:
    def begin(folder: Path) -> Case:
        pair = Pair(folder, launched=launched)
        expected = pair.finish(folder / "calm")

        def case(luck: Random) -> None:
            place = folder / f"{luck.getrandbits(32):08x}"
            children = pair.start(place)
            saved = place / "runs" / f".{pair.slug}" / "seed-0" / "checkpoints"
            wait_until(lambda: saved.exists() and any(p.name.isdigit() for p in saved.iterdir()))
            time.sleep(luck.random() * 0.2)
            pids = _running_ranks(children[0].pid) if launched else [child.pid for child in children]
            victim = luck.randrange(2)
            os.kill(pids[victim], signal.SIGKILL)
            survivor = children[0] if launched else children[1 - victim]
            code = survivor.ended(PATIENCE)
            if not (place / "runs" / pair.slug).exists():  # else it was over before
                assert code != 0, "exit code 0 after a process died"
                errors = [line for line in survivor.err.splitlines() if line.startswith("error:")]
                assert errors, f"no clear line: {last_line(survivor.err)}"
                assert "Traceback" not in survivor.err, "a traceback"
            for pid in pids:
                wait_until(lambda pid=pid: not _lives(pid), 10.0)
            assert pair.finish(place) == expected, "it goes on to another end"
            shutil.rmtree(place)

        return case

    return begin


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


PROMISE = "the other ends in time with a clear line, and the same command goes on to the same end"
ROWS = [
    Torture("processes: one of two dies", PROMISE, torture(launched=False), quick=1, timeout=240.0),
    Torture("processes: one dies, launched", PROMISE, torture(launched=True), quick=0, timeout=240.0),
]
