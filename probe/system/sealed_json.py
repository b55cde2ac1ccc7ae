"""Text that carries its own checksum: a file in which a single changed character is noticed."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted, compact, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str | bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def sealed(body: dict[str, Any]) -> str:
    """`body` with its own checksum, as the text of a file."""
    return canonical({"body": body, "sha256": digest(canonical(body))}) + "\n"


def unsealed(text: str) -> dict[str, Any]:
    """The body of a sealed text; ValueError if any character is not as it was written."""
    try:
        body = json.loads(text)["body"]
        intact = isinstance(body, dict) and sealed(body) == text
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError("it carries no checksum") from error
    if not intact:
        raise ValueError("its checksum does not match its content")
    return body
