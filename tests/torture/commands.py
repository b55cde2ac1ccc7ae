"""Command lines: every command and option there is, with values that nobody should type."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import click
import vl_convert

from probe.cli import main
from probe.report.html import page
from tests.torture.answers import command
from tests.torture.finished import run, without_charts
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

VALUES = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "1e999",
    "nan",
    "99999999999999999999",
    "--",
    "-",
    "--help",
    "~",
    ".",
    "..",
    "/",
    "/dev/null",
    "/dev/null/x",
    "/proc/self/mem",
    "a=b",
    "=",
    "=x",
    "seeds=2",
    "seeds=0",
    "method.lam=[",
    "x" * 5000,
    "a" * 300,
    "\x1b[31mred",
    "\u202eevil",
    "\udcff\udc80",
    "new\nline",
    "$(touch x)",
    "`touch x`",
    "; touch x",
    "| touch x",
    "'",
    '"',
    "*",
    "{}",
    "%s",
    "caf\u00e9",
    "erm",
    "mr2",
    "knn",
    "zeroshot",
    "sgd",
    "paper",
    "effnet-lite0",
    "clip-rn50",
    "timm:resnet18",
    "timm:../../etc",
    "hf:.",
    "hf:nobody/nothing",
    "open_clip:RN50/none",
    "digits-lt",
    "pets",
    "nobody/nothing",
    "nobody/nothing:conf",
)
# These would start processes that wait for others: only what must be refused is tried.
REFUSED = {
    "--gpus": ("0", "-3", "x", "1000000"),
    "--machines": ("0", "-2", "", "1.5"),
    "--minutes": ("0", "-2", "", "x"),  # longer ones would be used up
}
FAILURES = {"verify": (0, 1), "doctor": (0, 1), "compare": (0, 1)}  # exit codes that mean an answer


def leaves(
    group: click.Group, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the tree with the words that name it."""
    for name, inner in group.commands.items():
        if isinstance(inner, click.Group):
            yield from leaves(inner, (*above, name))
        else:
            yield (*above, name), inner


def words_of(luck: Random, leaf: click.Command, given: Sequence[str], places: Sequence[str]) -> list[str]:
    """Some options and arguments of a command, after those that keep a run small."""
    words = [*given]

    def value(option: str) -> str:
        if option in REFUSED:
            return luck.choice(REFUSED[option])
        return luck.choice(places) if luck.random() < 0.3 else luck.choice(VALUES)

    options = [p for p in leaf.params if isinstance(p, click.Option)]
    for option in luck.sample(options, luck.randrange(min(4, len(options) + 1))):
        name = luck.choice(option.opts)
        flag = luck.choice([[name], [name], [f"{name}=x"]]) if option.is_flag else None
        words += flag or luck.choice(
            [[name, value(name)], [f"{name}={value(name)}"], [name, value(name)], [name]]
        )
    if any(isinstance(p, click.Argument) for p in leaf.params) or luck.random() < 0.1:
        words += [value("") for _ in range(luck.randrange(4))]
    if luck.random() < 0.05:
        words.insert(
            luck.randrange(len(words) + 1), luck.choice(["--unknown", "-x", "--jso", "--", "--version"])
        )
    return words


def prepare(folder: Path) -> Case:
    page.library = without_charts
    # The engine of static charts reserves more memory than a try may, and dies where it cannot.
    vl_convert.vegalite_to_svg, vl_convert.svg_to_png = (lambda *_: ""), (lambda *_, **__: b"")
    made, data = run(folder), folder / "photographs"
    pipe, loop = folder / "here" / "pipe", folder / "here" / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    places = [str(p) for p in (made, data, folder / "cache", made / "result.json", pipe, loop)]
    places += [str(made / name) for name in ("recipe.yaml", "predictions.parquet", "head.safetensors")]
    places += [str(data / "test" / "red" / "0.png"), str(folder / "here" / "new"), "/dev/zero"]
    small = ["--backbone", "cifar-resnet20", "--data", str(data), "--l2", "1"]
    given = {
        "run": [*small, "--out", str(folder / "runs")],
        "extract": small,
        "compare": ["--out", str(folder / "runs")],
        "improve": [*small, "--out", str(folder / "runs"), "--with", "cifar-resnet20", "--minutes", "0.05"],
    }
    tree = list(leaves(main))
    weights = [
        8 if name[0] in ("run", "compare", "predict", "report", "extract", "cache") else 1 for name, _ in tree
    ]

    def case(luck: Random) -> None:
        ((name, leaf),) = luck.choices(tree, weights)
        words = words_of(luck, leaf, given.get(name[0], ()), places)
        command([*name, *words], codes=FAILURES.get(name[-1], (0,)))

    return case


PROMISE = "an answer, or one clear line and exit code 2"
ROWS = (Torture("bad input: command lines", PROMISE, jailed(prepare), quick=60, share=3, timeout=SECONDS),)
