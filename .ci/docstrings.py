"""A griffe extension for the API reference: what is laid out by hand in a docstring stays laid out.

Docstrings are written to be read in the source: examples after `>>>`, and columns (a name, spaces, what it
means). As Markdown the one would be quotes and the other a paragraph, so both become blocks of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$).*\n)*)+", re.MULTILINE)
COLUMNS = re.compile(r"(?:^[a-z][\w\", ]*? {2,}\S.*\n(?:^ {4,}\S.*\n)*){2,}", re.MULTILINE)


class HandLaid(griffe.Extension):
    """Fences examples and columns of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value.rstrip() + "\n"
            text = EXAMPLE.sub(lambda found: _fenced(found[0], "pycon"), text)
            obj.docstring.value = COLUMNS.sub(lambda found: _fenced(found[0], "text"), text)


def _fenced(block: str, language: str) -> str:
    return f"\n```{language}\n{block}```\n"
