"""Small pieces of HTML in which every name from outside is escaped."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# What could end a script element or a line of JavaScript, as JSON escapes with the same meaning.
VOID = ("br", "wbr")  # elements without content
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def text(value: Any) -> str:
    """Any value as text, for element content and quoted attributes."""
    return html.escape(str(value), quote=True)


def together(value: Any) -> str:
    """Prose as text in which a number and its percent sign stay on one line."""
    return re.sub(r"(?<=\d) %", "&nbsp;%", text(value))


def name(value: Any) -> str:
    """A name as text that may break after an underscore, a hyphen or a slash, as it may between words."""
    return re.sub(r"(?<=\w)([_\-/])(?=\w)", r"\1<wbr>", text(value))


def scrolling(content: str, label: str) -> str:
    """A region that scrolls sideways where it must, and shows that it does."""
    return element("div", content, cls="scroll", tabindex="0", role="region", aria_label=label)


def json_in_script(value: Any) -> str:
    """JSON that is safe inside a <script> element, whatever strings are in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPT)


def element(tag: str, content: str = "", **attributes: Any) -> str:
    """`element("p", text(x), cls="note")`; the content is HTML already, attribute values are escaped."""
    if tag in VOID:
        return f"<{tag}>"
    given = "".join(
        f' {name.replace("cls", "class").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{given}>{content}</{tag}>"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numeric: int = 1) -> str:
    """A plain table of HTML cells; columns from `numeric` on are aligned as numbers."""

    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(
            element(
                "th" if tag == "th" or i == 0 else "td",
                v,
                scope="col" if tag == "th" else "row" if i == 0 else None,
                cls="number" if i >= numeric else None,
            )
            for i, v in enumerate(values)
        )

    head = element("thead", element("tr", cells(heading, "th")))
    body = element("tbody", "".join(element("tr", cells(row, "td")) for row in rows))
    return element("table", element("caption", text(caption)) + head + body)


def definitions(pairs: Mapping[str, Any]) -> str:
    """Names with their values, as a description list."""
    return element(
        "dl", "".join(element("dt", text(k)) + element("dd", text(v)) for k, v in pairs.items()), cls="facts"
    )
