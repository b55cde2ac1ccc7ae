"""`make evidence`: the command line."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.evidence import tables
from benchmarks.evidence.outcomes import Published
from benchmarks.evidence.studies import FOLDERS, PARTS, Runner, studies
from probe.errors import UserError
from probe.system.interrupts import INTERRUPTED
from probe.system.safe_text import one_line


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make evidence", description="What helps hard classes, and where?")
    for name, title in FOLDERS.items():
        parser.add_argument(f"--{name}", metavar="FOLDER", help=f"a local copy of {title}")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts; default: all")
    parser.add_argument(
        "--studies", nargs="+", metavar="NAME", help="and of them these (pets, cifar100-lt10, ...)"
    )
    parser.add_argument("--without", nargs="+", default=(), metavar="METHOD", help="leave their rows out")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most so many; default: as the tables say")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no run after so many; 0: only write"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"), help="where runs are kept")
    parser.add_argument("--cache", type=Path, help="where features are kept; default: the usual place")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where it is published")
    parser.add_argument("--figure", type=Path, default=Path("docs/evidence.svg"), help="an SVG file")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/results.md"), help="a page with marks for the tables"
    )
    given = parser.parse_args(argv)
    if not given.minutes >= 0:
        parser.error(f"--minutes {given.minutes:g}: give 0 (only write the files) or more")
    if given.seeds is not None and given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: give 1 or more")
    given.chosen = [study for part in given.only for study in studies(part)]
    known = dict.fromkeys(study.name for study in given.chosen)
    for name in given.studies or ():
        if name not in known:
            parser.error(f"--studies {name}: known are {', '.join(known)}")
    if given.studies:
        given.chosen = [study for name in given.studies for study in given.chosen if study.name == name]
    titles = dict.fromkeys(row.title for study in given.chosen for row in study.rows)
    for name in given.without:
        if name not in titles:
            parser.error(f"--without {name}: known are {', '.join(map(repr, titles))}")
    for name in ("figure", "page"):
        if getattr(given, name).is_dir():
            parser.error(f"--{name} {getattr(given, name)}: it is a folder; name a file")
    for name in FOLDERS:
        folder = getattr(given, name)
        if folder is not None and not Path(folder).is_dir():
            parser.error(f"--{name} {folder}: there is no such folder")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, publish it, and say what was left out."""
    try:
        return _main(_arguments(argv))
    except UserError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _main(given: argparse.Namespace) -> int:
    folders = {name: getattr(given, name) for name in FOLDERS}
    until = time.monotonic() + 60 * given.minutes
    published = Published(given.results)
    earlier = {study.title: tables.earlier_seeds(given.results, study) for study in given.chosen}
    runner = Runner(folders, given.cache, given.work, until, published, given.without, given.seeds, earlier)
    missing = runner.gather(given.chosen)
    if not published.studies() and not tables.lines_of(given.results):
        print("nothing has been run yet, so nothing is written; left out:", file=sys.stderr)
        for study, rows in missing.items():
            print(f"left out: {study}, {len(rows)} rows: {next(iter(rows.values()))}", file=sys.stderr)
        return 1
    for line in tables.write(published, missing, given.figure, given.page):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
