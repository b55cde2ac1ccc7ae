"""An exact solve on a busy machine: with as many threads as the product chooses, with one, and with all.

Other processes burn every core. Threads of one product wait for each other, so that on such a machine two of
them can be slower than one; the product's choice must never be slower than one thread by more than 1.2 x.
The others run for a while (`--settle`) before it is asked. The solves alternate in one process, started as
the `probe` command starts itself (threads that wait sleep), in each order in turn, because a solve that
follows one of several threads gets less of a core than its share. The median of the rounds' ratios counts,
by the clock.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from unittest.mock import patch

import torch
from threadpoolctl import threadpool_limits

MOST = 1.2  # times as slow as one thread
BURN = "while True: pass"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--others", type=int, default=os.cpu_count(), help="processes that burn a core each")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds that they run before")
    parser.add_argument("--seconds", type=float, default=12.0, help="of solves, after at least one round")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker:
        measure(given.seconds)
        return
    plain = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    worker = [sys.executable, "-m", "benchmarks.busy", "--worker", f"--seconds={given.seconds}"]
    with burning(given.others):
        time.sleep(given.settle)
        load = os.getloadavg()[0]
        print(f"{given.others} others on {os.cpu_count()} cores, load {load:.1f}: ", end="", flush=True)
        subprocess.run(worker, check=True, env={**plain, "OMP_WAIT_POLICY": "PASSIVE"})


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """Inside, so many processes use as much of a core as they get."""
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, neither torch nor the libraries that NumPy calls have more than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def measure(seconds: float) -> None:
    """The same solve by each side, in turn; prints how they compare."""
    from probe.core import threads as product
    from probe.solve import logistic

    g = torch.Generator().manual_seed(0)
    y = torch.arange(5_000) % 50  # large enough for more than one thread (`threads.SMALL_PRODUCT`)
    X = torch.randn(50, 256, generator=g)[y] / 2 + torch.randn(len(y), 256, generator=g)
    sides: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "chosen": nullcontext,
        "one": one_thread,
        "all": lambda: patch.object(product, "_free", lambda: os.cpu_count()),
    }
    chosen = product.usable()
    spent: dict[str, list[float]] = {side: [] for side in sides}
    ends = time.perf_counter() + seconds
    for order in itertools.cycle(itertools.permutations(sides)):
        if len(spent["all"]) > 1 and time.perf_counter() > ends:
            break
        for name in order:
            with sides[name]():
                begin = time.perf_counter()
                logistic.fit(X, y, 50, l2=1000.0, tol=1e-2)
                spent[name].append(time.perf_counter() - begin)
    warm = {name: times[1:] for name, times in spent.items()}  # the first round loads and checks things
    own, every = (
        median(a / b for a, b in zip(warm[name], warm["one"], strict=True)) for name in ("chosen", "all")
    )
    print(
        f"{chosen} chosen, {own:.2f} x the time of one thread ({1000 * median(warm['one']):.0f} ms); "
        f"all of them {every:.2f} x{'' if own <= MOST else f'  ABOVE {MOST:g} x'}"
    )


if __name__ == "__main__":
    main()
