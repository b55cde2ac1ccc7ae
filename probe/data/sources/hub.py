"""Data sets of the Hugging Face hub, through its own cache.

`datasets` resolves what a repository calls its configurations, splits and class names, and `huggingface_hub`
downloads the files of the wanted splits at one commit. They are read where they are downloaded: no second
copy in another format. A repository without files that can be read in place is read from the copy that the
hub converts by itself (`refs/convert/parquet`): no script is ever run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from backbones import hub, reading
from backbones.errors import reason
from probe.data import split_names
from probe.data.dataset import Split
from probe.data.request import Request
from probe.data.sources import kinds, readme_configs
from probe.data.sources.split_files import check_complete, groups, tells_total
from probe.errors import Unavailable, UserError
from probe.system.atomic import write_atomic
from probe.system.cache_dir import cache_root, check_owner
from probe.system.sealed_json import sealed, unsealed

CONVERTED = "refs/convert/parquet"
PARALLEL = 4  # files downloaded at once
COMMIT = re.compile(r"[0-9a-f]{40}")
LOCAL_COPY = "give a local copy instead, DATA=path of an image folder or of parquet files"


@dataclass(frozen=True)
class Contents:
    """What a repository holds at one commit: the files of every split, and the class names it declares."""

    splits: Mapping[str, Sequence[str]]
    classes: Mapping[str, Sequence[str]]  # by column

    def needed(self, repository: str, ask: Request) -> dict[str, Sequence[str]]:
        """The files of the splits that are asked for."""
        return split_names.choose(self.splits, ask.want, repository, ask.must)


def read(repository: str, revision: str | None, ask: Request) -> tuple[Path, dict[str, Split]]:
    """The snapshot's folder and the wanted splits of `repository`, downloaded if need be."""
    folder, contents = fetch(repository, revision, ask)
    chosen = contents.needed(repository, ask)
    suffix = PurePosixPath(next(iter(chosen["train"]), "")).suffix
    declared = {column: tuple(names) for column, names in contents.classes.items()}
    return folder, kinds.BY_SUFFIX[suffix](folder, chosen, replace(ask, declared=declared))


def fetch(repository: str, revision: str | None, ask: Request) -> tuple[Path, Contents]:
    """The local folder that holds the wanted splits, and what is in it.

    A pinned commit that is complete in the hub's cache needs no network; without network, what is complete
    there is used. What the repository holds is kept in our cache, to tell whether all of it is there.
    """
    cached = _cached(repository, revision)
    whole = None if cached is None else _whole(cached, repository, ask)
    if cached and whole and revision and COMMIT.fullmatch(revision):
        return cached, whole
    if why := hub.out_of_reach():
        if cached and whole:
            return cached, whole
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
        at, commit, contents = _contents(repository, revision, ask.configuration)
        files = [file for mine in contents.needed(repository, ask).values() for file in mine]
        folder = _download(repository, at, files)
    if folder is None or folder.name != commit:
        raise UserError(f"the data set {repository} changed while it was being downloaded; start again")
    _record(_list(repository, commit, ask), contents)
    return folder, contents


def _contents(
    repository: str, revision: str | None, configuration: str | None
) -> tuple[str, str | None, Contents]:
    """What to download from (a revision and its commit), and what is there."""
    import huggingface_hub as client
    from huggingface_hub.errors import RevisionNotFoundError

    api = client.HfApi(endpoint=hub.endpoint())
    commit = api.dataset_info(repository, revision=revision).sha
    found = _resolved(repository, commit or revision or "main", configuration)
    if found is not None:
        return revision or "main", commit, found
    problem = f"the data set {repository} has no parquet, Arrow or tar files"
    if revision is not None:
        raise UserError(f"{problem} at {revision}; {LOCAL_COPY}")
    try:
        info = api.dataset_info(repository, revision=CONVERTED)
    except RevisionNotFoundError as error:
        raise UserError(f"{problem}, nor a converted copy; {LOCAL_COPY}") from error
    files = [s.rfilename for s in info.siblings or [] if s.rfilename.endswith(".parquet")]
    return CONVERTED, info.sha, Contents(groups(files, repository, configuration), {})


