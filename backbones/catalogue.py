"""The backbones by name, one row each. No deep-learning library is imported to read them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from backbones import plugins
from backbones.errors import UserError, nearest
from backbones.rows import cifar, image_text, self_supervised, supervised
from backbones.sources import ByName
from backbones.spec import Spec

# The oldest names first, then what came later, by the way of training.
ROWS = (
    *(*image_text.OPENAI, *self_supervised.FIRST, *supervised.FIRST),
    *cifar.ROWS,
    *(*image_text.ROWS, *self_supervised.ROWS, *supervised.ROWS),
)

OPEN_ROWS = (
    Spec(
        "timm:<name>",
        "timm",
        "",
        ByName("timm"),
        taps={"pooled": None},
        size=None,
        licence="see the model's page",
        note="any timm model, or a folder that timm saved",
        open=True,
    ),
    Spec(
        "open_clip:<model>/<tag>",
        "clip",
        "",
        ByName("open_clip"),
        taps={"projected": None, "pooled": None},
        size=None,
        licence="see the model's page",
        note="any open_clip model and tag, or a folder that open_clip saved",
        open=True,
    ),
    Spec(
        "hf:<repository>",
        "hf",
        "",
        ByName("transformers"),
        taps={"pooled": None, "cls": None},
        size=None,
        licence="see the model's page",
        note="any vision model of transformers, or a folder that it saved",
        open=True,
    ),
)

KIND = "backbones"  # of the entry points by which packages add rows
_by_name = {row.name: row for row in ROWS}
_by_prefix = {row.name.split(":")[0]: row for row in OPEN_ROWS}


def names() -> list[str]:
    """Every name: the table's in its order, then those that installed packages add; no open prefixes."""
    return [*_by_name, *(name for name in plugins.names(KIND) if name not in _by_name)]


def specs() -> list[Spec]:
    """Every row: the table's, those that installed packages add, and last the open prefixes."""
    return [*_by_name.values(), *plugins.rows(KIND, Spec, taken=_by_name), *OPEN_ROWS]


def register(spec: Spec) -> None:
    """Add a row of your own; a name that is taken is an error, not a replacement."""
    if spec.name in _by_name or ":" in spec.name:
        raise UserError(f'cannot register "{spec.name}": the name is taken or holds a colon')
    _by_name[spec.name] = spec


def find(name: str) -> Spec:
    """The row behind a name; an open prefix becomes a row for what follows it."""
    if name in _by_name:
        return _by_name[name]
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _by_prefix:
        row = _by_prefix[prefix]
        if not rest:
            raise UserError(f'"{name}" names nothing; write {row.name}')
        return replace(row, name=name, architecture=rest, open=True)
    if (added := plugins.find(KIND, name, Spec)) is not None:
        return added
    known = [*names(), *(row.name for row in OPEN_ROWS)]
    raise UserError(f'there is no backbone "{name}"{nearest(name, known)}')


def closest(word: str, many: Iterable[str]) -> list[str]:
    """The few names most like `word`, where a library knows more than a message should list."""
    return difflib.get_close_matches(word, list(many), n=5, cutoff=0.0)
