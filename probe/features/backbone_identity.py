"""A backbone's identity without its weights, for runs whose features are all in the cache.

Such a run needs the fingerprint and a few numbers, not the network; importing the libraries, reading a large
checkpoint and hashing it would be most of its time. The identity is remembered in the cache under everything
it follows from: the settings, the catalogue's row, the state of every file of weights and of our own loading
code (as git's index would see it), and the versions of the libraries that build the network.
It only saves time: whatever cannot be recalled is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from torch import Tensor

    from backbones.backbone import Backbone

FOLDER = "backbones"
LIBRARIES = ("mr2-probe", "torch", "torchvision", "timm", "open_clip_torch", "transformers")
NUMBERS = ("name", "dim", "tap", "architecture", "source", "standardise", "views", "fingerprint")
MANY = 1000  # files in a folder of weights; one with more is something else, and not worth asking about


@dataclass
class BackboneIdentity:
    """What is known of a `backbones.Backbone` without its weights; `load()` gives the backbone itself."""

    name: str
    dim: int
    tap: str
    architecture: str
    source: str
    standardise: bool
    views: bool
    fingerprint: str
    preprocessing: Preprocessing
    loader: Callable[[], Backbone] = field(repr=False)
    _loaded: Backbone | None = field(default=None, init=False, repr=False)

    def load(self) -> Backbone:
        """The backbone itself, loaded at the first call; raises if its weights are others by now."""
        if self._loaded is None:
            found = self.loader()
            if found.fingerprint != self.fingerprint:
                raise UserError(f"the weights of {self.name} changed during the run; run it again")
            self._loaded = found
        return self._loaded

    def digest(self) -> str:
        """The digest of the weights now; those that were never loaded cannot have changed."""
        return self.fingerprint if self._loaded is None else self._loaded.digest()

    def encode_text(self, texts: list[str]) -> Tensor:
        """M x dim, by the text tower of the backbone, which is loaded for it."""
        return self.load().encode_text(texts)

    @property
    def logit_scale(self) -> float:
        """The learned factor of the cosine between image and text; loads the backbone."""
        return self.load().logit_scale


def recall(
    settings: dict[str, Any], load: Callable[[], Backbone], cache: str | Path | None = None
) -> BackboneIdentity | None:
    """The identity of the backbone that `load()` would give, if it is known; None when it must be loaded.

    `settings` are the arguments of `backbones.load`: name, weights, tap, image_size.
    """
    place = _place(settings, cache)
    if place is None:
        return None
    try:
        check_owner(place)
        body = unsealed(reading.text(place))
        numbers = Preprocessing(**{k: _tuples(v) for k, v in body["preprocessing"].items()})
        return BackboneIdentity(**{name: body[name] for name in NUMBERS}, preprocessing=numbers, loader=load)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def load_and_remember(
    settings: dict[str, Any], load: Callable[[], Backbone], cache: str | Path | None = None
) -> Backbone:
    """`load()`; its identity is remembered, unless a file changed while it was being read."""
    place = _place(settings, cache)
    backbone = load()
    if place is None or place != _place(settings, cache):
        return backbone
    body = {name: getattr(backbone, name) for name in NUMBERS}
    with suppress(OSError, UserError):  # a full or read-only cache only costs time next time
        write_atomic(place, sealed({**body, "preprocessing": asdict(backbone.preprocessing)}))
    return backbone


def _place(settings: dict[str, Any], cache: str | Path | None) -> Path | None:
    """The file of an identity; None where no files on this machine's disk determine it."""
    spec = backbones.catalogue.find(settings["name"])
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
