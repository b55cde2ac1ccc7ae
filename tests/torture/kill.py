"""kill -9 at any moment, then the same command again: the end is the same to the last bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from probe.features import inventory
from probe.runs.naming import slug
from probe.system import checksums
from tests.torture.children import Child, last_line, ranks
from tests.torture.kinds import Case, Torture
from tests.torture.tiny import World, contents, hasten, leftovers

Words = Callable[[World, Path], list[str]]  # the command that works in a folder


def _extraction(world: World, place: Path) -> list[str]:
    return ["extract", str(world.recipe_file("exact")), "--cache", str(place / "cache")]


def _running(way: str) -> Words:
    def words(world: World, place: Path) -> list[str]:
        return ["run", str(world.recipe_file(way)), *_places(place)]

    return words


def _comparison(world: World, place: Path) -> list[str]:
    r = world.recipe("exact")
    grid = ["--backbones", r.backbone.name, "--data", r.data.name, "--methods", "erm mr2", *_places(place)]
    return ["compare", *grid, f"backbone.image_size={r.backbone.image_size}", "solver.l2=1.0"]


def _report(world: World, place: Path) -> list[str]:
    return ["report", str(place / "runs" / slug(world.recipe("exact")))]


def _places(place: Path) -> list[str]:
    return ["--cache", str(place / "cache"), "--out", str(place / "runs")]


@dataclass(frozen=True)
class Scene:
    """A command that is killed, on so many processes, and what has happened undisturbed before it."""

    words: Words
    before: tuple[Words, ...] = (_extraction,)
    processes: int = 1
    retells: bool = False  # writes nothing but what follows from files: equal with the times in it


@dataclass(frozen=True)
class Job:
    """A scene in a folder of its own."""

    world: World
    scene: Scene
    place: Path

    def start(self, words: Words | None = None) -> list[Child]:
        environments = ranks(self.scene.processes) if self.scene.processes > 1 and not words else [{}]
        cache = {"PROBE_CACHE": str(self.place / "cache")}
        told = (words or self.scene.words)(self.world, self.place)
        return [
            Child(told, self.place / f"said-{rank}", environment=environment | cache, before=hasten)
            for rank, environment in enumerate(environments)
        ]

    def finish(self, words: Words | None = None) -> None:
        children = self.start(words)
        codes = [child.ended() for child in children]
        assert set(codes) == {0}, f"it ended with {codes}: {last_line(children[0].err)}"

    def kill_after(self, seconds: float) -> bool:
        """False if it was over before."""
        children = self.start()
        time.sleep(seconds)
        killed = [child.kill() for child in children]
        return any(killed)

    def check_visible(self) -> None:
        """What can be seen is whole, whatever moment this is."""
        for folder in (self.place / "runs").glob("[!.]*"):
            names = {path.name for path in folder.iterdir()}
            whole = COMPARISON if folder.name.startswith("compare-") else RUN
            assert whole <= names, f"{folder.name} is half-visible: it lacks {sorted(whole - names)}"
            for name in whole & RUN - {"report.html"}:
                checksums.check(folder / name)
        damaged = inventory.verify(self.place / "cache")
        assert not damaged, f"half-visible: {damaged[0]}"

    def result(self) -> dict[str, object]:
        left = leftovers(self.place / "cache", self.place / "runs")
        assert not left, f"left behind: {left[0]}"
        parts = ("cache", "runs")
        return {
            f"{part}/{name}": content
            for part in parts
            for name, content in contents(self.place / part, times=self.scene.retells).items()
        }


MOST = 5  # kills before a command may end
RUN = {"result.json", "recipe.yaml", "head.safetensors", "predictions.parquet", "log.jsonl", "report.html"}
COMPARISON = {f"comparison.{kind}" for kind in ("json", "csv", "md", "tex", "html")}


def torture(scene: Scene) -> Callable[[Path], Case]:
    """Kill a command up to five times in a row, then let it end, and compare with an undisturbed one."""

    def begin(folder: Path) -> Case:
        world, first = World.make(folder / "world"), folder / "first"
        first.mkdir()
        for words in scene.before:
            Job(world, scene, first).finish(words)
        calm, began = Job(world, scene, folder / "calm"), time.monotonic()
        shutil.copytree(first, calm.place)
        calm.finish()
        duration, expected = time.monotonic() - began, calm.result()

        def case(luck: Random) -> int:
            job = Job(world, scene, folder / f"try-{luck.getrandbits(32):08x}")
            shutil.copytree(first, job.place)
            kills = 0
            for _ in range(luck.randint(1, MOST)):
                kills += job.kill_after(luck.random() * duration)
                job.check_visible()
            job.finish()
            _same(expected, job.result())
            shutil.rmtree(job.place)
            return kills

        return case

    return begin


def _same(expected: dict[str, object], found: dict[str, object]) -> None:
    assert found.keys() == expected.keys(), f"other files: {sorted(found.keys() ^ expected.keys())}"
    changed = [name for name in expected if found[name] != expected[name]]
    assert not changed, f"not as in an undisturbed run: {changed}"


SCENES = {
    "extraction": Scene(_extraction, before=()),
    "exact probing": Scene(_running("exact")),
    "SGD probing": Scene(_running("sgd")),
    "fine-tuning": Scene(_running("finetune")),
    "fine-tuning on two processes": Scene(_running("finetune"), processes=2),
    "comparison": Scene(_comparison),
    "report": Scene(_report, before=(_extraction, _running("exact")), retells=True),
}
PROMISE = "the same command ends with the same bits, nothing half-visible, nothing left behind"
SLOW = ("fine-tuning", "comparison")  # for `make test`, which has their parts in other rows
ROWS = [
    Torture(f"kill: {name}", PROMISE, torture(scene), quick=int(name not in SLOW), share=3.0, timeout=120.0)
    for name, scene in SCENES.items()
]
