"""Opening data sets: how long until the labels are there, how many files stay open, how much memory it takes.

    python -m benchmarks.data --pets FOLDER                  # beside pyarrow alone, for the same column
    python -m benchmarks.data --pets FOLDER --before TREE    # beside another version of this repository

Without `--pets` a data set of its shape is made. Both sides are started in turn, each in a process of its own
that has imported what it needs before its clock starts; times are medians, of the processor. A thousand
shards and a million rows are made here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REPEATS = 7
PROMISED = {"ratio": 1.2, "seconds": 5.0, "bytes": 1e9, "descriptors": 256}
OPEN = """
import sys, time, probe.data, probe.data.sources.parquet_folder
try:
    import probe.data.sources.kinds
except ImportError:
    pass
import pyarrow.parquet
start = time.process_time()
data = probe.data.load(sys.argv[1])
labels = [data[split].labels for split in data.splits]
print(time.process_time() - start)
"""
RAW = """
import sys, time, pathlib, pyarrow.parquet as pq
start = time.process_time()
paths = sorted(pathlib.Path(sys.argv[1]).glob("*.parquet"))
tables = [pq.ParquetFile(path).read(columns=["label"]) for path in paths]
labels = [table["label"].to_numpy() for table in tables]
print(time.process_time() - start)
"""
MILLION = """
import json, resource, sys, time, probe.data, probe.data.sources.kinds
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, cpu = time.perf_counter(), time.process_time()
data = probe.data.load(sys.argv[1])
assert len(data["train"].labels) == 1_000_000
taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([time.perf_counter() - start, time.process_time() - cpu, taken * 1024, before * 1024]))
"""
SHARDS = """
import os, sys, probe.data
train = probe.data.load(sys.argv[1])["train"]
most = 0
for row in range(len(train)):
    train.stored(row)
    most = max(most, len(os.listdir("/proc/self/fd")))
print(most)
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--pets", type=Path, help="a folder of the pets data in parquet files")
    parser.add_argument("--before", type=Path, help="the tree of another version")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        opening(given.pets or write(Path(scratch, "pets"), {"train": 3680, "test": 3669}, 37), given.before)
        shards(write_shards(Path(scratch, "shards"), 1000))
        million(write(Path(scratch, "million"), {"train": 1_000_000, "test": 1000}, 1000))


def opening(folder: Path, before: Path | None) -> None:
    """Ours beside the other side, in turn."""
    here = Path(__file__).parent.parent
    other = (RAW, here) if before is None else (OPEN, before)
    times: dict[str, list[float]] = {"ours": [], "other": []}
    for _ in range(REPEATS):
        times["ours"].append(float(child(OPEN, folder, here)))
        times["other"].append(float(child(other[0], folder, other[1])))
    ours, theirs = (median(t) for t in times.values())
    what = "pyarrow alone" if before is None else "before"
    verdict = "  MORE THAN PROMISED" if before is not None and ours > PROMISED["ratio"] * theirs else ""
    told = f"{1000 * ours:.1f} ms, {what} {1000 * theirs:.1f} ms, {ours / theirs:.2f} x"
    print(f"labels of {folder.name}: {told}{verdict}")


def shards(folder: Path) -> None:
    """A row of every shard is read; the most descriptors that were open on the way."""
    most = int(child(SHARDS, folder))
    verdict = "  MORE THAN PROMISED" if most > PROMISED["descriptors"] else ""
    print(f"1,000 shards: at most {most} descriptors{verdict}")


def million(folder: Path) -> None:
    """Time and memory until a million labels are there."""
    seconds, cpu, taken, before = json.loads(child(MILLION, folder))
    over = cpu > PROMISED["seconds"] or taken > PROMISED["bytes"]
    print(
        f"a million rows: {cpu:.2f} s of the processor ({seconds:.2f} s), {taken / 1e6:,.0f} MB "
        f"({before / 1e6:,.0f} of it imports){'  MORE THAN PROMISED' if over else ''}"
    )


def child(code: str, folder: Path, tree: Path | None = None) -> str:
    """What the code prints, run in a process of its own that imports `tree`."""
    environment = {**os.environ, "PYTHONPATH": str(tree or Path(__file__).parent.parent)}
    command = [sys.executable, "-c", code, str(folder.resolve())]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def write(folder: Path, sizes: dict[str, int], classes: int) -> Path:
    """Parquet files of tiny images that are all different."""
    folder.mkdir(parents=True)
    for name, rows in sizes.items():
        numbers = np.arange(rows, dtype=np.int64)
        images = pa.array([b"%d in %s" % (i, name.encode()) for i in range(rows)], pa.binary())
        table = pa.table({"image": images, "label": numbers % classes})
        pq.write_table(table, folder / f"{name}.parquet", compression="none")
    return folder


def write_shards(folder: Path, number: int) -> Path:
    """So many training files of two rows."""
    folder.mkdir(parents=True)
    for f in range(number):
        table = pa.table({"image": pa.array([b"%d" % f, b"%d." % f], pa.binary()), "label": [0, 1]})
        pq.write_table(table, folder / f"train-{f:05d}-of-{number:05d}.parquet", compression="none")
    pq.write_table(table, folder / "test.parquet")
    return folder


if __name__ == "__main__":
    main()
