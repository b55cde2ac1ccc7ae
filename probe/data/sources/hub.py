"""Parquet files from the Hugging Face hub, through its own cache.

The files are read where they are downloaded: no second copy in another format. A repository without parquet
files is read from the copy that the hub converts by itself (`refs/convert/parquet`): no script is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from backbones import hub, reading
from probe.data import split_names
from probe.data.sources import parquet_folder
from probe.errors import Unavailable, UserError
from probe.system.atomic import write_atomic
from probe.system.cache_dir import cache_root, check_owner
from probe.system.sealed_json import sealed, unsealed

CONVERTED = "refs/convert/parquet"
PARALLEL = 4  # files downloaded at once
COMMIT = re.compile(r"[0-9a-f]{40}")
LOCAL_COPY = "give a local copy instead, DATA=path of an image folder or of parquet files"


def fetch(
    repository: str,
    revision: str | None,
    want: Mapping[str, tuple[str, ...]],
    *,
    configuration: str | None = None,
    strict: bool = False,
    cache: str | Path | None = None,
) -> Path:
    """The local folder that holds the wanted splits of `repository`, downloaded if need be.

    A pinned commit that is complete in the hub's cache needs no network; without network, what is complete
    there is used. The repository's list of files is kept in `cache`, to tell whether all are there.
    """

    def needed(files: Iterable[str]) -> list[str]:
        by_split = parquet_folder.groups(
            (f for f in files if f.endswith(".parquet")), repository, configuration
        )
        chosen = split_names.choose(by_split, want, repository, strict=strict)
        return [file for files in chosen.values() for file in files]

    cached = _cached(repository, revision)
    whole = cached is not None and _is_whole(
        cached, _recalled(_list(repository, cached.name, cache)), needed, strict=strict
    )
    if cached and whole and revision and COMMIT.fullmatch(revision):
        return cached
    if why := hub.out_of_reach():
        if cached and whole:
            return cached
        held = (
            f"is not known to be complete in the hub's cache ({cached})"
            if cached
            else "is neither a folder here nor in the hub's cache"
        )
        raise Unavailable(f"the data set {repository} {held}", why, LOCAL_COPY)
    with hub.plain_errors(
        repository,
        kind="data set",
        local_copy=LOCAL_COPY,
        revision=revision,
        tried=f"there is no folder {repository} here, and ",
    ):
        files, at, commit = _listing(repository, revision)
        folder = _download(repository, at, needed(files))
    if folder is None or folder.name != commit:
        raise UserError(f"the data set {repository} changed while it was being downloaded; start again")
    _record(_list(repository, folder.name, cache), files)
    return folder


def _download(repository: str, revision: str, files: list[str]) -> Path | None:
    """Fetch `files` into the hub's cache, some at once; the snapshot's folder, None if there is not one."""
    import huggingface_hub as client
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def one(file: str) -> Path | None:
        try:
            local = client.hf_hub_download(
                repository, file, repo_type="dataset", revision=revision, endpoint=hub.endpoint()
            )
        except LocalEntryNotFoundError:  # the network went away
            raise
        except EntryNotFoundError:  # listed a moment ago
            return None
        return Path(local.removesuffix(file))

    with ThreadPoolExecutor(PARALLEL) as pool:
        folders = set(pool.map(one, files))
    return folders.pop() if len(folders) == 1 else None


def _list(repository: str, commit: str, cache: str | Path | None) -> Path:
    """Where the names of a commit's files are kept: the hub's cache does not know which are missing."""
    return cache_root(cache) / "hub" / repository.replace("/", "--") / f"{commit}.json"


def _record(path: Path, files: list[str]) -> None:
    with suppress(UserError, OSError):  # without the list, the hub is asked again
        write_atomic(path, sealed({"files": sorted(file for file in files if file.endswith(".parquet"))}))


def _recalled(path: Path) -> list[str] | None:
    try:
        check_owner(path.parent, path)
        return list(unsealed(reading.text(path))["files"])
    except (OSError, ValueError, KeyError):
        return None


def _is_whole(
    folder: Path,
    listed: list[str] | None,
    needed: Callable[[Iterable[str]], list[str]],
    *,
    strict: bool,
) -> bool:
    """Does the snapshot hold every file that is needed, by the repository's list?

    Without the list only a registered data set whose files are named `-of-00002` can be judged: there it is
    known which splits there are, and how many files.
    """
    if listed is not None:
        return all((folder / file).is_file() for file in needed(listed))
    try:
        files = needed(parquet_folder.files_below(folder))
        parquet_folder.check_complete(files, str(folder))
    except UserError:
        return False
    return strict and all(parquet_folder.tells_total(file) for file in files)


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
        if parquet_folder.files_below(Path(folder)):
            return Path(folder)
    return None


def _listing(repository: str, revision: str | None) -> tuple[list[str], str, str | None]:
    """The repository's files, their revision (the hub's converted one if it has no parquet) and commit."""
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
        return files, CONVERTED, info.sha
    return files, revision or "main", info.sha
