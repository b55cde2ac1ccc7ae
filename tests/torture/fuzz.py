"""The parsers we own under a coverage-guided fuzzer: a value, a named problem or a UserError."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

from probe import recipe
from probe.features import inventory
from probe.features.cache_key import SHORT
from probe.features.entry_format import MANIFEST, SHARD_NAME
from probe.report.html import page
from probe.runs import report
from probe.system.sealed_json import canonical, digest, sealed
from tests.torture.answers import parsed
from tests.torture.coverage_guided import changed, fuzz
from tests.torture.finished import extract, run, without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture
from tests.torture.trees import mutated

EXECUTIONS = 80  # of each try


def structured(luck: Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    """JSON is mostly changed as a tree: changed bytes would rarely be JSON again."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict) or luck.random() < 0.3:
        return changed(luck, content, corpus)
    return json.dumps(mutated(luck, tree)).encode()


def resealed(luck: Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    """A manifest whose body was changed and whose checksum was made to fit, now and then."""
    try:
        body = json.loads(content)["body"]
        if luck.random() < 0.7:
            return sealed(mutated(luck, body)).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return changed(luck, content, corpus)


def prepare_recipes(folder: Path) -> Case:
    path = folder / "here" / "recipe.yaml"
    seeds = [
        b"seeds: 2\n",
        b"method: {name: mr2, lam: 0.5}\nsolver: knn\n",
        recipe.Recipe().to_yaml().encode(),
    ]

    def parse(content: bytes) -> None:
        path.write_bytes(content)
        parsed(lambda: recipe.build(recipe.read(path)).slug)

    return lambda luck: _kept(fuzz(parse, seeds, luck, EXECUTIONS), seeds)


def prepare_results(folder: Path) -> Case:
    page.library = without_charts
    made = run(folder)
    other = folder / "here" / "run"
    other.mkdir()
    whole = json.loads((made / "result.json").read_text())
    small = {**whole, "diagnostics": {}, "margins": None}
    seeds = [json.dumps(result).encode() for result in (small, whole)]

    def parse(content: bytes) -> None:
        (other / "result.json").write_bytes(content)
        parsed(lambda: report.report(other))

    return lambda luck: _kept(fuzz(parse, seeds, luck, EXECUTIONS // 4, structured), seeds)


def _entry(folder: Path) -> Path:
    extract(folder)
    return next(entry.path for entry in inventory.entries(folder / "cache") if entry.rows == 12)


def prepare_manifests(folder: Path) -> Case:
    entry = _entry(folder)
    seed = (entry / MANIFEST).read_bytes()
    place = folder / "here" / "cache"

    def parse(content: bytes) -> None:
        shutil.rmtree(place, ignore_errors=True)
        try:  # the folder is named by the key, so that a changed key is not found out by its name alone
            name = digest(canonical(json.loads(content)["body"]["key"]))[:SHORT]
        except (ValueError, KeyError, TypeError, RecursionError):
            name = entry.name[-SHORT:]
        shutil.copytree(entry, place / f"x-{name}")
        (place / f"x-{name}" / MANIFEST).write_bytes(content)
        _looked_at(place)

    return lambda luck: _kept(fuzz(parse, [seed], luck, EXECUTIONS, resealed), [seed])


def prepare_shards(folder: Path) -> Case:
    entry = _entry(folder)
    shard = next(path for path in entry.iterdir() if SHARD_NAME.fullmatch(path.name))
    seed = shard.read_bytes()
    place = folder / "here" / "cache"

    def parse(content: bytes) -> None:
        shutil.rmtree(place, ignore_errors=True)
        (place / entry.name).mkdir(parents=True)
        # a shard is named by the digest of its bytes: here the name always fits
        (place / entry.name / f"00000-{digest(content)[:32]}.safetensors").write_bytes(content)
        _looked_at(place)

    def header(luck: Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
        """Mostly the first bytes: lengths and names stand there."""
        return changed(luck, content[:400], corpus) + content[400:] if luck.random() < 0.8 else content[:-9]

    return lambda luck: _kept(fuzz(parse, [seed], luck, EXECUTIONS, header), [seed])


def _looked_at(cache: Path) -> None:
    """What `probe cache ls` and `probe cache verify` do."""
    states = {entry.state for entry in inventory.entries(cache)}
    assert states <= set(inventory.STATES)
    inventory.verify(cache)


def _kept(number: int, seeds: Sequence[bytes]) -> None:
    assert number > len(seeds), "no input reached a new line: the fuzzer is blind"


PROMISE = f"{EXECUTIONS} inputs, each a value or a named problem"
ROWS = (
    Torture("fuzz: recipe", PROMISE, jailed(prepare_recipes), timeout=3 * SECONDS),
    Torture("fuzz: result", PROMISE, jailed(prepare_results), timeout=3 * SECONDS),
    Torture("fuzz: cache manifest", PROMISE, jailed(prepare_manifests), timeout=3 * SECONDS),
    Torture("fuzz: shard header", PROMISE, jailed(prepare_shards), timeout=3 * SECONDS),
)
