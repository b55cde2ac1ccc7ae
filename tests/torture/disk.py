"""A disk that is full, read-only, failing or slow: one line that names the file, and nothing lost."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from probe import features
from probe.features import inventory
from probe.features.store import Entry
from probe.runs.naming import slug
from probe.system import checksums
from probe.train import checkpoint
from tests.support import feature_world as pictures
from tests.support import training_world as blobs
from tests.torture.children import Before, Child, succeed
from tests.torture.kinds import Case, Torture, complaint
from tests.torture.storage import FileSizeLimit, Flushes
from tests.torture.tiny import World, contents, hasten, leftovers

FULL = (errno.ENOSPC, errno.EDQUOT)
ERRORS = (*FULL, errno.EIO, errno.EROFS, errno.EACCES)
NOBODY = 65534
EVERY_STEP = 1e-9  # minutes


def check_line(said: str, place: Path, *, full: bool) -> None:
    """One line that names a file below `place` and, where space is missing, how much is needed."""
    assert "\n" not in said.strip(), f"more than a line: {said.strip().splitlines()[-1]}"
    assert str(place) in said, f"no file is named: {said}"
    assert not full or re.search(r"\(it needs [\d.]+ (bytes|kB|MB)\)", said), f"no space is named: {said}"


def extraction(cache: Path, **images: object) -> features.FeatureSet:
    return features.extract(
        pictures.backbone(),
        pictures.split(40, **images),
        cache=cache,
        shard_rows=8,
        batch_size=8,
        workers=1,
        progress=False,
    )


def any_flush_of_an_extraction(folder: Path) -> Case:
    extraction(folder / "calm")
    expected = pictures.contents(folder / "calm")

    def case(luck: Random) -> None:
        cache, error = folder / f"{luck.getrandbits(32):08x}", luck.choice(ERRORS)
        # five shards and a manifest, each a file and its folder, and the manifest's link
        flushes = Flushes(luck.randint(1, 13), error, once=luck.random() < 0.3)
        with flushes.inside():
            said = complaint(lambda: extraction(cache))
        assert said or flushes.once, f"{flushes} went unnoticed"
        if said:  # else a second way around the bad spot was found
            check_line(said, cache, full=error in FULL)
        assert inventory.verify(cache) == []
        slow = Flushes(delay=luck.random() * 0.01)
        with slow.inside():
            extraction(cache)
        assert pictures.contents(cache) == expected, "not as from a sound disk"
        shutil.rmtree(cache)

    return case


def any_flush_of_a_training(folder: Path) -> Case:
    def training(place: Path | None, minutes: float = EVERY_STEP) -> blobs.Training:
        return blobs.feature_training("mr2", folder=place, epochs=1, checkpoint_minutes=minutes)

    calm = training(None)
    calm.run()
    expected = blobs.weights(calm)

    def case(luck: Random) -> None:
        place, error = folder / f"{luck.getrandbits(32):08x}", luck.choice(ERRORS)
        with Flushes(luck.randint(1, 60), error, once=luck.random() < 0.3).inside():
            said = complaint(lambda: training(place).run())
        if said is not None:
            check_line(said, place, full=error in FULL)
        saved = place / "checkpoints"
        names = [p.name for p in saved.iterdir()] if saved.exists() else []
        if any(name.isdigit() for name in names):
            assert checkpoint.latest(saved, "recipe") is not None, "the checkpoint before it is lost"
        again = training(place, 60.0)
        again.run()
        assert blobs.same_bits(blobs.weights(again), expected), "not as on a sound disk"
        shutil.rmtree(place)

    return case


class Command:
    """A recipe that has been run once: what it left must survive every failure of the next run."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.world = folder, World.make(folder / "world")
        self.recipe = self.world.recipe_file(way)
        self.slug = slug(self.world.recipe(way))
        self.first = folder / "first"
        counted = folder / "flushes"
        succeed(
            self.words(self.first), folder / "said", before=Flushes(counted=counted), **self.at(self.first)
        )
        self.flushes = counted.stat().st_size
        self.expected = contents(self.first)

    def words(self, place: Path) -> list[str]:
        return ["run", str(self.recipe), "--cache", str(place / "cache"), "--out", str(place / "runs")]

    def at(self, place: Path) -> dict[str, dict[str, str]]:
        return {"environment": {"PROBE_CACHE": str(place / "cache")}}

    def suffers(self, before: Before, luck: Random, *, full: bool) -> None:
        """The command fails in one line with exit code 2 and leaves what was, or does its work."""
        place = self.folder / f"{luck.getrandbits(32):08x}"
        if luck.random() < 0.5:
            shutil.copytree(self.first / "runs", place / "runs")
        had_result = place.exists()
        child = Child(self.words(place), place / "said", before=before, **self.at(place))
        code = child.ended()
        assert code in (0, 2), f"exit code {code}: {child.err.strip().splitlines()[-1:]}"
        if code == 2:
            check_line(child.err, place, full=full)
            if had_result:
                assert contents(place / "runs" / self.slug) == contents(self.first / "runs" / self.slug)
        for path in place.glob("runs/*/result.json"):
            checksums.check(path)
        succeed(self.words(place), place / "said", before=hasten, **self.at(place))
        assert leftovers(place / "cache", place / "runs") == []
        found = {name: content for name, content in contents(place).items() if not name.startswith("said")}
        assert found == self.expected, "not as from a sound disk"
        shutil.rmtree(place)


