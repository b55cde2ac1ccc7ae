"""The text and the tables of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.report.html.markup import definitions, element, table, text
from probe.report.html.thumbnails import TEST
from probe.report.html.thumbnails import key as thumbnail_key
from probe.report.text import format
from probe.report.text.format import gain_interval, gained, interval, percent, plural

Result = Mapping[str, Any]
UNIT = element("small", " %")


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
        parts.append(plural(len(result["seeds"]), "seed"))
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
        more = _gain(gains.get(key), reference) or f"95 % interval: {interval(ci)}"
        return card(what, percent(value) + UNIT, more, main=main)

    shown = [accuracy("Overall accuracy", test["top1"], test["ci"], "overall", main=True)]
    if len(test["groups"]) > 1:
        name, group = list(test["groups"].items())[-1]
        what = f"{name.capitalize()} classes ({len(group['classes'])})"
        shown.append(accuracy(what, group["accuracy"], group["ci"], name, main=True))
    shown.append(
        accuracy("Mean per class", test["mean_per_class"], test["mean_per_class_ci"], "mean_per_class")
    )
    return element("div", "".join([*shown, *_fairness(test)]), cls="cards")


def _fairness(test: Mapping[str, Any]) -> Iterator[str]:
    """Cards of how evenly classes are treated, and of what else the result has."""
    gini = f", Gini {test['gini']:.3f}" if test.get("gini") is not None else ""
    yield card("Worst class", percent(test["worst"]["accuracy"]) + UNIT, text(test["worst"]["class"]))
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
            text(name),
            text(by),
            str(len(group["classes"])),
            percent(group["accuracy"]),
            interval(group["ci"]),
            percent(group["ece"]),
            *([_gain(gains.get(name))] if versus else []),
        ]
        for by, (groups, gains) in tables.items()
        for name, group in groups.items()
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
    return element("div", table(heading, rows, caption=caption, numeric=2), cls="scroll", tabindex="0")


def has_confusions(result: Result) -> bool:
    """Are there any mistakes to show?"""
    return bool((result.get("diagnostics") or {}).get("confusions"))


def picture(thumbnails: Mapping[str, str], image: Mapping[str, str], shown: str) -> str:
    """The thumbnail of an image (split and id); nothing where there is none. `shown` says what is on it."""
    source = thumbnails.get(thumbnail_key(image["split"], image["id"]), "")
    if not source.startswith("data:image/"):
        return ""
    size = 'decoding="async" width="62" height="62"'
    return f'<img src="{text(source)}" alt="{text(shown)}" title="{text(shown)}" {size}>'


def confusions(result: Result, thumbnails: Mapping[str, str]) -> str:
    """The most frequent mistakes, with the most confident examples of each where there are thumbnails."""
    items = []
    for row in result["diagnostics"]["confusions"]:
        true, predicted = text(row["true"]), text(row["predicted"])
        said = (
            f"{element('strong', true)} mistaken for {element('strong', predicted)}: "
            f"{plural(row['count'], 'time')}, {percent(row['share'])} % of the class"
        )
        shown = f"{row['true']}, mistaken for {row['predicted']}"
        images = "".join(picture(thumbnails, {"split": TEST, "id": i}, shown) for i in row.get("ids", []))
        thumbs = element("div", images, cls="thumbs") if images else ""
        items.append(element("li", element("p", said) + thumbs))
    note = "The most frequent mistakes on the test split, with the most confident examples of each."
    return element("p", note, cls="note") + element("ul", "".join(items), cls="pairs")


def reproduce(result: Result) -> str:
    """The recipe to run again, what it ran on, and how long it took."""
    import yaml

    parts = []
    if result.get("recipe"):
        recipe = yaml.safe_dump(result["recipe"], sort_keys=False, allow_unicode=True)
        parts.append(
            element("p", "Save as <code>recipe.yaml</code> and run <code>probe run recipe.yaml</code>.")
            + element("pre", element("code", text(recipe)), tabindex="0")
        )
    if result.get("backbone"):
        told = result["backbone"].get("parts") or [result["backbone"]]  # several, side by side
        parts += [element("h3", "Backbone") + definitions(_flat(part)) for part in told]
    if result.get("data"):
        parts.append(element("h3", "Data") + definitions(_flat(result["data"])))
    if result.get("environment"):
        parts.append(element("h3", "Environment") + definitions(_flat(result["environment"])))
    if result.get("timing"):
        rows = [[text(k), f"{v:.1f}"] for k, v in result["timing"].items()]
        parts.append(table(["stage", "seconds"], rows, caption="Time by stage"))
    return "".join(parts) or element(
        "p", "These predictions were made elsewhere, so there is no recipe.", cls="note"
    )


def _flat(block: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested values with dotted names; empty ones are left out."""
    flat: dict[str, Any] = {}
    for key, value in block.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        elif value not in (None, [], ()):
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat
