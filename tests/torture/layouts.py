"""Folders that are nearly data sets: splits missing, empty, nested, looped, closed, and called anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

from PIL import Image

from probe import data
from probe.report.html import page
from tests.torture.answers import command, parsed
from tests.torture.finished import without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

SPLITS = (
    "train",
    "test",
    "val",
    "Train",
    "training",
    "validation",
    "dev",
    "TEST",
    "train ",
    "extra",
    ".train",
    "data",
)
ONE_IN = 20  # tries that go through the whole command
# Folders are bytes to the system: some are no text at all.
NAMES: tuple[bytes, ...] = (
    b"cat",
    b"dog",
    b" ",
    b"a b",
    b"-rf",
    b"--help",
    b"$(touch x)",
    b"`touch x`",
    b"a;b",
    b"a\nb",
    b"\x1b[31mred\x1b[0m",
    b"\xe2\x80\xaegpj.tac",
    b"=cmd|' !A0",
    b"<script>alert(1)<",
    b"\xff\xfe\x80",
    b"\xed\xa0\x80",
    b"caf\xc3\xa9",
    b"cafe\xcc\x81",
    b"CON",
    b"x" * 255,
    b"%s%n",
    b"{}",
    b"..a",
    b"train",
    b"cat.png",
    b"\\",
    b"'\"",
)


def place(luck: Random, folder: bytes, depth: int = 0) -> None:
    """One entry in a class folder: an image, something else, or a folder with more."""
    name = luck.choice(NAMES) + luck.choice([b".png", b".jpg", b".PNG", b".txt", b""])
    path = os.path.join(folder, name[-255:])  # noqa: PTH118 - bytes
    if os.path.lexists(path):
        return
    kind = luck.randrange(9)
    if kind == 0 and depth < 3:
        os.mkdir(path)  # noqa: PTH102
        place(luck, path, depth + 1)
    elif kind == 1:
        os.symlink(luck.choice([b".", b"..", b"../..", name[-255:], b"nowhere"]), path)  # noqa: PTH211
    elif kind == 2:
        os.mkfifo(path)
    else:
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(PIXEL if kind > 3 else luck.randbytes(luck.randrange(30)))


def build(luck: Random, root: Path) -> None:
    classes = luck.sample(NAMES, luck.choice([0, 1, 2, 2, 3, 5]))
    splits = ["train", "test"] if luck.random() < 0.6 else luck.sample(SPLITS, luck.randrange(5))
    for split in splits:
        folder = root / split
        if luck.random() < 0.05:
            folder.write_bytes(b"no folder")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        mine = classes if luck.random() < 0.8 else luck.sample(NAMES, luck.randrange(4))
        for name in mine:
            inner = os.path.join(os.fsencode(folder), name)  # noqa: PTH118
            os.mkdir(inner)  # noqa: PTH102
            for i in range(luck.choice([0, 2, 2, 2, 2, 2])):
                (Path(os.fsdecode(inner)) / f"{i}.png").write_bytes(PIXEL)
            for _ in range(luck.choice([0, 0, 1, 2, 4])):
                place(luck, inner)
    for _ in range(luck.choice([0, 0, 0, 1, 2])):
        stray = root / luck.choice(["x.parquet", "train.parquet", "metadata.csv", "a.png", "train-0.parquet"])
        stray.write_bytes(luck.randbytes(luck.randrange(50)))


def prepare(folder: Path) -> Case:
    root = folder / "data"
    page.library = without_charts

    def look(path: Path) -> None:
        found = data.load(path)
        for name in found.splits:
            split = found[name]
            assert len(split.fingerprint) == 64
            assert len(set(split.ids)) == len(split)
            parsed(lambda split=split: split[0])
            for text in (*split.ids, *split.class_names):
                text.encode()  # what no file can hold has been refused

    def case(luck: Random) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        build(luck, root)
        path = luck.choice([root, root, root, root / "train", root / "none", root / "x.parquet"])
        parsed(lambda: look(path))
        if luck.randrange(ONE_IN) == 0:
            words = ["--backbone", "cifar-resnet20", "--data", str(path), "--skip-bad-images"]
            command(["run", *words, "features.workers=0", "--out", str(folder / "runs"), "--solver", "ridge"])

    return case


def _pixel() -> bytes:
    import io

    content = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(content, "PNG")
    return content.getvalue()


PIXEL = _pixel()
PROMISE = "a checked data set, or one clear line that names what is wrong with it"
ROWS = (Torture("bad input: folders", PROMISE, jailed(prepare), quick=60, share=2, timeout=SECONDS),)