def any_flush_of_a_run(way: str) -> Callable[[Path], Case]:
    def begin(folder: Path) -> Case:
        command = Command(folder, way)

        def case(luck: Random) -> None:
            error = luck.choice(ERRORS)
            flushes = Flushes(luck.randint(1, command.flushes), error, once=luck.random() < 0.3)
            command.suffers(flushes, luck, full=error in FULL)

        return case

    return begin


def size_limit(folder: Path) -> Case:
    command = Command(folder, "finetune")

    def case(luck: Random) -> None:
        command.suffers(FileSizeLimit(int(4096 * 2 ** (luck.random() * 10))), luck, full=True)

    return case


def read_only_cache(folder: Path) -> Case:
    """Without the rights of root, which no permission stops."""
    expected = extraction(folder / "calm").X.tensor()

    def case(luck: Random) -> None:
        for above in (folder.parent.parent, folder.parent):
            above.chmod(0o755)
        cache = folder / f"{luck.getrandbits(32):08x}"
        shutil.copytree(folder / "calm", cache)
        files = sorted(path for path in cache.rglob("*") if path.is_file())
        state = luck.choice(("whole", "unfinished", "damaged"))
        if state == "unfinished":
            next(path for path in files if path.name == "manifest.json").unlink()
        if state == "damaged":
            _flip(luck.choice(files), luck)
        for path in (folder, cache, *cache.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        found: list[features.FeatureSet] = []
        try:
            said = complaint(lambda: found.append(extraction(cache)))
        finally:
            if root:
                os.seteuid(0)
            for path in (folder, cache, *cache.rglob("*")):
                path.chmod(0o755)
        assert (said is None) == (state == "whole"), f"a {state} entry: {said or 'used'}"
        if said is None:
            assert found[0].cached
            assert bool((found[0].X.tensor() == expected).all())
        else:
            check_line(said, cache, full=False)
        shutil.rmtree(cache)

    return case


def _flip(path: Path, luck: Random) -> None:
    content = bytearray(path.read_bytes())
    content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    path.write_bytes(content)


def removed_cache(folder: Path) -> Case:
    extraction(folder / "calm")
    expected, save = pictures.contents(folder / "calm"), Entry.save

    def case(luck: Random) -> None:
        cache, losses = folder / f"{luck.getrandbits(32):08x}", {luck.randrange(8) for _ in range(2)}
        seen = 0

        def saved_and_lost(self: Entry, *shard: object) -> Path:
            nonlocal seen
            path = save(self, *shard)  # type: ignore[arg-type]
            if seen in losses:
                shutil.rmtree(luck.choice((self.folder, self.folder.parent)))
            seen += 1
            return path

        Entry.save = saved_and_lost  # type: ignore[method-assign]
        try:
            found = extraction(cache)
        finally:
            Entry.save = save  # type: ignore[method-assign]
        assert pictures.contents(cache) == expected, "not as without the loss"
        before = found.X.tensor().clone()
        shutil.rmtree(cache)
        assert bool((found.X.tensor() == before).all()), "features that were handed out have changed"

    return case


NAMED = "one line names the file (and the space); what was there before stays; the next run ends the same"
ROWS = [
    Torture("disk: any flush of an extraction", NAMED, any_flush_of_an_extraction, quick=20),
    Torture("disk: any flush of a training", NAMED, any_flush_of_a_training, quick=6),
    Torture("disk: any flush of a probe", NAMED, any_flush_of_a_run("exact"), timeout=120.0),
    Torture(
        "disk: any flush of a fine-tuning", NAMED, any_flush_of_a_run("finetune"), quick=0, timeout=120.0
    ),
    Torture("disk: file size limit", NAMED, size_limit, quick=0, timeout=120.0),
    Torture("disk: read-only cache", "works from it, or says so", read_only_cache, quick=5, share=0.5),
    Torture("disk: cache removed while in use", "filled again, the same", removed_cache, quick=3, share=0.5),
]
