"""Parquet files from the Hugging Face hub, through its own cache.

The files are read where they are downloaded: no second copy in another format. A repository without parquet
files is read from the copy that the hub converts by itself (`refs/convert/parquet`): no script is ever run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from backbones.weights import reachable
from probe.data import layout, parquet
from probe.errors import UserError

CONVERTED = "refs/convert/parquet"
PARALLEL = 4  # files downloaded at a time
COMMIT = re.compile(r"[0-9a-f]{40}")
LOCAL_COPY = "give a local copy instead, DATA=path of an image folder or of parquet files"


def fetch(
    repository: str,
    revision: str | None,
    want: Mapping[str, tuple[str, ...]],
    *,
    configuration: str | None = None,
    strict: bool = False,
) -> Path:
    """The local folder that holds the wanted splits of `repository`, downloaded if need be.

    A pinned commit that is already complete in the hub's cache needs no network; without network, what the
    cache holds is used. The hub's client would retry for minutes on its own, so the endpoint is first asked,
    once and briefly, whether anything answers.
    """
    import huggingface_hub as hub

    def needed(files: Iterable[str]) -> list[str]:
        by_split = parquet.groups((f for f in files if f.endswith(".parquet")), repository, configuration)
        chosen = layout.choose(by_split, want, repository, strict=strict)
        return [file for files in chosen.values() for file in files]

    cached = _cached(repository, revision)
    if cached and revision and COMMIT.fullmatch(revision) and _complete(cached, needed):
        return cached
    endpoint = os.environ.get("HF_ENDPOINT", hub.constants.ENDPOINT).rstrip("/")
    offline = hub.constants.HF_HUB_OFFLINE
    if offline or not reachable(endpoint):
        if cached and _complete(cached, needed):
            return cached
        why = "HF_HUB_OFFLINE is set" if offline else f"{endpoint} cannot be reached"
        held = (
            "is not whole in the hub's cache" if cached else "is neither a folder here nor in the hub's cache"
        )
        raise UserError(f"the data set {repository} {held}, and {why}; {LOCAL_COPY}")
    with _plain_errors(repository, revision, endpoint):
        files, at = _listing(repository, revision, endpoint)
        return _download(repository, at, needed(files), endpoint)


def _download(repository: str, revision: str, files: list[str], endpoint: str) -> Path:
    """Fetch `files` into the hub's cache, some at a time; returns the snapshot's folder."""
    import huggingface_hub as hub

    def one(file: str) -> Path:
        local = hub.hf_hub_download(
            repository, file, repo_type="dataset", revision=revision, endpoint=endpoint
        )
        return Path(local.removesuffix(file))

    with ThreadPoolExecutor(PARALLEL) as pool:
        folders = set(pool.map(one, files))
    if len(folders) > 1:
        raise UserError(f"the data set {repository} changed while it was being downloaded; start again")
    return folders.pop()


def _cached(repository: str, revision: str | None) -> Path | None:
    import huggingface_hub as hub

    for wanted in dict.fromkeys((revision or "main", revision or CONVERTED)):
        try:
            folder = hub.snapshot_download(
                repository,
                repo_type="dataset",
                revision=wanted,
                local_files_only=True,
                allow_patterns=["*.parquet"],
            )
        except (hub.errors.LocalEntryNotFoundError, hub.errors.HFValidationError):
            continue
        if parquet.files_below(Path(folder)):
            return Path(folder)
    return None


def _complete(folder: Path, needed: Callable[[Iterable[str]], list[str]]) -> bool:
    try:
        parquet.check_complete(needed(parquet.files_below(folder)), str(folder))
    except UserError:
        return False
    return True


def _listing(repository: str, revision: str | None, endpoint: str) -> tuple[list[str], str]:
    """The repository's files and their revision: the hub's converted one if it has no parquet."""
    import huggingface_hub as hub

    api = hub.HfApi(endpoint=endpoint)
    info = api.dataset_info(repository, revision=revision)
    files = [sibling.rfilename for sibling in info.siblings or []]
    if not any(file.endswith(".parquet") for file in files) and revision is None:
        info = api.dataset_info(repository, revision=CONVERTED)
        files = [sibling.rfilename for sibling in info.siblings or []]
        return files, CONVERTED
    return files, revision or "main"


@contextmanager
def _plain_errors(repository: str, revision: str | None, endpoint: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"the data set {repository} is gated: accept its terms at {endpoint}/datasets/{repository} "
            f"and run `hf auth login`, or {LOCAL_COPY}"
        ) from error
    except errors.RevisionNotFoundError as error:
        at = f"no revision {revision}" if revision else "no parquet files, nor a converted copy"
        raise UserError(f"the data set {repository} has {at}; {LOCAL_COPY}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"there is no folder {repository} here, and {endpoint} has no public data set of that name "
            f"(a private one needs `hf auth login`); {LOCAL_COPY}"
        ) from error
    except Exception as error:
        # The client's network errors are OSErrors or its HTTP library's own, which differ between versions.
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("httpx", "requests")):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"cannot download {repository} from {endpoint}: {reason}; {LOCAL_COPY}") from error
