"""Write requirements.lock: every package that CI installs, with the checksum of every file of its version.

    make lock        after a change of pyproject.toml or constraints.txt

The versions are what pip itself would install here. The checksums come from the package index, for all
platforms, and from the files that pip chose, where those came from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
WANTED = [".[test,lint]", "setuptools>=77"]  # the latter builds the project itself
HEADING = "# Made by `make lock`. For CI: pip install --require-hashes -r requirements.lock\n"


class Links(HTMLParser):
    """The checksums on a project's page of the index, by file name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.checksums: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        link = urlsplit(dict(attrs).get("href") or "")
        if found := re.fullmatch(r"sha256=([0-9a-f]{64})", link.fragment):
            self.checksums[unquote(Path(link.path).name)] = found[1]


def pip(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def resolved() -> list[dict]:
    """What pip would install into an empty environment."""
    flags = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-", "-c", "constraints.txt"]
    return json.loads(pip("install", *flags, *WANTED))["install"]


def index() -> str:
    found = re.search(r"index-url='?([^'\s]+)", pip("config", "list").replace("extra-index-url", ""))
    return (found[1] if found else "https://pypi.org/simple").rstrip("/") + "/"


def of_version(name: str, version: Version) -> set[str]:
    """The checksums of all files of a version on the index."""
    with urllib.request.urlopen(urljoin(index(), f"{canonicalize_name(name)}/"), timeout=60) as answer:
        links = Links(answer.read().decode())
    return {checksum for file, checksum in links.checksums.items() if _version(file) == version}


def _version(file: str) -> Version | None:
    for parse in (parse_wheel_filename, parse_sdist_filename):
        try:
            return parse(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
    return None


def chosen(package: dict) -> str:
    """The checksum of the file that pip picked."""
    info = package["download_info"]
    known = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if known:
        return known
    return hashlib.sha256(Path(unquote(urlsplit(info["url"]).path)).read_bytes()).hexdigest()


def main() -> None:
    blocks = {}
    for package in resolved():
        name, version = package["metadata"]["name"], Version(package["metadata"]["version"])
        if package["download_info"].get("dir_info") is not None:
            continue  # the project itself
        name = canonicalize_name(name)
        checksums = of_version(name, Version(version.public))
        if version.local:  # a build of its own, torch's for CPUs: pip would prefer the index's, and its CUDA
            here, elsewhere = (f'sys_platform {sign} "{sys.platform}"' for sign in ("==", "!="))
            own = block(f"{name}=={version} ; {here}", {chosen(package)})
            blocks[name] = own + block(f"{name}=={version.public} ; {elsewhere}", checksums)
        else:
            blocks[name] = block(f"{name}=={version}", checksums | {chosen(package)})
    (ROOT / "requirements.lock").write_text(HEADING + "".join(blocks[name] for name in sorted(blocks)))


def block(requirement: str, checksums: set[str]) -> str:
    return requirement + "".join(f" \\\n    --hash=sha256:{c}" for c in sorted(checksums)) + "\n"


if __name__ == "__main__":
    main()
