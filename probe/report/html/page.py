"""report.html: one file that opens from disk, never uses the network, and shows a whole run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backbones import reading
from probe.errors import UserError
from probe.report.charts import diagnostics as panels
from probe.report.charts import results as charts
from probe.report.charts import static, verdicts
from probe.report.charts.base import DARK, LIGHT, Chart, theme
from probe.report.charts.shapes import View
from probe.report.html import attribute, look_first, sections
from probe.report.html.class_table import class_table
from probe.report.html.markup import element, json_in_script, text, together
from probe.report.html.reproduce import reproduce
from probe.report.text.conclusion import conclusion, next_command
from probe.system.atomic import write_atomic
from probe.system.cache_dir import cache_root, check_owner
from probe.system.safe_text import visible
from probe.system.sealed_json import sealed, unsealed

# Nothing may be fetched, whatever is in a page; Vega compiles its expressions, hence unsafe-eval.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; base-uri 'none'; form-action 'none'"
)

FOOTER = "Written by mr2-probe. Accuracies are percentages; intervals have 95 % confidence."


@dataclass(frozen=True)
class Shown:
    """What the sections of a page are made of."""

    result: Mapping[str, Any]
    thumbnails: Mapping[str, str]
    charts: Sequence[Chart]  # of the results
    panels: Sequence[Chart]  # of the diagnostics


@dataclass(frozen=True)
class Section:
    """A row of SECTIONS: its anchor, its heading, and its content, which is empty where there is none."""

    name: str
    heading: str
    content: Callable[[Shown], str]


def render(
    result: Mapping[str, Any],
    *,
    thumbnails: Mapping[str, str] | None = None,
    keep: Path | None = None,
) -> str:
    """The page of one run; `thumbnails` maps test ids to data URIs of small images, `keep` is the cache.

    >>> Path("report.html").write_text(render(json.loads(Path("result.json").read_text())))
    """
    result, thumbnails = visible(result), visible(thumbnails or {})
    shown = Shown(result, thumbnails, list(charts.of_result(result)), list(panels.of_result(result)))
    below = _command(next_command(result)) + sections.cards(result) + sections.remarks_of(result)
    body = [opening(conclusion(result), below)]
    body += [section(s.name, s.heading, html) for s in SECTIONS if (html := s.content(shown))]
    return assemble(
        sections.title(result), sections.subtitle(result), body, [*shown.charts, *shown.panels], keep=keep
    )


def opening(said: Sequence[str], below: str = "") -> str:
    """The first section of a page: the sentences of its conclusion, and what stands right below them."""
    sentences = "".join(element("p", _sentence(sentence)) for sentence in said)
    return element("section", element("div", sentences, cls="lead") + below, aria_label="Conclusion")


def _sentence(said: str) -> str:
    """Commands in the type of code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", together(said))


def _command(words: str) -> str:
    return element("pre", element("code", text(words)), tabindex="0", cls="command") if words else ""


def _accuracy(shown: Shown) -> str:
    drawn = element("div", "".join(map(figure, shown.charts)), cls="panels")
    return drawn + element("h3", "All groups") + sections.groups_table(shown.result)


def _attribute(shown: Shown) -> str:
    """Groups that are not classes, where the run had an attribute."""
    block = shown.result.get("attribute")
    if block is None:
        return ""
    return element("h3", text(f"Accuracy by {block['name']}")) + attribute.content(block)


def look_first_content(result: Mapping[str, Any], thumbnails: Mapping[str, str]) -> str:
    """What to look at first, where a result has it."""
    if not look_first.shown_classes(result.get("diagnostics") or {}):
        return ""
    return look_first.look_first(result, partial(sections.picture, thumbnails))


def _confusions(shown: Shown) -> str:
    return (
        sections.confusions(shown.result, shown.thumbnails) if sections.has_confusions(shown.result) else ""
    )


def _details(shown: Shown) -> str:
    """The diagnostics, folded, each with one line that says what it shows."""
    view, parts = View(shown.result), []
    for chart in shown.panels:
        said = verdicts.of_panel(chart.name, view)
        line = element("strong", text(chart.title)) + element("span", text(said), cls="said")
        parts.append(element("details", element("summary", line) + figure(chart, heading=False), cls="panel"))
    note = "What each diagnostic says, in one line; open it to see its chart."
    return element("p", note, cls="note") + "".join(parts) if parts else ""


