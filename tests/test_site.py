"""The documentation as a site: it builds without a warning, and its pages need nothing from the network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOADED_BY = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
}


class Assets(HTMLParser):
    """What a browser loads for a page by itself; links that a reader may follow are not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(LOADED_BY.get(tag, ""))
        if value:
            self.found.append(value)


def assets_of(page: str) -> list[str]:
    parser = Assets()
    parser.feed(page)
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        if os.environ.get("DSV_REQUIRE_LABS"):
            pytest.fail("mkdocs-material is missing: pip install -e '.[docs]'")
        pytest.skip("mkdocs-material is missing: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stderr
    return folder


def test_every_page_loads_only_files_of_the_site(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")} <= {
        page.relative_to(site).with_suffix("") for page in pages
    }
    for page in pages:
        assets = [asset.partition("?")[0].partition("#")[0] for asset in assets_of(page.read_text())]
        assert assets
        absent = [a for a in assets if not (a.startswith("data:") or _file_of(site, page, a).is_file())]
        assert absent == [], page.name


def test_the_commands_are_a_page_of_the_site_alone(site: Path) -> None:
    assert not (DOCS / "cli.md").exists()
    assert 'id="dsv-sync"' in (site / "cli.html").read_text()


def test_stylesheets_load_nothing_from_elsewhere(site: Path) -> None:
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        assert re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text()) == [], style.name


def test_an_external_script_would_be_noticed() -> None:
    page = '<script src="https://cdn.example.org/x.js"></script><a href="https://example.org">text</a>'
    assert assets_of(page) == ["https://cdn.example.org/x.js"]


def test_no_list_is_swallowed_by_the_paragraph_before_it(site: Path) -> None:
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            assert not re.search(r"\n(- |\d+\. |\|)", paragraph), f"{page.name}: {paragraph[:200]}"


def test_a_makefile_can_be_copied_from_its_page(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "guide/pipelines.html").read_text())
    assert re.search(r"^raw.txt: FORCE\n\t@?dsv resolve", page, re.MULTILINE), "with its tabs"


def test_the_index_links_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert linked == pages - {"index.md", "format.md"}


def _file_of(site: Path, page: Path, asset: str) -> Path:
    """The file of the site that an address in a page names; an address elsewhere names none."""
    return site / asset.lstrip("/") if page.name == "404.html" else page.parent / asset
