"""Hooks of mkdocs.yml: pages from the files at the root, and formulas that need no script.

README, CONTRIBUTING and CHANGELOG are written once, for people who read them in the repository, and become
pages here with their links turned to the site's. TeX between dollar signs, which GitHub renders too, becomes
MathML, which browsers draw by themselves: no page asks the network for anything.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the root's files as pages."""
    for name, page in PAGES.items():
        text = LINK.sub(_on_site, (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages in docs/ link to the root's files by `../`; on the site those are pages beside them."""
    up = "../" * page.file.src_uri.count("/")
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({up}../{name}", f"]({up}{target}")
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML."""
    return FORMULA.sub(_drawn, content)


def _on_site(link: re.Match[str]) -> str:
    return PAGES.get(link[1], link[1].removeprefix("docs/"))


def _drawn(formula: re.Match[str]) -> str:
    display = "block" if formula[1] == "div" else "inline"
    return convert(html.unescape(formula[2]).strip(), display=display)