# From top to bottom, below the conclusion; a further section is a further row.
SECTIONS = (
    Section("accuracy", "Accuracy by class and group", _accuracy),
    Section("attribute", "Groups that are not classes", _attribute),
    Section("look", "Look at these first", lambda s: look_first_content(s.result, s.thumbnails)),
    Section("confusions", "Confusions", _confusions),
    Section("table", "All classes", lambda s: class_table(s.result)),
    Section("details", "Details", _details),
    Section("reproduce", "Reproduce", lambda s: reproduce(s.result)),
)
WIDE = {"training-curves", "confusion-matrix"}


def figure(chart: Chart, *, heading: bool = True) -> str:
    """A chart with its caption and, folded, the same numbers as a table."""
    title = element("h3", text(chart.title)) if heading else ""
    caption = element("figcaption", title + element("p", text(chart.note)))
    label = f"Chart: {chart.title}. {chart.note} The same numbers follow in a table."
    place = element("div", "", id=f"chart-{chart.name}", cls="chart", role="img", aria_label=label)
    region = {"tabindex": "0", "role": "region", "aria_label": f"Numbers of {chart.title}"}
    numbers = element(
        "details",
        element("summary", "Show the numbers as a table") + element("div", "", cls="tall scroll", **region),
        data_chart=chart.name,
    )
    return element("figure", caption + place + numbers, cls="wide" if chart.name in WIDE else None)


def section(name: str, heading: str, content: str) -> str:
    """A part of the page under a heading, which `name` links to."""
    return element("section", element("h2", text(heading), id=name) + content, aria_labelledby=name)


def assemble(
    title: str, subtitle: str, body: Iterable[str], shown: Iterable[Chart], *, keep: Path | None = None
) -> str:
    """A whole page from its sections; used by the page of a run and by that of a comparison."""
    sections_html = list(body)
    data = {
        "charts": [chart.embedded() for chart in shown],
        "themes": {"light": {**theme(LIGHT), "background": "transparent"}, "dark": theme(DARK)},
    }
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{_static('page.css')}</style>"
    )
    top = element(
        "header", element("h1", text(title)) + element("p", subtitle, cls="sub") + _contents(sections_html)
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>'
        '<a class="skip" href="#content">Skip to the results</a>'
        f'{top}<main id="content">{"".join(sections_html)}</main>'
        f"{element('footer', FOOTER)}"
        f'<script type="application/json" id="page-data">{json_in_script(data)}</script>'
        f'<script type="text/plain" id="library">{library(keep)}</script>'
        f"<script>{_static('page.js')}</script></body></html>\n"
    )


def _contents(body: Iterable[str]) -> str:
    """Links to the sections that have a heading."""
    links = [m.groups() for part in body for m in re.finditer(r'<h2 id="([a-z]+)">(.*?)</h2>', part)]
    return element(
        "nav", "".join(element("a", name, href=f"#{key}") for key, name in links), aria_label="Sections"
    )


@cache
def _static(name: str) -> str:
    return (resources.files("probe.report.html") / "static" / name).read_text(encoding="utf-8")


@cache
def library(keep: Path | None = None) -> str:
    """Vega, Vega-Lite and vega-embed as one script that cannot end its own element.

    A wheel brings it. Elsewhere it is bundled by vl-convert, which takes seconds, so it is cached beside the
    features, sealed, one file per version.
    """
    with suppress(FileNotFoundError):
        return _static("vega.js")
    vl_convert = static.engine()
    kept = cache_root(keep) / "report" / f"vega-{version('vl-convert-python')}.json"
    with suppress(UserError, OSError, ValueError):  # missing, damaged or another user's: made again
        check_owner(kept.parent, kept)
        return str(unsealed(reading.text(kept))["script"])
    bundle: str = vl_convert.javascript_bundle()
    script = bundle.replace("</script", "<\\/script")
    with suppress(UserError, OSError):  # a cache that cannot be written only costs time
        write_atomic(kept, sealed({"script": script}))
    return script
