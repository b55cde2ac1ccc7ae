"""A bit flipped, a file cut, emptied, removed or exchanged: noticed before a number is used, and named."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from probe import features
from probe.cli import main
from probe.report.html import page
from probe.runs import compare, predict, report
from probe.runs.naming import slug
from probe.system import digest_index
from probe.train import checkpoint
from tests.support import feature_world as pictures
from tests.support import training_world as blobs
from tests.torture.children import succeed
from tests.torture.kinds import Case, Torture, complaint
from tests.torture.tiny import World, hasten

Harm = Callable[
    [Path, Path, Random], None
]  # what is done to a file; a file of the same kind to exchange with


def _flip(path: Path, other: Path, luck: Random) -> None:
    content = bytearray(path.read_bytes())
    content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    path.write_bytes(content)


def _overwrite(path: Path, other: Path, luck: Random) -> None:
    content = bytearray(path.read_bytes())
    start = luck.randrange(len(content))
    length = min(len(content) - start, 1 << luck.randrange(12))
    content[start : start + length] = luck.randbytes(length)
    path.write_bytes(content)


def _cut(path: Path, other: Path, luck: Random) -> None:
    os.truncate(path, luck.randrange(path.stat().st_size))


def _append(path: Path, other: Path, luck: Random) -> None:
    path.write_bytes(path.read_bytes() + luck.randbytes(luck.randint(1, 100)))


HARMS: list[Harm] = [
    _flip,
    _overwrite,
    _cut,
    _append,
    lambda path, other, luck: os.truncate(path, 0),
    lambda path, other, luck: path.unlink(),
    lambda path, other, luck: shutil.copyfile(other, path) and None,
]


def hurt(path: Path, other: Path, luck: Random) -> bool:
    """Do something to a file; False if by chance it is as before."""
    before = path.read_bytes()
    luck.choice(HARMS)(path, other, luck)
    return not path.exists() or path.read_bytes() != before


@contextmanager
def heard(name: str) -> Iterator[list[str]]:
    """The warnings that a part of the product logs inside the block."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ear = Ear()
    logging.getLogger(name).addHandler(ear)
    try:
        yield said
    finally:
        logging.getLogger(name).removeHandler(ear)


def cache_entry(folder: Path) -> Case:
    def extraction(cache: Path, seed: int = 0) -> features.FeatureSet:
        options = {"shard_rows": 8, "batch_size": 8, "workers": 1, "progress": False}
        return features.extract(pictures.backbone(seed), pictures.split(40), cache=cache, **options)

    calm = folder / "calm"
    mine, other = (extraction(calm, seed).key[:12] for seed in (0, 1))
    expected = pictures.contents(calm)

    def case(luck: Random) -> None:
        cache = folder / f"{luck.getrandbits(32):08x}"
        shutil.copytree(calm, cache)
        path = luck.choice(sorted(next(cache.glob(f"*-{mine}")).iterdir()))
        pool = [*cache.glob(f"*-{other}/*"), *path.parent.iterdir()]
        alike = [p for p in sorted(pool) if p.suffix == path.suffix and p != path] or sorted(pool)
        unfinished = path.name == "manifest.json"
        if hurt(path, luck.choice(alike), luck) and not (unfinished and not path.exists()):
            verified = CliRunner().invoke(main, ["cache", "verify", "--cache", str(cache)])
            assert verified.exit_code == 1, f"verify did not find {path.name}"
            assert f"{path.parent.name}/{path.name}" in verified.output, f"verify named {verified.output}"
            with heard("probe.features") as said:
                found = extraction(cache)
            assert any(path.name in line for line in said), f"{path.name} was not named"
            assert not found.cached
        else:
            extraction(cache)
        assert pictures.contents(cache) == expected, "not rebuilt as it was"
        shutil.rmtree(cache)

    return case


def checkpoints(folder: Path) -> Case:
    def training(place: Path | None, **more: Any) -> blobs.Training:
        minutes = 60.0 if place is None else 1e-9
        return blobs.feature_training("mr2", folder=place, epochs=1, checkpoint_minutes=minutes, **more)

    calm = training(None)
    calm.run()
    expected = blobs.weights(calm)
    training(folder / "mine").run()
    training(folder / "other", digest="another", seed=1).run()

    def case(luck: Random) -> None:
        place = folder / f"{luck.getrandbits(32):08x}"
        shutil.copytree(folder / "mine", place)
        older, newest = sorted((place / "checkpoints").iterdir())
        path = luck.choice(sorted(newest.iterdir()))
        theirs = folder / "other" / "checkpoints" / newest.name
        if luck.random() < 0.1:  # a whole one, of another recipe
            shutil.rmtree(newest)
            shutil.copytree(theirs, newest)
            said = complaint(lambda: checkpoint.latest(place / "checkpoints", "recipe"))
            assert said is not None, "another recipe's checkpoint was taken"
            assert str(newest) in said, "another recipe's checkpoint was not named"
            shutil.rmtree(place)
            return
        changed = hurt(path, luck.choice((older / path.name, theirs / path.name)), luck)
        with heard("probe.train") as warnings:
            state = checkpoint.latest(place / "checkpoints", "recipe")
        assert state is not None, "the checkpoint before it was not found"
        assert state.about["position"]["steps"] == int((older if changed else newest).name)
        assert not changed or any(str(newest) in line for line in warnings), (
            "the damaged checkpoint is not named"
        )
        again = training(place)
        again.run()
        assert blobs.same_bits(blobs.weights(again), expected), "other weights"
        shutil.rmtree(place)

    return case


