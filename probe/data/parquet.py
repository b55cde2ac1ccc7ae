"""A folder of parquet files in the hub's form: train-*, test-* and perhaps validation-*.parquet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from probe.data import layout
from probe.data.parquet_images import File, ParquetImages, column_chunk, file_state
from probe.data.split import Split
from probe.errors import UserError

NUMBER = re.compile(r"[-_.]?(?P<shard>\d+)(-of-(?P<total>\d+))?(-[0-9a-f]+)?$")
DEPTHS = ("*.parquet", "*/*.parquet", "*/*/*.parquet")  # in the folder, in data/, in configuration/split/
MANY = 0.01  # share of repeated ids from which on the `id` column is not believed
LABEL_NAMES = ("label", "labels", "class", "target")  # tried when no column says that it holds classes


def files_below(root: Path) -> list[str]:
    """Relative paths of the parquet files in a folder."""
    # Below train/ there may be a million images: no parquet file is looked for among them.
    depths = DEPTHS[:2] if (root / "train").is_dir() else DEPTHS
    found = (path.relative_to(root) for depth in depths for path in root.glob(depth))
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


def groups(files: Iterable[str], where: str, configuration: str | None = None) -> dict[str, list[str]]:
    """Files by split name: `data/train-00000-of-00002.parquet`, `default/train/0000.parquet` are `train`."""
    by_split: dict[str, dict[str, list[str]]] = {}
    for file in sorted(files):
        path = PurePosixPath(file)
        stem, folder = NUMBER.sub("", path.stem), path.parent
        if not stem:
            stem, folder = folder.name, folder.parent
        if configuration in (None, folder.as_posix(), folder.name):
            by_split.setdefault(stem, {}).setdefault(folder.as_posix(), []).append(file)
    for split, homes in by_split.items():
        if len(homes) > 1 and any(split in words for words in layout.WORDS.values()):
            raise UserError(
                f"{where} holds several data sets ({', '.join(sorted(homes))}); choose one: the folder "
                "itself, or owner/name:configuration for the hub"
            )
    return {split: files for split, homes in by_split.items() for files in homes.values()}


def check_complete(files: Iterable[str], where: str) -> None:
    """Raise when `train-00000-of-00002` is there and `train-00001-of-00002` is not."""
    seen: dict[int, set[int]] = {}
    for file in files:
        match = NUMBER.search(PurePosixPath(file).stem)
        if match and match["total"]:
            seen.setdefault(int(match["total"]), set()).add(int(match["shard"]))
    for total, shards in seen.items():
        if missing := sorted(set(range(total)) - shards):
            raise UserError(
                f"{where}: {len(missing)} of {total} files are missing, the first is number {missing[0]}"
            )


def tells_total(file: str) -> bool:
    """Does the name say how many files there are, as `train-00000-of-00002.parquet` does?"""
    match = NUMBER.search(PurePosixPath(file).stem)
    return bool(match and match["total"])


def read(
    root: Path,
    want: Mapping[str, tuple[str, ...]],
    *,
    strict: bool,
    image: tuple[str, ...] = (),
    label: tuple[str, ...] = (),
    classes: int | None = None,
    configuration: str | None = None,
    cache: str | Path | None = None,
) -> dict[str, Split]:
    """The splits of a folder of parquet files.

    `image` and `label` are column hints, and `classes` is their official number where names are not stored;
    digests are remembered in `cache`.
    """
    found = layout.choose(groups(files_below(root), str(root), configuration), want, str(root), strict=strict)
    tables = {}
    for name, files in found.items():
        check_complete(files, f"{root} ({name})")
        tables[name] = _read_table([root / file for file in files], root, image, label)
    names = _class_names(tables["train"], classes)
    return {name: _split(name, table, table.names or names, cache) for name, table in tables.items()}


@dataclass
class _Table:
    """The small columns of a split, and where its images are."""

    files: list[File]
    image: str
    label: str
    labels: pa.ChunkedArray  # integers or strings
    ids: list[str]
    names: tuple[str, ...]  # declared class names, if any
    where: str


def _read_table(
    paths: list[Path], root: Path, image_hints: tuple[str, ...], label_hints: tuple[str, ...]
) -> _Table:
    files, labels = [], []
    names: tuple[str, ...] = ()
    ids: list[str] = []
    places: list[str] = []  # file:row
    image = label = ""
    for path in paths:
        try:
            state = file_state(path)
            file = pq.ParquetFile(path)
            features = _features(file.schema_arrow)
            image = _image_column(file.schema_arrow, features, image_hints, path)
            label = _label_column(file.schema_arrow, features, label_hints, path)
            with_id = "id" in file.schema_arrow.names
            columns = file.read(columns=[label, "id"] if with_id else [label])
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read {path} as parquet: {str(error).splitlines()[0]}") from error
        _check_embedded(file, image, path)
        names = _declared(features.get(label, {}), path)
        meta = file.metadata
        counts = tuple(meta.row_group(g).num_rows for g in range(meta.num_row_groups))
        files.append(File(path, counts, state))
        labels.append(columns[label].combine_chunks())
        stem = path.relative_to(root).as_posix()
        places += [f"{stem}:{row}" for row in range(meta.num_rows)]
        given = columns["id"].to_pylist() if with_id else [None] * meta.num_rows
        ids += [places[len(ids) + i] if value is None else str(value) for i, value in enumerate(given)]
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return _Table(files, image, label, _joined(labels, where), _told_apart(ids, places), names, where)


def _told_apart(ids: list[str], places: list[str]) -> list[str]:
    """Ids with their place added where they repeat (CIFAR-100 has one file name twice).

    When more than a few repeat, they are left as they are, to be refused: the column is not an id, or the
    rows were written twice.
    """
    counts = Counter(ids)
    repeated = sum(count for count in counts.values() if count > 1)
    if repeated > MANY * len(ids):
        return ids
    return [f"{i} ({place})" if counts[i] > 1 else i for i, place in zip(ids, places, strict=True)]


def _joined(labels: list[pa.Array], where: str) -> pa.ChunkedArray:
    labels = [array.dictionary_decode() if pa.types.is_dictionary(array.type) else array for array in labels]
    kind = labels[0].type
    textual = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (textual or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise UserError(f"{where}: labels are {kind}; a label is one integer or one string")
    return pa.chunked_array([array.cast(pa.string() if textual else pa.int64()) for array in labels])


def _features(schema: pa.Schema) -> dict[str, dict]:
    """What the `datasets` library wrote about the columns: their types and class names."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _declared(feature: dict, path: Path) -> tuple[str, ...]:
    """The class names that a label column declares, if it does."""
    names = feature.get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: the class names in its metadata are no list of texts; write it again")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a class name stands twice in its metadata; give every class its own name")
    return tuple(names)


