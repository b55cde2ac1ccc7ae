"""What the README of a hub repository, or of a folder, says about its files: configurations and their splits.

Reading it is left to the `datasets` library, which knows every form that people write. Before that, what the
README names is looked at: files below the folder and nothing else, no address and no other place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from backbones import reading
from backbones.errors import reason
from probe.errors import UserError

NAME = "README.md"
MARK = "---"


def declared(root: Path, configuration: str | None) -> dict[str, list[str]] | None:
    """The files of a configuration by split, as paths below `root`; None where no README says."""
    configs = _front(root / NAME).get("configs")
    files = [c.get("data_files") or c.get("data_dir") for c in _rows(configs)]
    if not any(files):
        return None
    for named in _texts(configs):
        if "://" in named or named.startswith(("/", "~")) or ".." in named.split("/"):
            raise UserError(f'{root / NAME} names "{named:.80}", which is not below the folder; correct it')
    import datasets

    try:
        builder = datasets.load_dataset_builder(str(root), name=configuration)
        by_split = builder.config.data_files or {}
        check_choice(builder, configuration, str(root))
    except UserError:
        raise
    except Exception as error:  # nearly anything, for what people write
        raise UserError(
            f"{root / NAME}: {reason(error)}; data.config=NAME chooses a configuration"
        ) from error
    return {
        str(split): sorted(Path(file).relative_to(root).as_posix() for file in mine)
        for split, mine in by_split.items()
    }


def check_choice(builder: Any, configuration: str | None, where: str) -> None:
    """Raise where there are several configurations and only their order chooses: `datasets` takes the first.

    One that is called `default`, or that is marked as such and not the first, is a choice.
    """
    names = list(builder.builder_configs)
    if configuration is None and len(names) > 1 and builder.config.name == names[0] != "default":
        raise UserError(
            f"{where} has several configurations ({', '.join(names)}); choose with data.config=NAME"
        )


def splits_told(root: Path, configuration: str | None) -> list[str] | None:
    """The splits that a README counts the images of (`dataset_info`), if it does."""
    infos = _front(root / NAME).get("dataset_info")
    for info in [infos] if isinstance(infos, dict) else _rows(infos):
        if configuration in (None, info.get("config_name", "default")):
            names = [split.get("name") for split in _rows(info.get("splits"))]
            return [name for name in names if isinstance(name, str)] or None
    return None


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _front(path: Path) -> dict[str, Any]:
    """The README's front matter; empty where there is none."""
    try:
        lines = reading.text(path).splitlines() if path.is_file() else []
        if not lines or lines[0].strip() != MARK:
            return {}
        end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == MARK), None)
        front = yaml.safe_load("\n".join(lines[1:end]))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    return front if isinstance(front, dict) else {}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