def run_folder(folder: Path) -> Case:
    """Each file of a run, then everything that reads it."""
    world = World.make(folder / "world")
    for way in ("finetune", "exact"):
        places = ["--cache", str(folder / "cache"), "--out", str(folder / "runs")]
        words = ["run", str(world.recipe_file(way)), *places]
        succeed(words, folder / "said", before=hasten, environment={"PROBE_CACHE": str(folder / "cache")})
    images = sorted((world.root / "colours" / "test").rglob("*.png"))[:3]
    os.environ["PROBE_CACHE"] = str(folder / "cache")
    hasten()
    readers = {
        "predict": lambda run, other: predict.predict(run, images),
        "report": lambda run, other: report.report(run).result,
        "compare": lambda run, other: compare.of_runs([other, run]),
    }
    slugs = [slug(world.recipe(way)) for way in ("finetune", "exact")]
    expected = {
        (slug, name): read(folder / "runs" / slug, folder / "runs" / slugs[1])
        for slug in slugs
        for name, read in readers.items()
    }

    def case(luck: Random) -> None:
        place, slug = folder / f"{luck.getrandbits(32):08x}", luck.choice(slugs)
        shutil.copytree(folder / "runs", place)
        path = luck.choice(sorted((place / slug).iterdir()))
        other = place / next(s for s in slugs if s != slug) / path.name
        hurt(path, other if other.exists() else other.with_name("head.safetensors"), luck)
        name = luck.choice(list(readers))
        reference = folder / "runs" / slugs[1]
        found: list[object] = []
        said = complaint(lambda: found.append(readers[name](place / slug, reference)))
        if said is not None:
            assert str(place) in said, f"{name} does not name the file: {said}"
            assert "\n" not in said, f"more than a line: {said}"
        else:
            assert found[0] == expected[slug, name], f"{name} took a damaged {path.name}"
        shutil.rmtree(place)

    return case


def aids(folder: Path) -> Case:
    """The remembered digests, and the page's script: damage costs time and nothing else."""
    files = []
    for number in range(40):
        files.append(folder / f"{number}.bin")
        files[-1].write_bytes(os.urandom(100))
    true = [hashlib.sha256(path.read_bytes()).digest() for path in files]
    digest_index.RACY = -(1 << 62)  # files of this very moment are remembered too

    def digests(cache: Path) -> list[bytes]:
        return digest_index.digests(files, _digest, lengths=[32] * len(files), cache=cache)

    calm = folder / "calm"
    assert digests(calm) == true
    script = "let vega = 1;" * 1000
    import vl_convert

    vl_convert.javascript_bundle = lambda: script

    def case(luck: Random) -> None:
        cache = folder / f"{luck.getrandbits(32):08x}"
        shutil.copytree(calm, cache)
        os.environ["PROBE_CACHE"] = str(cache)
        page.library.cache_clear()
        page.library()
        (kept,) = (cache / "report").iterdir()
        hurt(cache / digest_index.NAME, kept, luck)
        if hurt(kept, calm / digest_index.NAME, luck) and kept.exists():
            verified = CliRunner().invoke(main, ["cache", "verify", "--cache", str(cache)])
            assert (verified.exit_code, kept.name in verified.output) == (1, True), "verify did not find it"
        page.library.cache_clear()
        assert page.library() == script, "a damaged script was used"
        assert digests(cache) == true, "a damaged digest was used"
        assert digests(cache) == true, "a damaged digest was kept"
        shutil.rmtree(cache)

    return case


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


NOTICED = "noticed, named, rebuilt as it was"
ROWS = [
    Torture("damage: cache entry", NOTICED, cache_entry, quick=20),
    Torture("damage: checkpoint", NOTICED, checkpoints, quick=5),
    Torture("damage: run folder", "one line that names the file, or the same answer", run_folder, quick=10),
    Torture("damage: digests and script", "made again", aids, quick=20, share=0.5),
]