def _image_column(schema: pa.Schema, features: dict[str, dict], hints: tuple[str, ...], path: Path) -> str:
    """The leaf column that holds encoded images: by hint, by declared type, then by its shape."""
    declared = [name for name, feature in features.items() if feature.get("_type") == "Image"]
    shaped = [field.name for field in schema if _leaf(field) is not None]
    for name in (*hints, *declared, *shaped):
        if name in shaped:
            leaf = _leaf(schema.field(name))
            assert leaf is not None
            return leaf
    raise UserError(
        f"{path} has no image column (a struct with bytes, or binary); its columns: {_listed(schema)}"
    )


def _leaf(field: pa.Field) -> str | None:
    if pa.types.is_struct(field.type):
        position = field.type.get_field_index("bytes")
        return (
            f"{field.name}.bytes" if position >= 0 and _is_binary(field.type.field(position).type) else None
        )
    return field.name if _is_binary(field.type) else None


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _label_column(schema: pa.Schema, features: dict[str, dict], hints: tuple[str, ...], path: Path) -> str:
    declared = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel"]
    for name in (*hints, *declared, *LABEL_NAMES):
        if name in schema.names:
            return name
    raise UserError(f'{path} has no label column (call it "label"); its columns: {_listed(schema)}')


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names) or "none"


def _check_embedded(file: pq.ParquetFile, image: str, path: Path) -> None:
    """Some writers store the images' paths and leave their bytes null."""
    for group in range(file.metadata.num_row_groups):
        statistics = column_chunk(file, group, image).statistics
        rows = file.metadata.row_group(group).num_rows
        if statistics is not None and statistics.has_null_count and rows and statistics.null_count == rows:
            raise UserError(
                f"{path} holds no images in {image}, perhaps only paths; write it with the bytes embedded"
            )


def _class_names(train: _Table, classes: int | None) -> tuple[str, ...]:
    """Declared names, else the sorted strings, else the numbers up to the largest."""
    if train.names or not len(train.labels):
        return train.names
    if pa.types.is_string(train.labels.type):
        return tuple(sorted(pc.unique(train.labels.drop_null()).to_pylist()))
    largest = pc.max(train.labels).as_py() or 0
    if largest >= max(classes or 0, len(train.labels)):  # every class has an image, so it cannot be a class
        raise UserError(
            f"{train.where}: there is a label {largest:,} but only {len(train.labels):,} images; "
            "labels count the classes from 0, each with at least one image"
        )
    return tuple(str(k) for k in range(max(classes or 0, largest + 1)))


def _split(name: str, table: _Table, names: tuple[str, ...], cache: str | Path | None) -> Split:
    labels = table.labels
    if labels.null_count:
        first = pc.index(labels.is_null(), True).as_py()
        raise UserError(
            f'{table.where}: {labels.null_count:,} labels are missing, the first of "{table.ids[first]}"'
        )
    if pa.types.is_string(labels.type):
        numbers = pc.index_in(labels, value_set=pa.array(names, pa.string()))
        if numbers.null_count:
            only = sorted(set(pc.unique(labels).to_pylist()) - set(names))
            raise UserError(
                f"train and {name} do not have the same classes: only in {name}: {', '.join(only[:5])}"
            )
        labels = numbers
    values = labels.to_numpy().astype(np.int64)
    images = ParquetImages(table.files, table.image, table.ids, cache)
    wrong = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(wrong):
        raise UserError(
            f'{table.where}: label {values[wrong[0]]} of "{table.ids[wrong[0]]}" is out of range; there are '
            f"{len(names)} classes, 0 to {len(names) - 1} ({len(wrong):,} such labels; -1 means unlabelled)"
        )
    return Split(name, images, values, table.ids, names)
