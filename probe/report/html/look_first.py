"""The section of a page that says which classes and images to look at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.report.html.markup import element, text
from probe.report.text import format
from probe.report.text.format import percent, plural

CLASSES = 30  # the hardest, which are shown with their images
SUSPECTS, PAIRS = 4, 2  # images and pairs of a class


def shown_classes(diagnostics: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The classes that the page shows; none where nothing was looked for."""
    found = diagnostics.get("look_first") or {}
    return list(found.get("classes") or [])[:CLASSES]


def shown_images(diagnostics: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """The images that the page shows, by split and id."""
    for row in shown_classes(diagnostics):
        yield from row["suspects"]["images"][:SUSPECTS]
        for pair in row["near_duplicates"][:PAIRS]:
            yield from pair["images"]


def look_first(result: Mapping[str, Any], picture: Any) -> str:
    """The hard classes with their reasons and images; `picture(image, alt)` is an image's HTML, or nothing."""
    found = result["diagnostics"]["look_first"]
    note = (
        "The hard third of the classes, hardest first, with the likely reasons. They come from plain probes "
        f"cross-fitted on {found['images']:,} training images and from the images' neighbours among the features, "
        "so they may be acted on without a look at test labels."
    )
    items = [element("li", _class(row, picture)) for row in shown_classes(result["diagnostics"])]
    said = [text(line) for line in format.look_first_totals(found)]
    return (
        element("p", note, cls="note")
        + element("ul", "".join(items), cls="pairs look")
        + "".join(element("p", line, cls="note") for line in said)
    )


def _class(row: Mapping[str, Any], picture: Any) -> str:
    head = f"{element('strong', text(row['name']))} ({percent(row['accuracy'])} % right, cross-fitted)"
    reasons = [reason["text"] for reason in row["reasons"]] or [row["text"]]
    listed = element("ul", "".join(element("li", text(reason)) for reason in reasons))
    return element("p", head) + listed + _suspects(row, picture) + "".join(_pairs(row, picture))


def _suspects(row: Mapping[str, Any], picture: Any) -> str:
    images = row["suspects"]["images"][:SUSPECTS]
    drawn = "".join(picture(image, f"{row['name']}, looks like {image['rival']}") for image in images)
    if not images:
        return ""
    names = "; ".join(
        f"{image['id']}: {image['rival']} {percent(image['rival_probability'], 0)} %" for image in images
    )
    said = element("p", text(f"{plural(row['suspects']['count'], 'suspect label')}: {names}"), cls="note")
    return said + (element("div", drawn, cls="thumbs") if drawn else "")


def _pairs(row: Mapping[str, Any], picture: Any) -> Iterator[str]:
    for pair in row["near_duplicates"][:PAIRS]:
        a, b = pair["images"]
        labels = "" if a["class"] == b["class"] else f", labelled {a['class']} and {b['class']}"
        ends = f"{a['split']} {a['id']} and {b['split']} {b['id']}"
        said = element("p", text(f"near-duplicates: {ends}{labels}"), cls="note")
        drawn = "".join(picture(image, f"{image['class']}, near-duplicate") for image in (a, b))
        yield said + (element("div", drawn, cls="thumbs") if drawn else "")
