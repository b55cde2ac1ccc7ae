"""Every side-by-side measurement, one after the other: `make bench`, or `python -m benchmarks solver losses`.

`--data FOLDER` points those that use photographs at a real data set (parquet or image folder); without
it they make their own. Each can be run alone, with more options: `python -m benchmarks.solver --help`.
"""

from __future__ import annotations

import argparse
from importlib import import_module

MODULES = (
    "data",
    "solver",
    "scale",
    "selection",
    "comparison",
    "extraction",
    "losses",
    "evaluation",
    "training",
    "contrast",
    "layout",
    "allocator",
    "busy",
    "whole_run",
)
USES_PHOTOGRAPHS = ("extraction",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--data", help="a folder of real photographs")
    given = parser.parse_args()
    for name in given.modules:
        if name not in MODULES:
            parser.error(f"no benchmark {name}; known are {', '.join(MODULES)}")
    for name in given.modules or MODULES:
        print(f"\n== {name}", flush=True)
        options = ["--data", given.data] if given.data and name in USES_PHOTOGRAPHS else []
        import_module(f"benchmarks.{name}").main(options)


if __name__ == "__main__":
    main()
