"""The card of a run on the hub, written from its result: what it knows, how well, and where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from backbones import catalogue
from probe.errors import UserError
from probe.report.html.reproduce import without_nulls
from probe.report.text import format
from probe.system.safe_text import printable

WORST = 10  # classes and confusions named
MARKUP = "|<>&`*_[]\\$~#"
GROUPED_BY = {
    "crossfit": "a plain probe on training images that it has not seen",
    "held-out": "plain training, on images held out from it",
    "file": "a file",
    "reference": "another run",
    "paper": "their accuracy on the test images, as the papers do",
}
NO_LICENCE = "other"  # as the hub says "see the text"
LIBRARIES = {
    "timm": ("timm", 'import timm\n\nmodel = timm.create_model("hf-hub:{repository}", pretrained=True)'),
    "transformers": (
        "transformers",
        "from transformers import AutoModelForImageClassification\n\n"
        'model = AutoModelForImageClassification.from_pretrained("{repository}")',
    ),
    "mr2-probe": (
        "mr2-probe",
        "import huggingface_hub, probe\n\n"
        'model = probe.load(huggingface_hub.snapshot_download("{repository}"))',
    ),
}


def card(result: Mapping[str, Any], about: Mapping[str, Any], repository: str) -> str:
    """README.md of the repository, as Markdown with the hub's own header."""
    return "\n".join([*_header(result, about), *_body(result, about, repository), ""])


def licences(result: Mapping[str, Any]) -> dict[str, str]:
    """The licence of each backbone's weights, by its name."""
    parts = result["backbone"].get("parts") or [result["backbone"]]
    found = {}
    for part in parts:
        name = str(part["name"])
        try:
            found[name] = catalogue.find(name).licence
        except UserError:  # a backbone of a package that is not here
            found[name] = "not known"
    return found


def _header(result: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[str]:
    known = set(licences(result).values())
    said = {
        "library_name": LIBRARIES[about["format"]][0],
        "pipeline_tag": "image-classification",
        "license": known.pop() if len(known) == 1 else NO_LICENCE,
        "tags": ["image-classification", "mr2-probe"],
        "metrics": ["accuracy"],
    }
    yield from ("---", yaml.safe_dump(said, sort_keys=False, allow_unicode=True).rstrip(), "---")


def _body(result: Mapping[str, Any], about: Mapping[str, Any], repository: str) -> Iterator[str]:
    test, data = result["test"], result["data"]
    name = _escaped(format.data(data["name"]))
    yield f"# {repository.rpartition('/')[2]}"
    yield ""
    yield (
        f"{_escaped(result['backbone']['name'])} with a head fitted by {_escaped(format.method(result))}: "
        f"{format.plural(len(test['by_class']), 'class')} of {name}. Mean accuracy per class on "
        f"{data['sizes']['test']:,} test images: {format.percent(test['mean_per_class'])} %."
    )
    yield from ("", "## Accuracy", "", "| test images | accuracy, % | 95 % interval |", "|---|---:|---:|")
    yield _row("overall", test["top1"], test["ci"])
    yield _row("mean per class", test["mean_per_class"], test["mean_per_class_ci"])
    for group, found in test["groups"].items():
        if found:
            yield _row(
                f"{group} ({format.plural(len(found['classes']), 'class')})", found["accuracy"], found["ci"]
            )
    by = str(result["groups_by"])
    yield from ("", f"Classes are grouped by {_escaped(GROUPED_BY.get(by, by))}.")
    yield from _weak_spots(result)
    yield from _origins(result, about, repository)


def _weak_spots(result: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in result["test"]["by_class"] if row["accuracy"] is not None]
    yield from ("", "## Where it fails", "", "| worst classes | accuracy, % | 95 % interval | test images |")
    yield "|---|---:|---:|---:|"
    for row in sorted(rows, key=lambda row: (row["accuracy"], row["name"]))[:WORST]:
        yield f"{_row(row['name'], row['accuracy'], row['ci'])} {row['n']} |"
    confusions = (result.get("diagnostics") or {}).get("confusions") or []
    if confusions:
        yield from ("", "| true class | mistaken for | images | share, % |", "|---|---|---:|---:|")
    for row in confusions[:WORST]:
        share = format.percent(row["share"])
        yield f"| {_escaped(row['true'])} | {_escaped(row['predicted'])} | {row['count']} | {share} |"


def _origins(result: Mapping[str, Any], about: Mapping[str, Any], repository: str) -> Iterator[str]:
    data, (_, load) = result["data"], LIBRARIES[about["format"]]
    yield from ("", "## Use", "", "```python", load.format(repository=repository), "```", "")
    for numbers in about["inputs"]:
        mean, std = (", ".join(f"{v:g}" for v in numbers[key]) for key in ("mean", "std"))
        yield (
            f"- Images for {_escaped(numbers['backbone'])}: short side to {numbers['resize']} pixels "
            f"({numbers['interpolation']}), centre crop of {numbers['size']}, mean {mean}, std {std}."
        )
    sizes = ", ".join(f"{n:,} {split}" for split, n in data["sizes"].items())
    yield from ("", "## Data, recipe, licence", "", f"- Data: {_escaped(data['name'])}; images: {sizes}.")
    seeds = format.plural(len(result["seeds"]), "seed")
    yield f"- The head is that of seed {about['seed']}; the accuracies are of {seeds}."
    for name, licence in licences(result).items():
        yield f"- The weights of {_escaped(name)}: {licence}."
    yield f"- Made by {about['made_by']}."
    yield from (
        "",
        "<details><summary>The recipe</summary>",
        "",
        "```yaml",
        yaml.safe_dump(_public(without_nulls(result["recipe"])), sort_keys=False).rstrip(),
        "```",
        "",
        "</details>",
        "",
        "## Classes",
        "",
    )
    yield ", ".join(map(_escaped, about["class_names"])) + "."


def _public(value: Any) -> Any:
    """A recipe without the folders of the machine it ran on: of a path, the last part, on one line."""
    if isinstance(value, dict):
        return {key: _public(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_public(part) for part in value]
    if not isinstance(value, str):
        return value
    local = value.startswith(("/", "~", "./", "../"))
    return printable(value.rstrip("/").rpartition("/")[2] if local else value)


def _row(name: str, accuracy: float | None, ci: list[float] | None) -> str:
    return f"| {_escaped(name)} | {format.percent(accuracy)} | {format.interval(ci)} |"


def _escaped(text: str) -> str:
    """Names come from folders and files: nothing in them is Markdown, HTML or a formula, or invisible."""
    plain = printable(" ".join(str(text).split()))
    return "".join(f"&#{ord(c)};" if c in MARKUP else c for c in plain)
