"""Does fine-tuning with all defaults do harm? Start, frozen probe and end on small real subsets.

    python -m benchmarks.finetuning --pets FOLDER --cifar100 FOLDER

Each case is `probe run --finetune` with nothing else said, on the first images of each class; digits come
with the package. Every figure is of the same test images: the frozen probe at the same input size, and the
end, with the paired gain and its 95 % interval. The target: at most 0.5 points below the probe (mean over the
seeds).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import data, recipe
from probe.report.text.format import gain_interval, gained, percent
from probe.runs.run import run

HARM = -0.005  # the target


@dataclass(frozen=True)
class Case:
    """A subset: every `step`-th class, so many images of each."""

    source: str
    size: int  # input pixels
    step: int = 1
    train: int = 10**9
    test: int = 10**9


CASES = {
    "digits-64": Case("digits", 64),
    "pets5-64": Case("pets", 64, step=8, train=30),
    "pets-64": Case("pets", 64, train=20, test=40),
    "pets-96": Case("pets", 96, train=20, test=40),
    "pets-160": Case("pets", 160, train=20, test=40),
    "cifar100-64": Case("cifar100", 64, step=5, train=100),
}


def subset(source: Any, case: Case, folder: Path) -> Path:
    """An image folder with the case's images, as they are."""
    for split, most in (("train", case.train), ("test", case.test)):
        seen: Counter[int] = Counter()
        for row, label in enumerate(source[split].labels.tolist()):
            if label % case.step or seen[label] == most:
                continue
            seen[label] += 1
            path = folder / split / source.class_names[label] / f"{row:06d}.png"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                source[split][row][0].convert("RGB").save(path)
    return folder


def measure(name: str, case: Case, folder: str | None, given: argparse.Namespace) -> str:
    place = "digits"
    if folder is not None:
        size = f"{case.source}-{case.step}-{case.train}-{case.test}"
        place = str(subset(data.load(folder), case, given.work / size))
    content = {"backbone": {"name": given.backbone, "image_size": case.size}, "data": place}
    begin = time.perf_counter()
    done = run(
        recipe.build({**content, "finetune": True, "seeds": given.seeds}),
        cache=given.work / "cache",
        out=given.work / "runs",
    ).result
    seconds = (time.perf_counter() - begin) / given.seeds
    t = done["training"]
    rates = ", ".join(f"{row['settings']['lr']:g}" for row in done["seeds"])
    s, gain = t["settings"], t["gain"]
    start, frozen, end = (percent(t[when]["top1"]) for when in ("start", "probe", "end"))
    harm = "" if t["end"]["top1"] - t["probe"]["top1"] >= HARM else "  HARM"
    sizes = done["data"]["sizes"]
    return (
        f"| {name} | {sizes['train']} / {sizes['test']} | {s['batch_size']} x {s['epochs']} | {rates} | "
        f"{start} | {frozen} | {end} | {gained(gain)} ({gain_interval(gain['ci'])}) | {seconds:.0f} |{harm}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="which; default: all with data")
    parser.add_argument("--pets", help="a folder of the Oxford pets (parquet or image folder)")
    parser.add_argument("--cifar100", help="a folder of CIFAR-100")
    parser.add_argument("--backbone", default="effnet-lite0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--work", type=Path, default=Path("runs/finetuning"), help="subsets, features and runs"
    )
    given = parser.parse_args(argv)
    folders = {"digits": None, "pets": given.pets, "cifar100": given.cifar100}
    print(
        "| data and pixels | train / test | batch x epochs | rates | start | probe | end | gain | s a seed |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in given.cases or CASES:
        case = CASES[name]
        if case.source == "digits" or folders[case.source] is not None:
            print(measure(name, case, folders[case.source], given), flush=True)


if __name__ == "__main__":
    main()
