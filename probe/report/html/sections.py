"""The text and the tables of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.html.markup import element, name, scrolling, table, text
from probe.report.html.thumbnails import TEST
from probe.report.html.thumbnails import key as thumbnail_key
from probe.report.text import format
from probe.report.text.format import gain_interval, gained, interval, percent, plural

Result = Mapping[str, Any]
UNIT = element("small", " %")
EACH_SIDE = 2  # pictures of a mistake, and of what it was mistaken for


def title(result: Result) -> str:
    """`mr2 with clip-rn50 on pets`."""
    backbone = (result.get("backbone") or {}).get("name")
    data = (result.get("data") or {}).get("name")
    return format.method(result) + (f" with {backbone}" if backbone else "") + (f" on {data}" if data else "")


def subtitle(result: Result) -> str:
    """`37 classes, 3,680 training images, 3,669 test images, 5 seeds, groups by crossfit`."""
    sizes = (result.get("data") or {}).get("sizes") or {}
    parts = [plural(len(result["test"]["by_class"]), "class")]
    parts += [
        f"{sizes[split]:,} {word} images"
        for split, word in (("train", "training"), ("test", "test"))
        if split in sizes
    ]
    if result.get("seeds"):
        parts.append(format.seeds(result))
    if result.get("groups_by"):
        parts.append(format.groups(result))
    return text(", ".join(parts))


def card(what: str, value: str, more: str, *, main: bool = False) -> str:
    """A number with its name above and a line below; `value` and `more` are HTML."""
    content = (
        element("p", text(what), cls="what")
        + element("p", value, cls="value")
        + element("p", more, cls="more")
    )
    return element("div", content, cls="card main" if main else "card")


def _gain(gain: Mapping[str, Any] | None, reference: str = "") -> str:
    """`+2.0 over erm (+0.4 to +3.6): better`, coloured by its verdict; a heading may name the reference."""
    if gain is None:
        return ""
    said = format.verdict(gain)
    over = f" over {text(reference)}" if reference else ""
    inside = f"{gained(gain)}{over} ({gain_interval(gain['ci'])}): {said}"
    return element("span", inside, cls=format.TONE[said])


def cards(result: Result) -> str:
    """The headline numbers: overall, hardest group, worst class, gap, calibration."""
    test, versus = result["test"], result.get("versus")
    reference = format.against(versus["method"], versus.get("how")) if versus else ""
    gains = versus["gain"] if versus else {}

    def accuracy(what: str, value: float, ci: Sequence[float] | None, key: str, *, main: bool = False) -> str:
        gain = _gain(gains.get(key), reference)
        more = f"95 %: {interval(ci)}" + (element("br") + gain if gain else "")
        return card(what, percent(value) + UNIT, more, main=main)

    shown = [accuracy("Overall accuracy", test["top1"], test["ci"], "overall", main=True)]
    if len(test["groups"]) > 1:
        hardest, group = list(test["groups"].items())[-1]
        what = f"{hardest.capitalize()} classes ({len(group['classes'])})"
        shown.append(accuracy(what, group["accuracy"], group["ci"], hardest, main=True))
    shown.append(
        accuracy("Mean per class", test["mean_per_class"], test["mean_per_class_ci"], "mean_per_class")
    )
    return element("div", "".join([*shown, *_fairness(test)]), cls="cards")


def _fairness(test: Mapping[str, Any]) -> Iterator[str]:
    """Cards of how evenly classes are treated, and of what else the result has."""
    gini = f", Gini {test['gini']:.3f}" if test.get("gini") is not None else ""
    worst = next(row for row in test["by_class"] if row["name"] == test["worst"]["class"])
    more = f"{name(worst['name'])}{element('br')}95 %: {interval(worst['ci'])}"
    yield card("Worst class", percent(worst["accuracy"]) + UNIT, more)
    yield card(
        "Gap, best to worst",
        percent(test["gap"]) + element("small", " points"),
        f"standard deviation {percent(test['std'])}{gini}",
    )
    if test.get("worst_tenth") is not None:
        yield card("Worst tenth of classes", percent(test["worst_tenth"]) + UNIT, "mean of their accuracies")
    if test.get("top5") is not None and len(test["by_class"]) > 5:
        yield card("Top-5", percent(test["top5"]) + UNIT, "true class among the five most likely")
    if test.get("ece") is not None:
        yield card("Calibration error", percent(test["ece"]) + UNIT, "expected (ECE), over 15 bins")


def remarks_of(result: Result) -> str:
    """What to keep in mind about a run."""
    return remarks(format.remarks(result))


def remarks(said: Sequence[str]) -> str:
    """Remarks as a list; nothing if there are none."""
    return element("ul", "".join(element("li", text(r)) for r in said), cls="remarks") if said else ""


def groups_table(result: Result) -> str:
    """Every group, by difficulty and by training images: accuracy, calibration, gain."""
    test, versus = result["test"], result.get("versus") or {}
    tables = {result.get("groups_by") or "": (test["groups"], versus.get("gain") or {})}
    tables |= format.count_groups(result)
    rows = [
        [
            name(group_name),
            text(by),
            str(len(group["classes"])),
            percent(group["accuracy"]),
            interval(group["ci"]),
            percent(group["ece"]),
            *([_gain(gains.get(group_name))] if versus else []),
        ]
        for by, (groups, gains) in tables.items()
        for group_name, group in groups.items()
        if group["accuracy"] is not None
    ]
    heading = [
        "group",
        "by",
        "classes",
        "accuracy %",
        "95 % interval",
        "calibration error %",
        *([f"gain over {format.against(versus['method'], versus.get('how'))}"] if versus else []),
    ]
    caption = "A group's accuracy is the mean over its classes."
    if versus:
        caption += " Intervals and verdicts of the gains are corrected for their number (Holm)."
    return scrolling(table(heading, rows, caption=caption, numeric=2), "All groups")


def has_confusions(result: Result) -> bool:
    """Are there any mistakes to show?"""
    return bool((result.get("diagnostics") or {}).get("confusions"))


def picture(
    thumbnails: Mapping[str, str], image: Mapping[str, str], shown: str, below: str | None = None
) -> str:
    """The thumbnail of an image (split and id); nothing where there is none.

    `shown` says what is on it, `below` is written below it.
    """
    source = thumbnails.get(thumbnail_key(image["split"], image["id"]), "")
    if not source.startswith("data:image/"):
        return ""
    size = 'decoding="async" width="112" height="112"'
    drawn = f'<img src="{text(source)}" alt="{text(shown)}" title="{text(shown)}" {size}>'
    return element("figure", drawn + (element("figcaption", name(below)) if below else ""))


def confusions(result: Result, thumbnails: Mapping[str, str]) -> str:
    """The most frequent mistakes, each beside the class that it was mistaken for."""
    items = []
    for row in result["diagnostics"]["confusions"]:
        true, predicted = (element("strong", name(row[key])) for key in ("true", "predicted"))
        said = (
            f"{true} mistaken for {predicted}: "
            f"{plural(row['count'], 'time')}, {percent(row['share'])} % of the class"
        )
        wrong = _side(
            thumbnails,
            row.get("ids") or [],
            f"{row['true']}, mistaken for {row['predicted']}",
            f"{row['true']}, mistaken",
        )
        alike = _side(
            thumbnails, row.get("predicted_ids") or [], row["predicted"], f"{row['predicted']}, right"
        )
        sides = element("div", wrong + alike, cls="sides") if wrong or alike else ""
        items.append(element("li", element("p", said) + sides))
    note = (
        "The most frequent mistakes on the test split: on the left the most confident ones, on the right "
        "images of the class that they were mistaken for."
    )
    return element("p", note, cls="note") + element("ul", "".join(items), cls="pairs")


def _side(thumbnails: Mapping[str, str], ids: Sequence[str], shown: str, said: str) -> str:
    """A few pictures and, below them, what they are."""
    found = (picture(thumbnails, {"split": TEST, "id": i}, shown) for i in ids)
    drawn = "".join([html for html in found if html][:EACH_SIDE])
    return (
        element("div", element("div", drawn, cls="thumbs") + element("p", name(said), cls="what"))
        if drawn
        else ""
    )
