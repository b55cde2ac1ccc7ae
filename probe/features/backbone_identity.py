"""A backbone's identity without its weights, for runs whose features are all in the cache.

Such a run needs the fingerprint and a few numbers, not the network; importing the libraries, reading a large
checkpoint and hashing it would be most of its time. The identity is remembered in the cache under everything
it follows from: what was asked for, the registry's row, the state of every file of weights and of our own
loading code (as git's index would see it), and the versions of the libraries that build the network.
It is an aid, never a duty: whatever cannot be recalled is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import backbones
from backbones import reading
from backbones.load_backbone import from_outside, weights_path
from backbones.preprocess import Preprocessing
from probe.errors import UserError
from probe.features.cache_key import slug
from probe.system.atomic import write_atomic
from probe.system.cache_dir import cache_root, check_owner
from probe.system.digest_index import RACY, file_state
from probe.system.sealed_json import canonical, digest, sealed, unsealed

FOLDER = "backbones"
LIBRARIES = ("mr2-probe", "torch", "torchvision", "timm", "open_clip_torch", "transformers")
NUMBERS = ("name", "dim", "tap", "architecture", "source", "standardise", "fingerprint")
MANY = 1000  # files in a folder of weights; more is no such folder, and not worth asking about


@dataclass
class BackboneIdentity:
    """Stands for a `backbones.Backbone`; the real one is loaded when more than its identity is asked for."""

    name: str
    dim: int
    tap: str
    architecture: str
    source: str
    standardise: bool
    fingerprint: str
    preprocessing: Preprocessing
    load: Callable[[], Any]

    @cached_property
    def real(self) -> Any:
        found = self.load()
        if found.fingerprint != self.fingerprint:
            raise UserError(f"the weights of {self.name} changed during the run; run it again")
        return found

    def digest(self) -> str:
        """As of the real one; what was never loaded cannot have moved."""
        return self.real.digest() if "real" in self.__dict__ else self.fingerprint

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and its like ask every object
            raise AttributeError(name)
        return getattr(self.real, name)


def recall(
    settings: dict[str, Any], load: Callable[[], Any], cache: str | Path | None = None
) -> BackboneIdentity | None:
    """The backbone of these settings if its identity is known; None when it must be loaded."""
    place = _place(settings, cache)
    if place is None:
        return None
    try:
        check_owner(place)
        body = unsealed(reading.text(place))
        numbers = Preprocessing(**{k: _tuples(v) for k, v in body["preprocessing"].items()})
        return BackboneIdentity(**{name: body[name] for name in NUMBERS}, preprocessing=numbers, load=load)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def remembering(settings: dict[str, Any], load: Callable[[], Any], cache: str | Path | None = None) -> Any:
    """`load()`, whose identity is noted, unless a file changed while it was read."""
    place = _place(settings, cache)
    backbone = load()
    if place is None or place != _place(settings, cache):
        return backbone
    body = {name: getattr(backbone, name) for name in NUMBERS}
    with suppress(OSError, UserError):  # a full or read-only cache costs time next time, no more
        write_atomic(place, sealed({**body, "preprocessing": asdict(backbone.preprocessing)}))
    return backbone


def _place(settings: dict[str, Any], cache: str | Path | None) -> Path | None:
    """The file of an identity; None where nothing on this machine's disk vouches for it."""
    spec = backbones.registry.find(settings["name"])
    weights = weights_path(spec, settings.get("weights"))
    if weights is None or from_outside(spec):  # somebody else's code may have changed
        return None
    inside = list(islice(weights.rglob("*"), MANY + 1)) if weights.is_dir() else [weights]
    if len(inside) > MANY:
        return None
    own = Path(backbones.__file__).parent.rglob("*.py")
    states = [(str(p.absolute()), *file_state(p)) for p in sorted([*inside, *own]) if p.is_file()]
    if time.time_ns() - max(max(mtime, ctime) for _, _, mtime, ctime, _ in states) < RACY:
        return None
    versions = {library: _version(library) for library in LIBRARIES}
    about = {"settings": settings, "row": repr(spec), "files": states, "versions": versions}
    return cache_root(cache) / FOLDER / f"{slug([settings['name']])}-{digest(canonical(about))[:32]}.json"


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
