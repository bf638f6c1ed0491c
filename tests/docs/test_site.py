"""The site is built without network, its links lead somewhere, and it loads nothing from afar."""

import os
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

mkdocs = pytest.importorskip("mkdocs.commands.build", reason="mkdocs is not installed")

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""Elements that fetch what they name. Of <link>, only some do."""

LOADING_LINKS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon"}


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning (a broken link or anchor, a lost page) is an error."""
    from mkdocs.config import load_config

    target = tmp_path_factory.mktemp("site")
    monkeypatch = pytest.MonkeyPatch()

    def refuse(*address: object) -> None:
        raise AssertionError(f"the build reaches for the network: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setitem(os.environ, "NO_MKDOCS_2_WARNING", "1")
    try:
        config = load_config(str(root / "mkdocs.yml"), site_dir=str(target), strict=True)
        mkdocs.build(config)
    finally:
        monkeypatch.undo()
    return target


class Loads(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        rel = set((values.get("rel") or "").split())
        if tag == "link" and rel & LOADING_LINKS:
            self.found.append(values.get("href") or "")
        elif tag in LOADING and values.get(LOADING[tag]):
            self.found.append(values[LOADING[tag]] or "")


def test_every_page_is_in_the_site(root: Path, site: Path) -> None:
    """Each page of docs/ is built, stands in the navigation, and is found by the search."""
    pages = [page.relative_to(root / "docs") for page in (root / "docs").rglob("*.md")]
    built = {page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")}
    assert {Path("index.md") if page == Path("README.md") else page for page in pages} <= built
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    assert [str(page) for page in pages[1:] if str(page.with_suffix(".html")) not in index] == []


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture comes from another host: readers tell nobody."""
    found: list[str] = []
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        found += [f"{page.name}: {what}" for what in loads.found if re.match(r"(https?:)?//", what)]
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        found += [f"{style.name}: {url}" for url in re.findall(r"url\((https?:[^)]*)\)", text)]
    assert found == []


def test_every_tutorial_leads_on(root: Path) -> None:
    """A tutorial ends with where to go next, and there are five of them."""
    tutorials = sorted((root / "docs/tutorials").glob("*.md"))
    assert len(tutorials) == 5
    for page in tutorials:
        end = page.read_text(encoding="utf-8").partition("\n## Where to go next\n")[2]
        assert end.count("](") >= 3, page.name
        assert "\n## " not in end


def test_the_index_names_every_page(root: Path) -> None:
    """Nobody has to guess what pages there are: the index of docs/ links all of them."""
    index = (root / "docs/README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w./-]+\.md)", index))
    pages = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    assert pages - {"README.md"} == linked


def test_the_navigation_has_the_four_parts(root: Path) -> None:
    """Pages are found by what the reader wants: to learn, to do, to look up, to understand."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    parts = [next(iter(part)) for part in yaml.safe_load(text)["nav"]]
    assert parts == ["Start", "Tutorials", "How to", "Reference", "Explanation"]
