"""CLIP's own words for ImageNet: 1,000 class names and 80 templates, as OpenAI published them.

They are read from the installed open_clip package, which carries them, without importing it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any

from probe.errors import UserError

MODULE = "zero_shot_metadata.py"
CLASSES, TEMPLATES = 1000, 80
WORDNET_ID = re.compile(r"n\d{8}")
FIRST, LAST = "tench", "toilet t"  # "tench, Tinca tinca" and "toilet tissue, toilet paper, ..." on the hub


def read(class_names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What prompts call the classes (K), and the templates.

    The names are in ImageNet's order of WordNet ids. Where `class_names` show another order, they are used
    themselves.
    """
    words = _words()
    names = tuple(str(name) for name in words.IMAGENET_CLASSNAMES)
    templates = tuple(template("{}") for template in words.OPENAI_IMAGENET_TEMPLATES)
    if (len(names), len(templates)) != (CLASSES, TEMPLATES):
        raise UserError(
            f"open_clip has {len(names)} names and {len(templates)} templates for ImageNet, not {CLASSES} and"
            f" {TEMPLATES}; install the version of constraints.txt"
        )
    return (names if in_order(class_names) else tuple(class_names)), templates


def in_order(class_names: Sequence[str]) -> bool:
    """Are these ImageNet's classes by their WordNet ids, or by the names that the hub gives them?"""
    if len(class_names) != CLASSES:
        return False
    if all(WORDNET_ID.fullmatch(name) for name in class_names):
        return list(class_names) == sorted(class_names)
    return class_names[0].lower().startswith(FIRST) and class_names[-1].lower().startswith(LAST)


def _words() -> Any:
    found = util.find_spec("open_clip")
    folders = (found.submodule_search_locations if found else None) or []
    for path in (Path(folder, MODULE) for folder in folders):
        spec = util.spec_from_file_location("_imagenet_words", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise UserError(
        "open_clip is not installed, which has CLIP's words for ImageNet; pip install open_clip_torch"
    )
