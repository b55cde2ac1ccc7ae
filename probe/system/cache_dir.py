"""The cache folder, for everything that can be computed again, and who may have written into it."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import product
from pathlib import Path

from backbones.reading import expanded
from probe.errors import UserError

VARIABLE = "PROBE_CACHE"
TRUST = "PROBE_TRUST_CACHE"  # set to use what other users have put into a cache or a folder of runs
OTHER_RUN = "choose another --out or run folder"  # the way out where a run is another user's


def cache_root(cache: str | Path | None = None) -> Path:
    """The given folder, else $PROBE_CACHE, else `mr2-probe` in the user's cache folder."""
    given = cache or os.environ.get(VARIABLE)
    if given:
        return expanded(given, f"give another --cache or {VARIABLE}")
    users = os.environ.get("XDG_CACHE_HOME")
    above = Path(users) if users else expanded("~/.cache", f"give a --cache, or set {VARIABLE}")
    return above / "mr2-probe"


def check_owner(*paths: Path, way_out: str = "give another --cache") -> None:
    """Raise if one of these exists and belongs to another user, who may have written anything there.

    The one check for all files that are used again: cache entries, checkpoints, run folders. Root's are
    trusted: root could have changed anything here. A link counts too: its owner chose what is read.
    """
    if os.environ.get(TRUST) == "1" or not hasattr(os, "geteuid"):
        return
    for path, followed in product(paths, (False, True)):
        with suppress(OSError):  # missing or unreadable: an error for the code that reads it
            owner = path.stat(follow_symlinks=followed).st_uid
            if owner not in (os.geteuid(), 0):
                raise UserError(
                    f"{path} belongs to another user ({_name(owner)}), who may have written anything there; "
                    f"{way_out}, or set {TRUST}=1 if you trust them"
                )


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"number {user}"
