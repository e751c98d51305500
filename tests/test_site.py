"""The site builds without a warning, links lead somewhere, nothing is loaded from elsewhere, and faults are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("material", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")

HOST = "http://site.test"
# Attributes from which a browser loads something without being asked.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value is not None:
                self.links.append(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs`."""
    arguments = ["build", "--strict", "--config-file", str(config), "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "mkdocs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    done = build(REPOSITORY / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    """Also those that mkdocs does not check: of the theme, of the reference and of HTML in pages."""
    pages = {f"/{file.relative_to(site).as_posix()}": Page(file) for file in site.rglob("*.html")}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        if path == "/404.html":  # served for any address, so its links begin at the root
            continue
        for link in page.links + page.loaded:
            target = urlsplit(urljoin(HOST + path, link))
            if f"{target.scheme}://{target.netloc}" != HOST:
                continue
            place = unquote(target.path) + ("index.html" if target.path.endswith("/") else "")
            fragment = unquote(target.fragment)
            if not (site / place[1:]).is_file():
                broken.append(f"{path}: {link}")
            elif fragment and place in pages and fragment not in pages[place].anchors:
                broken.append(f"{path}: {link}, which has no such anchor")
    assert not broken


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """No fonts, scripts, styles or pictures of other hosts: it works in a closed network."""
    for file in site.rglob("*.html"):
        assert not [address for address in Page(file).loaded if urlsplit(address).netloc], file
    for file in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", file.read_text(encoding="utf-8")), file
