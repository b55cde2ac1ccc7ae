"""Where everything is kept that can be computed again."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PROBE_CACHE"
PRIVATE = 0o700  # features can reveal the images they came from


def cache_root(cache: str | Path | None = None) -> Path:
    """The given folder, else $PROBE_CACHE, else `mr2-probe` in the user's cache folder."""
    given = cache or os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "mr2-probe"
