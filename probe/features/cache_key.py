"""What features are made of. The ingredients, hashed, are the name of the cache entry.

Anything that could change one number of the result is an ingredient; a changed ingredient is another
entry, so nothing stale can be reused. Names of backbones and data sets are not ingredients: they only
make the folder readable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from probe.features.views import CENTER, View
from probe.system.sealed_json import canonical, digest

if TYPE_CHECKING:
    from backbones.preprocess import Preprocessing
    from probe.data import Split

FORMAT = 1  # raise it whenever the meaning of a file in the entry changes
SHARD_ROWS = 2048  # small enough that a kill costs seconds, large enough that files stay few
DECODER = "decoder"  # the ingredient that stands only where images were skipped
VIEW = "view"  # and the one that stands only where it is not the evaluation crop
SHORT = 12  # hexadecimal digits of the key in the folder's name
ENTRY_NAME = re.compile(rf"[a-z0-9-]+-[0-9a-f]{{{SHORT}}}")  # `CacheKey.folder`


class IdentifiedBackbone(Protocol):
    """What a cache key asks of a backbone: `backbones.Backbone`, or a `BackboneIdentity` without weights."""

    name: str
    dim: int
    tap: str
    preprocessing: Preprocessing
    views: bool  # may it see other views than the evaluation crop?

    def digest(self) -> str:
        """Of the weights as they are now, the tap and the preprocessing."""


@dataclass(frozen=True)
class CacheKey:
    """The ingredients of one cache entry and the readable half of its name."""

    ingredients: dict[str, Any]
    slug: str

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the ingredients."""
        return digest(canonical(self.ingredients))

    @property
    def folder(self) -> str:
        """The name of the entry's folder: readable words and the start of the hash."""
        return f"{self.slug}-{self.hash[:SHORT]}"

    @property
    def rows(self) -> int:
        """Images of the split."""
        return self.ingredients["split"]["rows"]

    @property
    def shard_rows(self) -> int:
        """Rows in each shard but the last."""
        return self.ingredients["shard_rows"]

    @property
    def shards(self) -> int:
        """How many shards a complete entry has."""
        return -(-self.rows // self.shard_rows)

    @property
    def lacks_rows(self) -> bool:
        """May rows be missing, because images were bad? Then the decoder that said so is an ingredient."""
        return DECODER in self.ingredients

    def without_bad_images(self) -> CacheKey:
        """The key of the same features where the decoder decided that images had to be skipped."""
        from probe.data import decode

        return CacheKey({**self.ingredients, DECODER: decode.identity()}, self.slug)

    def range_of(self, shard: int) -> range:
        """The rows of the split that live in this shard."""
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.rows))


def key_of(
    backbone: IdentifiedBackbone,
    split: Split,
    *,
    fingerprint: str,
    dtype: str,
    skip_bad_images: bool,
    autocast: str | None = None,
    shard_rows: int = SHARD_ROWS,
    view: View = CENTER,
) -> CacheKey:
    """The key of `split` seen through `backbone`, whose weights now have this fingerprint."""
    ingredients = {
        "format": FORMAT,
        "backbone": {"fingerprint": fingerprint, "tap": backbone.tap, "dim": backbone.dim},
        "preprocessing": _numbers(backbone.preprocessing),
        "dtype": dtype,
        "autocast": autocast,
        "split": {
            "fingerprint": split.fingerprint,
            "rows": len(split),
            "ids": digest(canonical(list(split.ids))),
            "labels": digest(np.ascontiguousarray(split.labels, dtype="<i8").tobytes()),
        },
        "skip_bad_images": skip_bad_images,
        "shard_rows": shard_rows,
    }
    words = [backbone.name, split.title]
    if view.ingredient is None:  # entries from before there were other views are still found
        return CacheKey(ingredients, slug(words))
    return CacheKey({**ingredients, VIEW: view.ingredient}, slug([*words, view.name]))


def _numbers(preprocessing: Preprocessing) -> Any:
    return json.loads(canonical(asdict(preprocessing)))


def slug(words: Iterable[str]) -> str:
    """Words as part of a folder name: whatever a name holds, no separator or dot-dot survives."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:60] or "x" for word in words)
