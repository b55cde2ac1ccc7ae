"""A pickle that would leave a mark, in every place where a weight, cache, checkpoint or data file is read."""

from __future__ import annotations

import io
import json
import logging
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import backbones
import probe
from probe import data, recipe
from probe.evaluation import external, groups
from probe.features import inventory
from probe.report.html import page
from probe.train import checkpoint
from tests.torture.answers import command, parsed
from tests.torture.finished import run, without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

Read = Callable[[], Any]
NAMES = ("cifar-resnet20", "effnet-lite0", "mocov2-rn50", "clip-rn50", "mae-vit-b16", "timm:resnet18")


class Payload:
    """Unpickled, it runs code that leaves a mark."""

    def __init__(self, mark: Path, how: int) -> None:
        ways = (
            (exec, (f"open({str(mark)!r}, 'w').close()",)),
            (eval, (f"__import__('os').system('touch {mark}')",)),
            (Path.touch, (mark,)),
            (open, (str(mark), "w")),
        )
        self.way = ways[how]

    def __reduce__(self) -> Any:
        return self.way


def poisoned(luck: Random, mark: Path) -> bytes:
    """The payload in one of the wrappings in which pickles travel."""
    payload = Payload(mark, luck.randrange(4))
    content: Any = luck.choice(
        [payload, {"state_dict": {"conv1.weight": payload}}, [payload], {"model": payload}]
    )
    plain = pickle.dumps(content, protocol=luck.randrange(6))

    def zipped() -> bytes:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("archive/data.pkl", plain)
            file.writestr("archive/version", "3\n")
            file.writestr("../../escaped", "x")
        return archive.getvalue()

    def saved(**how: Any) -> bytes:
        file = io.BytesIO()
        torch.save(content, file, **how)
        return file.getvalue()

    def array() -> bytes:
        file = io.BytesIO()
        np.save(file, np.array([payload], dtype=object), allow_pickle=True)
        return file.getvalue()

    return luck.choice(
        [lambda: plain, zipped, saved, lambda: saved(_use_new_zipfile_serialization=False), array]
    )()


def prepare(folder: Path) -> Case:
    page.library = without_charts
    logging.disable(logging.WARNING)  # a damaged checkpoint is told in the log, as it should be
    made, mark = run(folder), folder / "here" / "mark"
    other, cache, work = (folder / "here" / name for name in ("run", "cache", "work"))
    entry = inventory.entries(folder / "cache")[0].path
    photo = str(folder / "photographs" / "test" / "red" / "0.png")
    about = {"digest": "d", "position": {"steps": 1}}
    checkpoint.save(work / "kept", checkpoint.Checkpoint(about, {"network": {"w": torch.ones(2)}}), step=1)

    def places(luck: Random) -> list[tuple[Path, Read]]:
        """Each file that is read, and the reading."""
        name, loose = luck.choice(NAMES), work / "evil"
        found: list[tuple[Path, Read]] = [
            (loose / "weights.pth", lambda: backbones.load(name, weights=loose / "weights.pth")),
            (
                loose / "weights.safetensors",
                lambda: backbones.load(name, weights=loose / "weights.safetensors"),
            ),
            (loose / "pytorch_model.bin", lambda: _hf(loose)),
            (loose / "shard.bin", lambda: _hf(loose, shards=True)),
            (loose / "model.pth", lambda: _timm(loose)),
            (loose / "r.yaml", lambda: recipe.build(recipe.read(loose / "r.yaml"))),
            (loose / "groups.json", lambda: groups.from_file(loose / "groups.json", ["a"])),
            (loose / "p.parquet", lambda: external.read(loose / "p.parquet")),
            (loose / "train.parquet", lambda: data.load(loose)),
            (loose / "train" / "a" / "0.png", lambda: _images(loose)),
            (other / "head.safetensors", lambda: probe.load(other)),
            (other / "head.safetensors", lambda: command(["predict", str(other), photo])),
            (other / "result.json", lambda: command(["report", str(other)])),
            (other / "thumbnails.json", lambda: command(["report", str(other)])),
            (other / "predictions.parquet", lambda: command(["compare", str(made), str(other)])),
            (cache / entry.name / "manifest.json", lambda: inventory.verify(cache)),
            (cache / entry.name / f"00000-{'0' * 32}.safetensors", lambda: inventory.entries(cache)),
            (cache / "digests-1.sqlite", lambda: _extract(folder, cache)),
        ]
        for file in (work / "kept" / "00000001").iterdir():
            at = work / "checkpoints" / "00000001" / file.name
            found.append((at, lambda: checkpoint.latest(work / "checkpoints", "d")))
        return found

    def case(luck: Random) -> None:
        for path, read in luck.sample(places(luck), 4):
            for kept, copy in (
                (made, other),
                (entry, cache / entry.name),
                (work / "kept", work / "checkpoints"),
            ):
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(kept, copy)
            shutil.rmtree(work / "evil", ignore_errors=True)
            (other / "SHA256SUMS").unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(poisoned(luck, mark))
            parsed(read)
            assert not mark.exists(), f"{path.name} ran code"
            assert not list(folder.rglob("escaped")), f"{path.name} was extracted"

    return case


def _hf(folder: Path, *, shards: bool = False) -> None:
    config = {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    config |= {"auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("import pathlib\npathlib.Path('mark').touch()\n")
    if shards:
        index = {"metadata": {}, "weight_map": {"embeddings.cls_token": "shard.bin"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    backbones.load(f"hf:{folder}")


def _timm(folder: Path) -> None:
    config = {"architecture": "resnet18", "pretrained_cfg": {"mean": [0.5] * 3, "num_classes": 0}}
    (folder / "config.json").write_text(json.dumps(config))
    backbones.load("timm:resnet18", weights=folder)


def _images(folder: Path) -> None:
    for split, name in (("train", "b"), ("test", "a"), ("test", "b")):
        (folder / split / name).mkdir(parents=True)
        shutil.copy(folder / "train" / "a" / "0.png", folder / split / name)
    for sample in data.load(folder)["train"]:
        assert sample


def _extract(folder: Path, cache: Path) -> None:
    words = ["--backbone", "cifar-resnet20", "--data", str(folder / "photographs"), "--cache", str(cache)]
    assert (
        command(["extract", *words, "features.workers=0"]).exit_code == 0
    )  # it is only an aid, and made anew


PROMISE = "refused, and no code of it ran"
ROWS = (Torture("security: pickles", PROMISE, jailed(prepare), quick=8, timeout=3 * SECONDS),)
