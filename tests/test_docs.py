"""The pages agree with the code: tables of methods, names of files, links, length."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCE = re.compile(r"`((?:probe|backbones|tests|benchmarks|recipes|docs|\.ci)/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """The headings of a page as the site links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def test_tables_of_methods_are_those_of_the_catalogue():
    command = [sys.executable, str(ROOT / ".ci" / "method_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@by_name
def test_files_that_a_page_names_exist(page):
    named = SOURCE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


@by_name
def test_links_between_pages_lead_somewhere(page):
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
        assert not heading or heading in anchors(page.parent / target), f"{target}#{heading}"


def test_the_readme_is_what_a_user_needs_first():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "make probe" in text
    assert "make test" in text


def test_a_damaged_table_is_noticed(tmp_path):
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        (tmp_path / "docs" / "methods" / page.name).write_text(text.replace("`0.35`", "`0.36`"))
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "method_tables.py"
    script.write_text((ROOT / ".ci" / "method_tables.py").read_text(encoding="utf-8"))
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "angular.md is out of date" in done.stderr
