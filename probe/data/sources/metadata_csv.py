"""`metadata.csv` beside the images of a folder: what is known of an image besides its class.

    file_name,hospital
    cat/0.png,north

Paths are relative to the file, which stands in the data folder or in that of a split. Values stay text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from backbones import reading
from probe.errors import UserError

NAME = "metadata.csv"
KEY = "file_name"


def read(root: Path, files: Iterable[str]) -> dict[str, dict[str, str]]:
    """Column -> path below `root` -> value, of the files that stand beside or above `files`."""
    folders = {parent for file in files for parent in PurePosixPath(file).parents}
    found: dict[str, dict[str, str]] = {}
    for folder in sorted(folders):
        path = root / folder / NAME
        if path.is_file():
            _add(found, path, folder)
    return found


def _add(found: dict[str, dict[str, str]], path: Path, folder: PurePosixPath) -> None:
    try:
        rows = csv.DictReader(reading.text(path).lstrip("\ufeff").splitlines())
        names = rows.fieldnames or []
        if KEY not in names:
            raise UserError(f"{path} has no column {KEY} (it has {', '.join(names) or 'none'}); add it")
        for name in names:
            found.setdefault(name, {})
        for row in rows:
            file = (folder / (row[KEY] or "")).as_posix()
            for name in names:
                if row[name]:  # an empty cell says nothing
                    found[name][file] = row[name]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