def _resolved(repository: str, commit: str, configuration: str | None) -> Contents | None:
    """The repository as `datasets` understands it; None where no file of it can be read in place."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    try:
        builder = datasets.load_dataset_builder(repository, name=configuration, revision=commit)
    except DatasetNotFoundError:
        raise
    except (RuntimeError, DatasetsError, FileNotFoundError):  # a script, or nothing that it knows
        return None
    except ValueError as error:  # there are several configurations, or none of that name
        raise UserError(
            f"{repository}: {reason(error)}; choose one with data.config=NAME, or owner/name:NAME"
        ) from error
    readme_configs.check_choice(builder, configuration, f"the data set {repository}")
    start = f"@{commit}/"
    splits = {
        str(split): sorted(str(file).partition(start)[2] for file in files)
        for split, files in (builder.config.data_files or {}).items()
    }
    suffixes = {PurePosixPath(file).suffix for files in splits.values() for file in files}
    if len(suffixes) != 1 or not suffixes <= set(kinds.IN_ONE):
        return None
    features = builder.info.features or {}
    classes = {column: list(getattr(kind, "names", None) or []) for column, kind in features.items()}
    return Contents(splits, {column: names for column, names in classes.items() if names})


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


def _list(repository: str, commit: str | None, ask: Request) -> Path:
    """Where a commit's contents are kept: the hub's cache does not know which files are missing."""
    name = ask.configuration
    which = f"-{hashlib.sha256(name.encode()).hexdigest()[:12]}" if name else ""
    return cache_root(ask.cache) / "hub" / repository.replace("/", "--") / f"{commit}{which}.json"


def _record(path: Path, contents: Contents) -> None:
    kept = {
        "splits": {name: list(files) for name, files in contents.splits.items()},
        "classes": {column: list(names) for column, names in contents.classes.items()},
    }
    with suppress(UserError, OSError):  # without it, the hub is asked again
        write_atomic(path, sealed(kept))


def _recalled(path: Path) -> Contents | None:
    try:
        check_owner(path.parent, path)
        kept = unsealed(reading.text(path))
        return Contents(dict(kept["splits"]), dict(kept["classes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _whole(folder: Path, repository: str, ask: Request) -> Contents | None:
    """The contents of a snapshot that holds every file that is needed; None where some are missing.

    Without a record of the repository, files named `-of-00002` are judged by their names, where it is known
    which splits there are: those of a registered data set, or those that its README counts.
    """
    recalled = _recalled(_list(repository, folder.name, ask))
    try:
        if recalled is not None:
            needed = _flat(recalled.needed(repository, ask))
            return recalled if all((folder / file).is_file() for file in needed) else None
        splits = _by_name(folder, repository, ask)
        chosen = Contents(splits, {}).needed(repository, ask)
        for files in chosen.values():
            check_complete(files, str(folder))
        needed = _flat(chosen)
    except UserError:
        return None
    told = readme_configs.splits_told(folder, ask.configuration)
    known = ask.strict or (told is not None and set(told) <= set(splits))
    return Contents(splits, {}) if known and all(map(tells_total, needed)) else None


def _by_name(folder: Path, repository: str, ask: Request) -> dict[str, list[str]]:
    files = kinds.table_files(folder)
    suffix = next((one for one in kinds.IN_ONE if files.get(one)), ".parquet")
    return readme_configs.declared(folder, ask.configuration) or groups(
        files.get(suffix, []), repository, ask.configuration
    )


def _flat(chosen: Mapping[str, Iterable[str]]) -> list[str]:
    return [file for files in chosen.values() for file in files]


def _cached(repository: str, revision: str | None) -> Path | None:
    import huggingface_hub as client
    from huggingface_hub import errors

    for wanted in dict.fromkeys((revision or "main", revision or CONVERTED)):
        try:
            folder = client.snapshot_download(
                repository, repo_type="dataset", revision=wanted, local_files_only=True
            )
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            continue
        files = kinds.table_files(Path(folder))
        if any(files.get(suffix) for suffix in kinds.IN_ONE):
            return Path(folder)
    return None
