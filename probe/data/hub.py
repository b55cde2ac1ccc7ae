"""Parquet files from the Hugging Face hub, through its own cache.

The files are read where they are downloaded: no second copy in another format. A repository without parquet
files is read from the copy that the hub converts by itself (`refs/convert/parquet`): no script is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backbones import hub
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
    cache holds is used.
    """

    def needed(files: Iterable[str]) -> list[str]:
        by_split = parquet.groups((f for f in files if f.endswith(".parquet")), repository, configuration)
        chosen = layout.choose(by_split, want, repository, strict=strict)
        return [file for files in chosen.values() for file in files]

    cached = _cached(repository, revision)
    if cached and revision and COMMIT.fullmatch(revision) and _complete(cached, needed):
        return cached
    if why := hub.out_of_reach():
        if cached and _complete(cached, needed):
            return cached
        held = (
            "is not whole in the hub's cache" if cached else "is neither a folder here nor in the hub's cache"
        )
        raise UserError(f"the data set {repository} {held}, and {why}; {LOCAL_COPY}")
    with hub.plain_errors(
        repository,
        kind="data set",
        local_copy=LOCAL_COPY,
        revision=revision,
        tried=f"there is no folder {repository} here, and ",
    ):
        files, at = _listing(repository, revision)
        return _download(repository, at, needed(files))


def _download(repository: str, revision: str, files: list[str]) -> Path:
    """Fetch `files` into the hub's cache, some at a time; returns the snapshot's folder."""
    import huggingface_hub as client

    def one(file: str) -> Path:
        local = client.hf_hub_download(
            repository, file, repo_type="dataset", revision=revision, endpoint=hub.endpoint()
        )
        return Path(local.removesuffix(file))

    with ThreadPoolExecutor(PARALLEL) as pool:
        folders = set(pool.map(one, files))
    if len(folders) > 1:
        raise UserError(f"the data set {repository} changed while it was being downloaded; start again")
    return folders.pop()


def _cached(repository: str, revision: str | None) -> Path | None:
    import huggingface_hub as client
    from huggingface_hub import errors

    for wanted in dict.fromkeys((revision or "main", revision or CONVERTED)):
        try:
            folder = client.snapshot_download(
                repository,
                repo_type="dataset",
                revision=wanted,
                local_files_only=True,
                allow_patterns=["*.parquet"],
            )
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
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


def _listing(repository: str, revision: str | None) -> tuple[list[str], str]:
    """The repository's files and their revision: the hub's converted one if it has no parquet."""
    import huggingface_hub as client
    from huggingface_hub.errors import RevisionNotFoundError

    api = client.HfApi(endpoint=hub.endpoint())
    info = api.dataset_info(repository, revision=revision)
    files = [sibling.rfilename for sibling in info.siblings or []]
    if not any(file.endswith(".parquet") for file in files) and revision is None:
        try:
            info = api.dataset_info(repository, revision=CONVERTED)
        except RevisionNotFoundError as error:
            raise UserError(
                f"the data set {repository} has no parquet files, nor a converted copy; {LOCAL_COPY}"
            ) from error
        files = [sibling.rfilename for sibling in info.siblings or []]
        return files, CONVERTED
    return files, revision or "main"
