"""The section of a page that says which classes and images to look at first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from probe.report.html.markup import element, name, text, together
from probe.report.text import format
from probe.report.text.format import percent, plural

# An image (split and id), what is on it and what to write below it, to HTML.
Picture = Callable[[Mapping[str, str], str, str | None], str]

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


def look_first(result: Mapping[str, Any], picture: Picture) -> str:
    """The hard classes with their reasons and images; `picture` is empty for an image without a thumbnail."""
    found = result["diagnostics"]["look_first"]
    note = (
        "The hard third of the classes, hardest first, with the likely reasons. They come from plain probes "
        f"cross-fitted on {found['images']:,} training images, whose accuracy is shown, and from neighbours "
        "among the features, so they may be acted on without a look at test labels."
    )
    items = [element("li", _class(row, picture)) for row in shown_classes(result["diagnostics"])]
    said = [together(line) for line in format.look_first_totals(found)]
    return (
        element("p", note, cls="note")
        + element("ul", "".join(items), cls="pairs look")
        + "".join(element("p", line, cls="note") for line in said)
    )


def _class(row: Mapping[str, Any], picture: Picture) -> str:
    head = f"{element('strong', name(row['name']))}, {percent(row['accuracy'])} % right"
    reasons = [reason["text"] for reason in row["reasons"]] or [row["text"]]
    said = "".join(element("p", together(reason), cls="reason") for reason in reasons)
    return element("p", head) + said + _suspects(row, picture) + "".join(_pairs(row, picture))


def _suspects(row: Mapping[str, Any], picture: Picture) -> str:
    images = row["suspects"]["images"][:SUSPECTS]
    if not images:
        return ""
    rivals = ", ".join(dict.fromkeys(image["rival"] for image in images))
    said = f"confidently mistaken for {rivals}: {plural(row['suspects']['count'], 'image')}"
    names = [
        f"{image['id']}: {image['rival']} {percent(image['rival_probability'], 0)} %" for image in images
    ]
    return _shown(said, images, names, picture, [f"as {image['rival']}" for image in images])


def _pairs(row: Mapping[str, Any], picture: Picture) -> Iterator[str]:
    for pair in row["near_duplicates"][:PAIRS]:
        images = pair["images"]
        where = " and ".join(dict.fromkeys(image["split"] for image in images))
        labels = " and ".join(image["class"] for image in images)
        odd = images[0]["class"] != images[1]["class"]
        said = f"near-duplicates in {where}" + (f", labelled {labels}" if odd else "")
        names = [f"{image['split']} {image['id']}: {image['class']}" for image in images]
        yield _shown(said, images, names, picture, [image["class"] for image in images])


def _shown(
    said: str,
    images: Iterable[Mapping[str, str]],
    names: list[str],
    picture: Picture,
    below: list[str],
) -> str:
    """A line and its pictures, which have the names; without pictures, the line has them."""
    drawn = "".join(picture(*shown) for shown in zip(images, names, below, strict=True))
    if not drawn:
        return element("p", text(f"{said} ({'; '.join(names)})"), cls="note")
    return element("p", text(said), cls="note") + element("div", drawn, cls="thumbs")
