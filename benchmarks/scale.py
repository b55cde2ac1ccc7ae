"""The exact probe at the size of ImageNet: float16 features on disk, streamed, by one process or several.

    python -m benchmarks.scale                             # small: what a pass is made of (make bench)
    python -m benchmarks.scale --rows 1000000 --dim 1024 --classes 100 --processes 1 2
    python -m benchmarks.scale --rows 1000000 --dim 1024 --classes 1000 --passes 5
    python -m benchmarks.scale --curve 10000 31623 100000 --rows 100000 --scikit-learn 20000

Features have planted classes (a centre each, noise with a falling spectrum, mixed and off-centre) and are
written once, in shards as the feature cache writes them, to `--folder`. Times are the clock's and, in
brackets, the processor's: on a busy machine only the latter compare. Memory is what a process holds itself;
mapped pages of the shards come and go as the system likes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from probe.features.matrix import Matrix

SHARD = 2048  # rows of a file, as in the cache
RESULT = "result: "
ENOUGH = 0.8  # of the speed of the slower of reading and multiplying
CENTRES, MEAN = 2.0, 0.5  # size of the planted classes, and how far from zero all of it is


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--l2", type=float, default=1.0, help="for 10,000 rows; grows with them")
    parser.add_argument("--processes", type=int, nargs="*", default=[])
    parser.add_argument("--budget", type=int, help="MB of rows and logits in memory; default: the solver's")
    parser.add_argument("--passes", type=int, help="so many timed passes instead of a solve")
    parser.add_argument("--curve", type=int, nargs="*", default=[], help="rows: a pass and a solve of each")
    parser.add_argument("--scikit-learn", type=int, default=0, help="largest number of rows it is given")
    parser.add_argument("--folder", type=Path, help="where the features are kept; default: removed again")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        work(given)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        make(folder, given.rows, given.dim, given.classes)
        for processes in given.processes:
            report(launched(given, folder, processes, given.rows), processes)
        for rows in given.curve:
            report(launched(given, folder, 1, rows), 1)
            if rows <= given.scikit_learn:
                scikit_learn(*opened(folder, given.classes, rows), _l2(given, rows))
        if not (given.processes or given.curve):
            parts_of_a_pass(*opened(folder, given.classes, given.rows), given.classes)


# -- features ------------------------------------------------------------------------------------------------


def make(folder: Path, rows: int, dim: int, classes: int) -> None:
    """The shards of so many rows; those that are there already are kept."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, dim + 1).rsqrt()
    mix = torch.linalg.qr(torch.randn(dim, dim, generator=g)).Q * spectrum[:, None]
    centres = torch.randn(1000, dim, generator=g) * (torch.arange(dim) < 128) * CENTRES / 128**0.5
    for shard in range(-(-rows // SHARD)):
        path = folder / f"{shard:05d}.safetensors"
        if path.exists():
            continue
        own = torch.Generator().manual_seed(shard + 1)
        index = torch.arange(shard * SHARD, min(rows, (shard + 1) * SHARD))
        labels = index * 7919 % 1000  # of 1,000 classes; fewer are made of them by `opened`
        latent = centres[labels % classes] + torch.randn(len(index), dim, generator=own)
        features = (latent @ mix + MEAN).half()
        save_file({"features": features, "labels": labels, "index": index}, path)


def opened(folder: Path, classes: int, rows: int) -> tuple[Matrix, Tensor]:
    """The first rows, memory-mapped, and their labels."""
    from safetensors import safe_open

    features, labels = [], []
    for shard in range(-(-rows // SHARD)):
        with safe_open(folder / f"{shard:05d}.safetensors", framework="pt") as file:
            features.append(file.get_tensor("features"))
            labels.append(file.get_tensor("labels"))
    whole = Matrix(features, features[0].shape[1])
    return whole.part(0, rows), torch.cat(labels)[:rows] % classes


# -- one world -----------------------------------------------------------------------------------------------


def launched(given: argparse.Namespace, folder: Path, processes: int, rows: int) -> list[dict[str, Any]]:
    """What each process of a world found."""
    words = ["--worker", "--folder", str(folder), "--rows", str(rows), "--dim", str(given.dim)]
    words += ["--classes", str(given.classes), "--l2", str(given.l2)]
    words += ["--passes", str(given.passes)] if given.passes else []
    words += ["--budget", str(given.budget)] if given.budget is not None else []
    words += ["--curve", str(rows)] if given.curve else []
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    found = subprocess.run(
        [sys.executable, *run, "-m", "benchmarks.scale", *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    parts = found.split(RESULT)[1:]  # two processes that end together may share a line
    return [json.JSONDecoder().raw_decode(part)[0] for part in parts]


def work(given: argparse.Namespace) -> None:
    from probe.probing.sharing import rows_shared
    from probe.solve import logistic
    from probe.solve.basis import Basis
    from probe.solve.cost import watched

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    X, y = opened(given.folder, given.classes, given.rows)
    l2 = _l2(given, given.rows)
    about: dict[str, Any] = {"rows": given.rows, "dim": given.dim, "classes": given.classes, "l2": l2}
    watcher = Passes()
    with rows_shared(), watched(watcher), Memory() as memory:
        with timed(about, "basis"):
            budget = None if given.budget is None else given.budget << 20
            basis = Basis(X, budget=0 if given.curve else budget)
        solver = logistic.LogisticSolver(X, y, given.classes, basis=basis)
        evaluator = solver._evaluator(1)
        theta = torch.zeros(1, given.classes, given.dim + 1, dtype=evaluator.dtype)
        seconds = []
        for _ in range(given.passes or 2):
            with timed(about, "pass"):
                evaluator.at(theta, torch.tensor([l2], dtype=torch.float64))
            seconds.append(about["pass"])
        about["pass"] = median(s[0] for s in seconds), median(s[1] for s in seconds)
        if not given.passes:
            watcher.passes = 0
            with timed(about, "solve"):
                head = solver.solve([l2], tol=1e-6, max_iter=2000)[0]
            about |= {"gap": head.gap / head.objective, "status": head.status, "iterations": head.iterations}
            about |= {"objective": head.objective, "passes": watcher.passes}
    about["cost"] = watcher.cost
    print(RESULT + json.dumps({**about, "memory": memory.peak}), flush=True)


class timed:
    """Seconds of the clock and of the processor."""

    def __init__(self, about: dict[str, Any], name: str) -> None:
        self.about, self.name = about, name

    def __enter__(self) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        self.about[self.name] = time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]


class Passes:
    """Counts the passes over all rows, and keeps what the solver said that they would cost."""

    passes, cost = 0, ""

    def start(self, cost: object) -> None:
        self.cost = str(cost)

    def one_pass(self) -> None:
        self.passes += 1

    def gap(self, relative: float, tol: float) -> None:
        pass


class Memory:
    """The largest anonymous memory of this process, looked at ten times a second (Linux)."""

    def __enter__(self) -> Memory:
        self.peak, self.done = 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()

    def _watch(self) -> None:
        while not self.done.wait(0.1):
            with Path("/proc/self/status").open() as status:
                found = [line for line in status if line.startswith("RssAnon")]
            self.peak = max(self.peak, 1024 * int(found[0].split()[1]))


def report(found: list[dict[str, Any]], processes: int) -> None:
    first = found[0]
    memory = max(f["memory"] for f in found) / 1e9
    cpu = [sum(f[what][1] for f in found) for what in ("basis", "pass")]
    line = (
        f"{first['rows']:>9,} x {first['dim']:,}, {first['classes']:,} classes, {processes} processes: "
        f"basis {first['basis'][0]:6.1f} s ({cpu[0]:.1f}), pass {first['pass'][0]:6.2f} s ({cpu[1]:.2f})"
    )
    if "solve" in first:
        spent = sum(f["solve"][1] for f in found)
        line += (
            f", solve {first['solve'][0]:6.1f} s ({spent:.1f}), {first['passes']} passes, "
            f"{first['status']}, gap {first['gap']:.1e} of {first['objective']:.8g}"
        )
    print(f"said: {first['cost']}\n{line}, {memory:.2f} GB", flush=True)


def _l2(given: argparse.Namespace, rows: int) -> float:
    """The same penalty of the mean loss, whatever the number of rows."""
    return float(given.l2 * rows / 10_000)


# -- against others ------------------------------------------------------------------------------------------


def scikit_learn(X: Matrix, y: Tensor, l2: float) -> None:
    from sklearn.linear_model import LogisticRegression

    about: dict[str, Any] = {}
    with timed(about, "fit"), Memory() as memory:
        rows = X.tensor().double().numpy()
        model = LogisticRegression(C=1 / l2, tol=1e-4, max_iter=1000).fit(rows, y.numpy())
    print(
        f"{len(X):>9,} x {X.shape[1]:,}: scikit-learn {about['fit'][0]:.1f} s ({about['fit'][1]:.1f}), "
        f"{int(model.n_iter_[0])} iterations to tol 1e-4, {memory.peak / 1e9:.2f} GB"
    )


def parts_of_a_pass(X: Matrix, y: Tensor, classes: int, repeats: int = 5) -> None:
    """One pass against reading the same bytes, and against the same products of rows in memory."""
    from probe.solve import logistic
    from probe.solve.basis import Basis, rows_at_once

    basis = Basis(X, budget=0)
    evaluator = logistic.LogisticSolver(X, y, classes, basis=basis)._evaluator(1)
    theta, l2 = torch.zeros(1, classes, X.shape[1] + 1), torch.ones(1, dtype=torch.float64)
    rows = rows_at_once(X.shape[1] + 3 * classes, torch.device("cpu"))
    blocks, weight = X.tensor().float().split(rows), torch.randn(classes, X.shape[1])

    def read() -> None:
        for part in X.blocks(rows):
            part.sum()

    def products() -> None:
        for block in blocks:
            (weight @ block.T) @ block

    sides: dict[str, Callable[[], object]] = {
        "pass": lambda: evaluator.at(theta, l2),
        "reading": read,
        "products": products,
    }
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            begin = time.process_time()
            side()
            spent[name].append(time.process_time() - begin)
    whole, reading, multiplying = (median(spent[name]) for name in sides)
    share = max(reading, multiplying) / whole
    print(
        f"one pass over {len(X):,} x {X.shape[1]:,} float16, {classes} classes: {whole:.2f} s (processor), "
        f"reading {reading:.2f}, products {multiplying:.2f}: {100 * share:.0f} % of the slower one's speed"
        f"{'' if share >= ENOUGH else '  BELOW 80 %'}"
    )


if __name__ == "__main__":
    main()
