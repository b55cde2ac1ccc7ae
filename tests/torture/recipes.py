"""Recipes from hell: drawn from the schema, then made wrong; YAML that bites; overrides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml
from pydantic import BaseModel

from probe import recipe
from probe.runs.naming import slug
from tests.torture.answers import command, parsed
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1e308,
    -1e308,
    5e-324,
    float("inf"),
    float("nan"),
    True,
)
WORDS = (
    "",
    " ",
    "mr2",
    "no",
    "~",
    "null",
    "../../etc/passwd",
    "a\0b",
    "\x1b[2J\x1b[31mred",
    "\u202etxet",
    "\ud800",
    "e\u0301" * 500,
    "x" * 100_000,
    "{}",
    "%s%n",
    "$(touch x)",
    "line\nend\r\n",
    "\N{PILE OF POO}\u200d\ufeff",
    "=cmd|' /C calc'!A0",
    "'; DROP TABLE runs; --",
)


ONE_IN = 5  # refusals that go through the whole command


def value(luck: Random, depth: int = 0) -> Any:
    """Anything that JSON can hold, and a little more."""
    kinds: list[Callable[[], Any]] = [
        lambda: luck.choice(NUMBERS),
        lambda: luck.choice(WORDS),
        lambda: None,
        lambda: luck.uniform(-2, 2),
        lambda: "".join(chr(luck.randrange(1, 0x3000)) for _ in range(luck.randrange(20))),
    ]
    if depth < 3:
        kinds += [
            lambda: [value(luck, depth + 1) for _ in range(luck.randrange(4))],
            lambda: {str(value(luck, 3)): value(luck, depth + 1) for _ in range(luck.randrange(4))},
        ]
    return luck.choice(kinds)()


def section(luck: Random, model: type[BaseModel], wrong: float) -> dict[str, Any]:
    """Some keys of a section: its defaults, or with probability `wrong` anything, at times no key of it."""
    content: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if luck.random() < 0.5:
            continue
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            content[name] = section(luck, inner, wrong)
        else:
            content[name] = field.get_default(call_default_factory=True)
        if luck.random() < wrong:
            content[name] = value(luck)
    if luck.random() < wrong:
        content[str(value(luck, 3))] = value(luck)
    return content


def hostile_yaml(luck: Random) -> str:
    """YAML that stands for too much, refers to itself, asks for objects, or is none at all."""
    n = luck.randrange(1, 12)
    return luck.choice(
        [
            "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
            "seeds: &s [*s]\n",
            "<<: {seeds: 2}\n",
            "method: {<<: &m {name: mr2}, lam: 1}\n",
            "[" * 10 ** luck.randrange(1, 5),
            "{a: " * 2000 + "1" + "}" * 2000,
            "- " * 5000 + "1",
            "!!python/object/apply:os.system ['touch pwned']\n",
            "data: !!python/name:os.system\n",
            "method: {name: mr2, lam: !!binary aGk=}\n",
            "method: {name: mr2, lam: 2001-01-01, when: 2001-12-14t21:59:43.10-05:00}\n",
            "method: {name: mr2, lam: !!set {a, b}, x: !!omap [a: 1], y: !!pairs [a: 1]}\n",
            "seeds: " + "9" * 10 ** luck.randrange(1, 6) + "\n",
            "seeds: " + ":".join(["59"] * 10 ** luck.randrange(1, 5)) + "\n",
            "seeds: 0x" + "f" * 10 ** luck.randrange(1, 6) + "\n",
            "seeds: .nan\ndata: {val_fraction: .inf}\n",
            "? [a, b]\n: 1\n",
            "? {a: b}\n: 1\n",
            "1: 2\ntrue: 3\nnull: 4\n2001-01-01: 5\n",
            '"\\ud800": 1\n',
            'data: "\\udfff\\0"\n',
            "data: {name: [digits]}\nbackbone: [1, 2]\nsolver: 7\n",
            "a: 1\n---\nb: 2\n",
            "%YAML 9.9\n---\nseeds: 1\n",
            "\t\tseeds: 1\n",
            "seeds: |\n  1\n   2\n",
            "\ufeffseeds: 1\n",
            "x" * 10**n if n < 7 else "seeds: 1\r\r\n",
            "method: &" + "a" * 5000 + " mr2\n",
            "".join(f"k{i}: {i}\n" for i in range(2000)),
        ]
    )


def damaged(luck: Random, text: bytes) -> bytes:
    """The text with some bytes changed, cut out or doubled."""
    content = bytearray(text)
    for _ in range(luck.randrange(1, 8)):
        at = luck.randrange(len(content) + 1)
        change = luck.randrange(4)
        if change == 0 and at < len(content):
            content[at] = luck.randrange(256)
        elif change == 1:
            del content[at : at + luck.randrange(9)]
        elif change == 2:
            content[at:at] = luck.choice(
                [b"&a ", b"*a", b": ", b"- ", b"!!", b"\0", b"\xff\xfe", b"{", b"[", b"\n"]
            )
        else:
            content[at:at] = content[at : at + 20]
    return bytes(content)


def written(luck: Random) -> bytes:
    """A recipe file of one of the four families."""
    family = luck.choice(["yaml", "json", "damage"] * 10 + ["hostile"])  # the last family is slow to parse
    if family == "hostile":
        return hostile_yaml(luck).encode("utf-8", "surrogatepass")
    content = section(luck, recipe.Recipe, luck.choice([0, 0.1, 0.5]))
    text = yaml.safe_dump(content, allow_unicode=luck.random() < 0.5).encode("utf-8", "surrogatepass")
    if family == "json":
        text = json.dumps(content).encode()
    return damaged(luck, text) if family == "damage" else text


def prepare_files(folder: Path) -> Case:
    path = folder / "here" / "recipe.yaml"

    def case(luck: Random) -> None:
        path.write_bytes(written(luck))
        built = parsed(lambda: recipe.build(recipe.read(path)))
        if built is None:
            if luck.randrange(ONE_IN) == 0:
                command(["run", str(path), "--out", str(folder / "runs")])
            return
        # what is accepted can be named, written and read again as the same thing
        assert "/" not in slug(built)
        assert len(slug(built).encode()) < 250
        path.write_text(built.to_yaml(), encoding="utf-8")
        assert recipe.build(recipe.read(path)).digest == built.digest

    return case


def prepare_words(folder: Path) -> Case:
    leaves = list(_leaves(recipe.Recipe))

    def case(luck: Random) -> None:
        words = []
        for _ in range(luck.randrange(1, 4)):
            key = luck.choice([*leaves, value(luck, 3), f"{luck.choice(leaves)}.{luck.choice(WORDS)}"])
            given = luck.choice([json.dumps(value(luck))[:2000], str(value(luck, 3))[:2000]])
            given = hostile_yaml(luck) if luck.random() < 0.01 else given
            words.append(f"{key}={given}")
        built = parsed(lambda: recipe.build(recipe.override({}, words)))
        if built is None and luck.randrange(ONE_IN):
            return
        if built is None:
            clean = [w.replace("\0", "").encode("utf-8", "replace").decode() for w in words]
            if parsed(lambda: recipe.build(recipe.override({}, clean))) is not None:
                return  # cleaned, it asks for real work
            command(["extract", *clean], codes=(0, 2))
        else:
            assert recipe.build(built.model_dump()).digest == built.digest

    return case


def _leaves(model: type[BaseModel], above: str = "") -> Any:
    for name, field in model.model_fields.items():
        inner = field.annotation
        yield above + name
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, f"{above}{name}.")


PROMISE = "a recipe that can be written and read again, or one clear line"
ROWS = (
    Torture("bad input: recipe files", PROMISE, jailed(prepare_files), quick=100, share=3, timeout=SECONDS),
    Torture(
        "bad input: recipe overrides", PROMISE, jailed(prepare_words), quick=150, share=6, timeout=SECONDS
    ),
)
