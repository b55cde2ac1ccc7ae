"""A comparison of methods, against the same runs one by one.

    python -m benchmarks.comparison                    # digits
    python -m benchmarks.comparison --data FOLDER      # a real data set at its backbone's own size

Runs of a comparison that differ in their method alone share the plain probe, its folds and the ranking of the
classes. Both sides choose parameters and l2 for all images, from features in the cache, and write whole
folders. Seconds by the clock, in turns; medians.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from probe import recipe
from probe.runs.common_ground import LastGround
from probe.runs.run import run

METHODS = ("erm", "la(tau=[0.5, 1])", "mr2(power=[0.333333, 1])", "cb(beta=[0.99, 0.9999])")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.comparison",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="digits", help="a data set or folder; default: digits, 96 pixels")
    parser.add_argument("--seeds", type=int, default=1, help="of each run")
    parser.add_argument("--repeats", type=int, default=3, help="of both sides")
    given = parser.parse_args(argv)
    if given.repeats < 1:
        parser.error(f"--repeats {given.repeats}: give 1 or more")
    size = 96 if given.data == "digits" else None
    backbone = {"name": "effnet-lite0", "image_size": size}
    content = {"data": given.data, "backbone": backbone, "select": "overall", "seeds": given.seeds}
    recipes = [recipe.build({**content, "method": method}) for method in METHODS]
    seconds: dict[str, list[float]] = {"one by one": [], "compared": []}
    with tempfile.TemporaryDirectory() as name:
        run(
            recipes[0], cache=Path(name) / "cache", out=Path(name) / "first"
        )  # extraction, and what loads once
        for _ in range(given.repeats):
            for side, times in seconds.items():
                last = LastGround() if side == "compared" else None
                begin = time.perf_counter()
                for each in recipes:
                    run(each, cache=Path(name) / "cache", out=Path(name) / "runs", last=last)
                times.append(time.perf_counter() - begin)
    apart, together = (median(times) for times in seconds.values())
    print(
        f"{len(recipes)} methods on {given.data}: one by one {apart:.1f} s   compared {together:.1f} s   "
        f"{apart / together:.1f} x"
    )


if __name__ == "__main__":
    main()
