"""Small files that cost much: sparse ones, pipes, devices without end, parquet files of millions of rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from probe.report.html import page
from tests.torture.answers import command
from tests.torture.finished import run, without_charts
from tests.torture.images import painted
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

SPARSE = (70 << 20, 3 << 30)  # bytes that take no space


def sparse(luck: Random, path: Path) -> None:
    with path.open("wb") as file:
        file.write(luck.choice([b"", b"{", b"PAR1", b"\x89PNG"]))
        # What is hashed before it is parsed may take its time, but not a minute.
        file.truncate(SPARSE[0] if path.suffix == ".safetensors" else luck.choice(SPARSE))


def pipe(luck: Random, path: Path) -> None:
    os.mkfifo(path)


def endless(luck: Random, path: Path) -> None:
    path.symlink_to(luck.choice(["/dev/zero", "/dev/urandom", "/dev/tty", "/proc/self/mem", "."]))


def rows(luck: Random, path: Path) -> None:
    """One image, one label and one name stand for any number of rows."""
    number = luck.choice([50_000, 200_000, 500_000])
    same = pa.array([0], pa.int32()).take(pa.array([0] * number, pa.int32()))
    once = {
        "image": [painted(luck)],
        "label": luck.choice([[0], ["cat"], ["x" * 100_000]]),
        "id": luck.choice([["a"], ["y" * 1_000_000], [7]]),
        "prediction": [0],
        "scores": [[0.0] * luck.choice([2, 10_000])],
    }
    columns = {
        name: pa.DictionaryArray.from_arrays(same, pa.array(values))
        for name, values in once.items()
        if name != "scores"
    }
    if luck.random() < 0.3:
        short = pa.array([0] * 5000, pa.int32())
        columns = {name: column[:5000] for name, column in columns.items()}
        columns["scores"] = pa.array(once["scores"]).take(short)
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)


KINDS: tuple[Callable[[Random, Path], None], ...] = (sparse, pipe, endless, rows)


def prepare(folder: Path) -> Case:
    page.library = without_charts
    made, data = run(folder), folder / "photographs"
    image = next((data / "test").glob("*/*.png"))
    runs, timm = folder / "here" / "runs", folder / "here" / "vit"
    small = ["run", "--backbone", "cifar-resnet20", "--l2", "1", "--out", str(folder / "again")]
    # What stands in for which file, and the commands that would read it.
    places: dict[str, tuple[Path, list[str]]] = {
        "result": (runs / "result.json", ["report", str(runs)]),
        "groups of a run": (runs / "result.json", [*small, "--data", str(data), "--groups", str(runs)]),
        "sums": (runs / "SHA256SUMS", ["report", str(runs)]),
        "sums of a head": (runs / "SHA256SUMS", ["predict", str(runs), str(image)]),
        "thumbnails": (runs / "thumbnails.json", ["report", str(runs)]),
        "head": (runs / "head.safetensors", ["predict", str(runs), str(image)]),
        "recipe": (runs / "recipe.yaml", ["run", str(runs / "recipe.yaml")]),
        "predictions": (runs / "predictions.parquet", ["report", str(runs / "predictions.parquet")]),
        "compared": (
            runs / "predictions.parquet",
            ["compare", str(made), str(runs), "--out", str(folder / "c")],
        ),
        "groups": (runs / "g.json", [*small, "--data", str(data), "--groups", str(runs / "g.json")]),
        "an image": (runs / "x.png", ["predict", str(made), str(runs / "x.png")]),
        "parquet": (runs / "d" / "train.parquet", [*small, "--data", str(runs / "d")]),
        "timm": (timm / "config.json", [*small, "--data", str(data), "--backbone", f"timm:{timm}"]),
        "hf": (timm / "config.json", [*small, "--data", str(data), "--backbone", f"hf:{timm}"]),
        "weights": (timm / "w.pth", [*small, "--data", str(data), "--weights", str(timm / "w.pth")]),
    }
    test = pa.table({"image": [image.read_bytes()] * 2, "label": [0, 1]})

    def case(luck: Random) -> None:
        for old in (runs, timm):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(made, runs)
        (runs / "d").mkdir()
        pq.write_table(test, runs / "d" / "test.parquet")
        timm.mkdir()
        (timm / "preprocessor_config.json").write_text("{}")
        (timm / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
        path, words = places[luck.choice(list(places))]
        kind = luck.choice(KINDS if path.suffix == ".parquet" else KINDS[:3])
        if path.name == "result.json" and luck.random() < 0.5:
            (runs / "SHA256SUMS").unlink()
        path.unlink(missing_ok=True)
        kind(luck, path)
        done = command(words)
        shown = path.name == "thumbnails.json"  # a page without thumbnails is a page
        assert shown or done.exit_code == 2, f"{path.name} as {kind.__name__} was taken: {done.output[:200]}"

    return case


def prepare_images(folder: Path) -> Case:
    """The same among the images of a data set: extraction ends in time, with a line that names the file."""
    page.library = without_charts
    data = folder / "here" / "data"

    def case(luck: Random) -> None:
        shutil.rmtree(data, ignore_errors=True)
        for split in ("train", "test"):
            for name in ("a", "b"):
                (data / split / name).mkdir(parents=True)
                for i in range(3):
                    colour = tuple(luck.randrange(256) for _ in range(3))
                    Image.new("RGB", (9, 9), colour).save(data / split / name / f"{i}.png")
        path = data / luck.choice(["train", "test"]) / luck.choice("ab") / luck.choice(["1.png", "new.jpg"])
        path.unlink(missing_ok=True)
        luck.choice(KINDS[:3])(luck, path)
        words = ["extract", "--backbone", "cifar-resnet20", "--data", str(data), "features.workers=0"]
        if luck.random() < 0.5:
            done = command([*words, "data.skip_bad_images=true"])
            # a device that fails to be read is not a bad image: the failure may pass
            assert done.exit_code == 0 or path.name in done.stderr
        elif not path.is_dir():
            assert path.name in command(words).stderr

    return case


PROMISE = "one clear line in time, and little memory"
ROWS = (
    Torture("hostile sizes: any file", PROMISE, jailed(prepare), quick=20, share=2, timeout=SECONDS),
    Torture("hostile sizes: images", PROMISE, jailed(prepare_images), quick=6, timeout=SECONDS),
)
