"""How several backbones, or several taps of one, are written: their features stand side by side.

    backbone: effnet-lite0+effnet-lite1           the same on the command line, --backbone
    backbone: [effnet-lite0, {name: effnet-lite1, image_size: 160}]
    backbone: {name: clip-rn50, tap: [projected, pooled]}         --tap projected+pooled

All of them become one mapping: a backbone, and `also`, the further parts. No torch here.
"""

from __future__ import annotations

from typing import Any

from probe.errors import UserError

SIGN = "+"
MOST = 8  # parts: every one is a feature extraction of its own


def understood(value: Any) -> Any:
    """The section as a mapping with `also`; what is no backbone at all is left for the schema to refuse.

    A tap or an image size beside several names is one of each of them.
    """
    section = {"name": value} if isinstance(value, (str, list, tuple)) else value
    if not isinstance(section, dict):
        return value
    taps = _listed(section.get("tap"))
    names = _names(section["name"]) if "name" in section else [None]
    also = section.get("also") or ()
    if not isinstance(also, (list, tuple)):
        return section
    if len(names) > 1 and len(taps) > 1:
        raise UserError(
            "recipe: backbone.tap: several taps belong to one backbone; "
            "write backbone: [{name: ..., tap: ...}, ...] for several"
        )
    if len(names) > 1 and section.get("weights") is not None:
        raise UserError(
            "recipe: backbone.weights: they belong to one backbone; "
            "write backbone: [{name: ..., weights: ...}, ...] for several"
        )
    parts = [_part(section, name, tap) for name in names for tap in taps]
    return {**parts[0], "also": [*parts[1:], *also]}


def _part(section: dict[str, Any], name: Any, tap: Any) -> dict[str, Any]:
    """One of the parts, with what the section says of all of them."""
    shared = {key: value for key, value in section.items() if key not in ("name", "tap", "also")}
    own = name if isinstance(name, dict) else {} if name is None else {"name": name}
    return {**shared, **({} if tap is None else {"tap": tap}), **own}


def _listed(value: Any) -> list[Any]:
    """Taps: one, a list of them, or `a+b`."""
    if isinstance(value, str) and SIGN in value:
        value = value.split(SIGN)
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(tap, str) and tap for tap in value):
            raise UserError("recipe: backbone.tap: write one tap, or a list of names of taps")
        return list(value)
    return [value]


def _names(value: Any) -> list[Any]:
    """Names (or mappings) of all parts: of a name, a list, or `x+y`."""
    if isinstance(value, str):
        return _split(value)
    if not isinstance(value, (list, tuple)):
        return [value]
    found = [part for entry in value for part in (_split(entry) if isinstance(entry, str) else [entry])]
    if not found or not all(isinstance(part, (str, dict)) for part in found):
        raise UserError("recipe: backbone: write a name, or a list of names or of {name: ..., tap: ...}")
    return found


def _split(text: str) -> list[str]:
    """`x+y` at its signs; one that belongs to a path or a library's name (`hf:./a+b`) does not separate."""
    pieces: list[str] = []
    for piece in text.split(SIGN):
        if pieces and ":" in pieces[-1] and not _named(piece):
            pieces[-1] += SIGN + piece
        else:
            pieces.append(piece)
    if len(pieces) > 1 and not all(pieces):
        raise UserError(f'recipe: backbone: "{text:.80}" has an empty name; write x+y')
    return pieces


def _named(piece: str) -> bool:
    from backbones import catalogue  # whose rows come from installed packages too

    try:
        catalogue.find(piece)
    except UserError:
        return False
    return True
