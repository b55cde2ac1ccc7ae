"""`load`: from a name or a path to a data set whose splits have been checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from backbones.errors import reason
from backbones.reading import expanded
from probe.data import catalogue
from probe.data.assemble import assemble
from probe.data.catalogue import LONG_TAIL, DatasetSpec
from probe.data.dataset import Dataset, Split
from probe.data.few_shot import few_shot
from probe.data.longtail import long_tailed
from probe.data.request import Request
from probe.errors import UserError

HUB_ID = re.compile(r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(:(?P<configuration>[\w./-]+))?")
DEFAULT_IMBALANCE = 100.0


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    list_files: str | Path | None = None,
    revision: str | None = None,
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
    splits: Mapping[str, str] | None = None,
    subset: str | Path | Sequence[str] | None = None,
    test_fraction: float | None = None,
    val: Literal["auto", "train"] = "auto",
    shots: int | None = None,
    draw: int = 0,
    imbalance: float | None = None,
    profile: str = "exp",
    seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """Labelled images by a registered name, a path of nearly any layout, or a hub id.

    A path is an image folder (with splits, or of classes only), a folder or file of parquet, Arrow, CSV or
    JSON, what `save_to_disk` wrote, or WebDataset shards (`train-{000..012}.tar`).

    root       a local copy of a registered data set (image folder or parquet); its metric, prompts and
               official sizes stay those of the name
    list_files a folder of list files ("path label" a line), which say what of `root`, or of the image folder,
               is in which split; for sets that are published so it is `root` itself where not given
    revision   another commit, branch or tag of the hub's repository
    config     one of several data sets in a repository or folder
    image      the column of the images (or of their paths), where it is not found by itself; `label` alike
    splits     what serves as which split: {"test": "validation"}
    subset     only these classes, or only the ids in a file (one a line)
    test_fraction  the share of every class that is cut off as test where there is no test split: a fifth
    val        "train": leave out an official validation split, and hold out a part of train instead
    shots      only so many training images of each class, the same ones on every machine; `draw` 1, 2, ...
               are other ones
    imbalance  make train and val long-tailed, `profile` "exp" or "step"; "<name>-lt" means 100
    cache      where file lists of the hub and digests of unchanged files are kept, if not in the usual cache

    >>> load("pets"); load("my/photos"); load("cifar100-lt"); load("cifar10", root="copies/cifar10")
    """
    name, imbalance = _long_tail(str(name_or_path), imbalance)
    row, hub = catalogue.find(name), HUB_ID.fullmatch(name)
    config = config or (hub["configuration"] if hub else None)
    ask = Request.of(row, image=image, label=label, splits=splits, configuration=config, cache=cache)
    found, title, source = _splits(name, row, ask, root, list_files, revision)
    leave_val = val == "train"
    data = assemble(title, row, found, source, subset=subset, test_fraction=test_fraction, drop_val=leave_val)
    if shots is not None:
        data = few_shot(data, shots, draw)
    if imbalance is None:
        return data
    if row is not None and row.lists:
        raise UserError(f"{name} has the class sizes of its lists; leave out imbalance {imbalance:g}")
    return long_tailed(data, imbalance, profile, seed)


def _long_tail(name: str, imbalance: float | None) -> tuple[str, float | None]:
    """A name and its imbalance; `<name>-lt` means 100, unless there is a data set of that very name."""
    base = name.removesuffix(LONG_TAIL)
    if base == name or catalogue.find(name) is not None or catalogue.find(base) is None:
        return name, imbalance
    return base, DEFAULT_IMBALANCE if imbalance is None else imbalance


Found = tuple[dict[str, Split], str, str]  # splits, the data set's name, where they were read


def _splits(
    name: str,
    row: DatasetSpec | None,
    ask: Request,
    root: str | Path | None,
    list_files: str | Path | None,
    revision: str | None,
) -> Found:
    path, hub = expanded(name), HUB_ID.fullmatch(name)
    if root is not None and (row is None or row.read is not None):
        raise UserError(
            f'root is a local copy of a registered data set, and "{name}" has none; give the folder'
        )
    here = row.hub is None if row is not None else path.exists()
    if revision is not None and (here or root is not None):
        raise UserError(
            f'revision {revision} is one of the hub\'s, and "{name}" is read from here; leave it out'
        )
    if (row is not None and row.lists) or list_files is not None:
        return _listed(name, row, root, list_files, ask)
    if row is not None:
        return _registered(row, root, revision, ask)
    if path.exists():
        return _local(_title(path), path, ask)
    if "{" in name:
        from probe.data.sources import kinds

        return kinds.read_pattern(str(path), ask), _title(path.parent), str(path)
    if hub and not name.startswith("."):
        return _from_hub(name, hub["repository"], revision, ask)
    if "/" in name or name.startswith(("~", ".")):
        raise UserError(f"there is no folder {path}; check the path")
    raise catalogue.unknown(name)


def _title(path: Path) -> str:
    """What a folder or a table is called: its name without the ending."""
    return path.resolve().stem if path.is_file() else path.resolve().name


def _registered(row: DatasetSpec, root: str | Path | None, revision: str | None, ask: Request) -> Found:
    if row.read is not None:
        return _call_reader(row), row.name, row.source
    if root is not None or row.folder is not None:
        return _local(row.name, _folder(expanded(root or row.folder or "")), ask)
    assert row.hub is not None
    return _from_hub(row.name, row.hub, revision or row.revision, ask)


def _listed(
    name: str,
    row: DatasetSpec | None,
    root: str | Path | None,
    list_files: str | Path | None,
    ask: Request,
) -> Found:
    """Images that list files name, of a local copy (`root`) or, without a row, of the folder `name`."""
    from probe.data.sources import list_files as source

    if row is not None and not row.lists:
        raise UserError(f"{name} is not read from list files; leave out data.list_files, or give the folder")
    if row is not None and root is None:
        raise UserError(
            f"{name} is read from a local copy: give data.root=FOLDER, the folder of its images, and "
            f"data.list_files=FOLDER, that of {', '.join(row.lists.values())}"
        )
    folder = _folder(expanded(root or name))
    lists = folder if list_files is None else _folder(expanded(list_files), "the folder of list files")
    splits = source.read(folder, lists, row.lists if row else {}, cache=ask.cache)
    return splits, name if row else folder.resolve().name, f"{folder}, lists of {lists}"


def _call_reader(row: DatasetSpec) -> dict[str, Split]:
    """The splits that the row's own function returns; what goes wrong in it is one line."""
    where = f'the data set "{row.name}" ({row.reader_name})'
    try:
        reader: Any = row.read
        if isinstance(reader, str):
            module, _, function = reader.partition(":")
            reader = getattr(import_module(module), function or "read")
        found = reader()
    except UserError:
        raise
    except Exception as error:  # somebody else's code
        raise UserError(f"{where} cannot be read: {type(error).__name__}: {reason(error)}") from error
    splits = found.by_name if isinstance(found, Dataset) else found
    if not isinstance(splits, Mapping) or not all(isinstance(split, Split) for split in splits.values()):
        raise UserError(f"{where} must return a probe.data.Dataset, or a mapping of names to Splits")
    if set(splits) != set(row.sizes):
        raise UserError(
            f"{where} returns the splits {', '.join(splits) or 'none'}, its row has {', '.join(row.sizes)}"
        )
    return {name: splits[name] for name in row.sizes}


def _local(name: str, path: Path, ask: Request) -> Found:
    from probe.data.sources import kinds

    return kinds.read(path, ask), name, str(path)


def _folder(folder: Path, what: str = "the data folder") -> Path:
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{what} {folder} {problem}; give a folder with train and test in it")
    return folder


def _from_hub(name: str, repository: str, revision: str | None, ask: Request) -> Found:
    from probe.data.sources import hub

    folder, splits = hub.read(repository, revision, ask)
    return splits, name, f"{repository}@{revision or folder.name}"
