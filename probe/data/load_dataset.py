"""`load`: from a name or a path to a data set whose splits have been checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from backbones.errors import reason
from backbones.reading import expanded
from probe.data import catalogue, split_names
from probe.data.catalogue import ANY_PHOTO, LONG_TAIL, DatasetSpec
from probe.data.dataset import Dataset, Split, check_unique
from probe.errors import UserError

HUB_ID = re.compile(r"(?P<repository>[\w][\w.-]*/[\w][\w.-]*)(:(?P<configuration>[\w./-]+))?")
DEFAULT_IMBALANCE = 100.0


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    list_files: str | Path | None = None,
    revision: str | None = None,
    imbalance: float | None = None,
    profile: str = "exp",
    seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """Labelled images by a registered name, an image folder, a folder of parquet files, or a hub id.

    root       a local copy of a registered data set (image folder or parquet); its metric, prompts and
               official sizes stay those of the name
    list_files a folder of list files ("path label" a line), which say what of `root`, or of the image folder,
               is in which split; for sets that are published so it is `root` itself where not given
    revision   another commit, branch or tag of the hub's repository
    imbalance  make train and val long-tailed, `profile` "exp" or "step"; "<name>-lt" means 100
    cache      where file lists of the hub and digests of unchanged files are kept, if not in the usual cache

    >>> load("pets"); load("my/photos"); load("cifar100-lt"); load("cifar10", root="copies/cifar10")
    """
    name = str(name_or_path)
    base = name.removesuffix(LONG_TAIL)
    if base != name and catalogue.find(name) is None and catalogue.find(base):
        name = base
        imbalance = DEFAULT_IMBALANCE if imbalance is None else imbalance
    data = _whole(name, root, list_files, revision, cache)
    if imbalance is None:
        return data
    if (row := catalogue.find(name)) is not None and row.lists:
        raise UserError(f"{name} has the class sizes of its lists; leave out imbalance {imbalance:g}")
    from probe.data.longtail import long_tailed

    return long_tailed(data, imbalance, profile, seed)


def _whole(
    name: str,
    root: str | Path | None,
    list_files: str | Path | None,
    revision: str | None,
    cache: str | Path | None,
) -> Dataset:
    row = catalogue.find(name)
    folder = expanded(name)
    hub = HUB_ID.fullmatch(name)
    if root is not None and (row is None or row.read is not None):
        raise UserError(
            f'root is a local copy of a registered data set, and "{name}" has none; give the folder'
        )
    here = row.hub is None if row is not None else folder.exists()
    if revision is not None and (here or root is not None):
        raise UserError(
            f'revision {revision} is one of the hub\'s, and "{name}" is read from here; leave it out'
        )
    if (row is not None and row.lists) or list_files is not None:
        return _listed(name, row, root, list_files, cache)
    if row is not None:
        return _registered(row, root, revision, cache)
    if folder.exists():
        return _local(folder.resolve().name, None, folder, cache)
    if hub and not name.startswith("."):
        return _from_hub(name, None, hub["repository"], hub["configuration"], revision, cache)
    if "/" in name or name.startswith(("~", ".")):
        raise UserError(f"there is no folder {folder}; check the path")
    raise catalogue.unknown(name)


def _registered(
    row: DatasetSpec, root: str | Path | None, revision: str | None, cache: str | Path | None
) -> Dataset:
    if row.read is not None:
        return _dataset(row.name, row, _call_reader(row), row.source)
    if root is not None or row.folder is not None:
        return _local(row.name, row, expanded(root or row.folder or ""), cache)
    assert row.hub is not None
    return _from_hub(row.name, row, row.hub, None, revision or row.revision, cache)


def _listed(
    name: str,
    row: DatasetSpec | None,
    root: str | Path | None,
    list_files: str | Path | None,
    cache: str | Path | None,
) -> Dataset:
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
    splits = source.read(folder, lists, row.lists if row else {}, cache=cache)
    return _dataset(name if row else folder.resolve().name, row, splits, f"{folder}, lists of {lists}")


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


def _local(name: str, row: DatasetSpec | None, folder: Path, cache: str | Path | None) -> Dataset:
    return _dataset(name, row, _read(row, _folder(folder), None, cache), str(folder))


def _folder(folder: Path, what: str = "the data folder") -> Path:
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{what} {folder} {problem}; give a folder with train and test in it")
    return folder


def _read(
    row: DatasetSpec | None, folder: Path, configuration: str | None, cache: str | Path | None
) -> dict[str, Split]:
    from probe.data.sources import image_folder, parquet_folder

    want, strict = split_names.wanted(row), row is not None
    if not parquet_folder.files_below(folder):
        return image_folder.read(folder, want, strict=strict, cache=cache)
    hints = (row.image, row.label) if row else ((), ())
    return parquet_folder.read(
        folder,
        want,
        strict=strict,
        image=hints[0],
        label=hints[1],
        classes=row.classes if row else None,
        configuration=configuration,
        cache=cache,
    )


def _from_hub(
    name: str,
    row: DatasetSpec | None,
    repository: str,
    configuration: str | None,
    revision: str | None,
    cache: str | Path | None,
) -> Dataset:
    from probe.data.sources import hub

    folder = hub.fetch(
        repository,
        revision,
        split_names.wanted(row),
        configuration=configuration,
        strict=row is not None,
        cache=cache,
    )
    splits = _read(row, folder, configuration, cache)
    return _dataset(name, row, splits, f"{repository}@{revision or folder.name}")


def _dataset(name: str, row: DatasetSpec | None, splits: dict[str, Split], source: str) -> Dataset:
    for split in splits.values():
        split.of = Path(name).name
    _check_splits(splits, source)
    if row is not None:
        _check_official(row, splits)
        splits = {split: found for split, found in splits.items() if split not in row.left_out}
    class_names = splits["train"].class_names
    prompt_names: tuple[str, ...] = ()
    templates = row.templates if row else ANY_PHOTO
    if row is not None and row.imagenet_prompts:
        from probe.data import imagenet_prompts

        prompt_names, templates = imagenet_prompts.read(class_names)
    return Dataset(
        name=name,
        class_names=class_names,
        metric=row.metric if row else "accuracy",
        templates=templates,
        prompt_names=prompt_names,
        by_name=splits,
        source=source,
        note=row.note if row else "",
    )


def _check_splits(splits: dict[str, Split], source: str) -> None:
    train = splits["train"]
    for name, split in splits.items():
        if not len(split):
            raise UserError(f"{source}: the {name} split has no images")
        check_unique(split.ids, name)
        if split.class_names != train.class_names:
            difference = _difference(train, split)
            raise UserError(f"{source}: train and {name} do not have the same classes: {difference}")
        empty = [split.class_names[k] for k in (split.class_counts == 0).nonzero()[0]]
        # a validation split may lack a rare class; nothing is trained on it
        if empty and name != split_names.OPTIONAL:
            shown = ", ".join(f'"{c}"' for c in empty[:5])
            raise UserError(f"{source}: {len(empty)} classes have no images in {name}: {shown}")
    if len(train.class_names) < 2:
        only = train.class_names[0]
        raise UserError(f'{source}: there is one class only ("{only}"); a probe needs at least two')


def _difference(train: Split, other: Split) -> str:
    parts = [
        f"only in {name}: {', '.join(only[:5])}"
        for name, only in (
            ("train", [c for c in train.class_names if c not in other.class_names]),
            (other.name, [c for c in other.class_names if c not in train.class_names]),
        )
        if only
    ]
    return "; ".join(parts) or "the same names in another order"


def _check_official(row: DatasetSpec, splits: dict[str, Split]) -> None:
    hint = "to use it all the same, give the folder instead of the name"
    if len(splits["train"].class_names) != row.classes:
        found = len(splits["train"].class_names)
        raise UserError(f"{row.name}: found {found} classes, the official number is {row.classes}; {hint}")
    for name, size in row.sizes.items():
        if len(splits[name]) != size:
            found = len(splits[name])
            raise UserError(f"{row.name}: {name} has {found:,} images, officially {size:,}; {hint}")
