"""Exact logistic regression against scikit-learn's, on the same features, to the same objective.

    python -m benchmarks.solver                             # features made here, shaped like a backbone's
    python -m benchmarks.solver --features FILE.safetensors # real ones: tensors X (N x D) and y (N)
    python -m benchmarks.solver --pets FOLDER --every 8     # extracted here; a path over the whole range

Ours counts everything: checks, eigendecomposition, float32 passes, the float64 verdict. scikit-learn's
`lbfgs` has tol 1e-6 and, along the path, warm starts from the stronger penalty. Both sides run on the same
threads in float64 accuracy; times are medians of interleaved repeats, on the clock and, in brackets, of the
processor (a long path on a shared machine is better judged by the latter). "excess" is the relative
difference of the objectives, ours minus theirs: below 1e-6 everywhere, or the comparison is void.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probe.solve import logistic
from probe.solve.l2_grid import GRID

Head = tuple[Tensor, Tensor, float]  # weight, bias, l2

SAME = 1e-6  # relative difference of objectives that counts as the same
FITS = (100.0, 10.0, 1.0)
NEIGHBOURS = slice(50, 58)  # of the 96 values: l2 from 2 to 16, where probes usually peak


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver", description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--features", help="a safetensors file with X and y")
    source.add_argument("--pets", help="a folder of the pets data; features of effnet-lite0 are extracted")
    parser.add_argument(
        "--every", type=int, help="every so many of the 96 values, not 8 neighbours; 1 is all of them (hours)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(argv)
    X, y = features(given.features, given.pets)
    print(f"{X.shape[0]:,} x {X.shape[1]:,} features, {int(y.max()) + 1} classes, {given.threads} threads")
    with threads(given.threads):
        for l2 in FITS if given.every is None else ():
            _report(f"fit, l2 = {l2:g}", X, y, [l2], given.repeats)
        values = sorted(GRID[NEIGHBOURS] if given.every is None else GRID[:: given.every], reverse=True)
        _report(f"path of {len(values)} values", X, y, values, given.repeats)


def _report(title: str, X: Tensor, y: Tensor, l2s: list[float], repeats: int) -> None:
    sides: dict[str, Callable[[Tensor, Tensor, list[float]], tuple[list[Head], int]]] = {
        "ours": _ours,
        "scikit-learn": _scikit_learn,
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    busy: dict[str, list[float]] = {side: [] for side in sides}
    objectives, iterations = {}, {}
    for _ in range(repeats):
        for side, run in sides.items():
            start, begun = time.perf_counter(), time.process_time()
            heads, iterations[side] = run(X, y, l2s)
            seconds[side].append(time.perf_counter() - start)
            busy[side].append(time.process_time() - begun)
            objectives[side] = np.array([_objective(X, y, *head) for head in heads])
    ours, theirs = (median(seconds[side]) for side in sides)
    cpu_ours, cpu_theirs = (median(busy[side]) for side in sides)
    excess = float((objectives["ours"] / objectives["scikit-learn"] - 1).max())
    print(
        f"{title:22s} ours {ours:7.2f} s ({iterations['ours']} iterations)   "
        f"scikit-learn {theirs:7.2f} s ({iterations['scikit-learn']})   "
        f"{theirs / ours:5.1f} x ({cpu_theirs / cpu_ours:.1f} x)   "
        f"excess {excess:+.1e}{'' if excess <= SAME else '  NOT THE SAME'}",
        flush=True,
    )


def _ours(X: Tensor, y: Tensor, l2s: list[float]) -> tuple[list[Head], int]:
    heads = logistic.path(X, y, int(y.max()) + 1, l2s, tol=SAME)
    return [(h.weight, h.bias, h.l2) for h in heads], sum(h.iterations for h in heads)


def _scikit_learn(X: Tensor, y: Tensor, l2s: list[float]) -> tuple[list[Head], int]:
    from sklearn.linear_model import LogisticRegression

    rows, labels = X.double().numpy(), y.numpy()
    model = LogisticRegression(tol=1e-6, max_iter=10_000, warm_start=True)
    heads, iterations = [], 0
    for l2 in l2s:
        model.set_params(C=1 / l2).fit(rows, labels)
        iterations += int(model.n_iter_[0])
        heads.append((torch.from_numpy(model.coef_.copy()), torch.from_numpy(model.intercept_.copy()), l2))
    return heads, iterations


def _objective(X: Tensor, y: Tensor, weight: Tensor, bias: Tensor, l2: float) -> float:
    logits = X.double() @ weight.double().T + bias.double()
    return float(F.cross_entropy(logits, y, reduction="sum") + l2 / 2 * weight.double().square().sum())


def features(file: str | None, pets: str | None) -> tuple[Tensor, Tensor]:
    if file is not None:
        from safetensors.torch import load_file

        tensors = load_file(file)
        return tensors["X"], tensors["y"]
    if pets is not None:
        import backbones
        import probe.data
        import probe.features

        extracted = probe.features.extract(backbones.load("effnet-lite0"), probe.data.load(pets)["train"])
        return extracted.X.tensor(), torch.from_numpy(extracted.y)
    return _made_up()


def _made_up(n: int = 3680, dim: int = 1280, classes: int = 37) -> tuple[Tensor, Tensor]:
    """Rectified, off-centre, with a spectrum that falls like 1/j and classes in its leading directions."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    spectrum = torch.arange(1, dim + 1).rsqrt()
    centres = torch.randn(classes, dim, generator=g) * spectrum * (torch.arange(dim) < 64)
    latent = 0.7 * centres[y] + torch.randn(n, dim, generator=g) * spectrum
    mix = torch.linalg.qr(torch.randn(dim, dim, generator=g)).Q
    return F.relu(4 * latent @ mix + 0.1), y


def threads(count: int) -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    return threadpool_limits(count)


if __name__ == "__main__":
    main()
