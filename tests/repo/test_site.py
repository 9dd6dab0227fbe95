"""The documentation site can be built, every link in it leads somewhere, and a reader's browser loads nothing from elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ruamel.yaml import YAML

from tests.support import browser, processes

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}


@dataclass
class Html(HTMLParser):
    """What a page of the site refers to, and which anchors it has."""

    file: Path
    anchors: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values:
                self.targets.append(values[name])
                if (tag, name) in LOADED and values.get("rel") not in ("canonical", "prev", "next"):
                    self.loaded.append(values[name])


@cache
def html(file: Path) -> Html:
    return Html(file)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = processes.run(
        # Not --quiet: then MkDocs counts no warnings, and --strict refuses nothing.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    wrong = []
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        for target in html(page).targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if not (parts.scheme in ("https", "mailto") and (parts.netloc or parts.path)):
                    wrong.append(f"{page.name}: {target}: not the form of an address")
                continue
            # The page for unknown addresses is served anywhere, so its links begin at the root of the site.
            start = site if parts.path.startswith("/") else page.parent
            path = unquote(parts.path).removeprefix("/cantrip-acp").lstrip("/")
            there = (start / path).resolve() if path else (site if parts.path else page)
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                wrong.append(f"{page.relative_to(site)}: {target}: no such file")
            elif parts.fragment and there.suffix == ".html" and not parts.fragment.startswith("__"):
                if unquote(parts.fragment) not in html(there).anchors:
                    wrong.append(f"{page.relative_to(site)}: {target}: no such heading")
    assert wrong == []
    assert len(pages) > 40


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = [each for page in site.rglob("*.html") for each in html(page).loaded]
    assert [each for each in loaded if urlsplit(each).netloc] == []
    assert loaded, "the search finds what it is to find"


def test_the_navigation_has_every_page(site: Path) -> None:
    """MkDocs refuses an entry without a page; this is the other direction."""
    text = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in text, page.name


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site below the path that it has on Pages."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return super().translate_path(path.removeprefix("/cantrip-acp"))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_browser_shows_and_searches_it(address: str) -> None:
    """No page has an error, asks another host for anything, or is wider than its window."""
    try:
        with browser.running() as chromium:
            page = chromium.new_page()
            watch = browser.Watch(page, origin=address).attach()
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 800})
                for name in ("index.html", "models.html", "sandbox.html"):
                    page.goto(f"{address}/cantrip-acp/{name}")
                    assert page.locator("h1").first.is_visible(), name
                    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width}"
            page.set_viewport_size({"width": 1280, "height": 800})
            page.locator(".md-search__input").click()
            page.locator(".md-search__input").press_sequentially("bubblewrap")
            # The index is read when the field is first used.
            # It may be ready before the word is complete.
            page.locator('.md-search-result__item a[href*="h=bubblewrap"]').first.click(timeout=90_000)
            page.wait_for_url("**h=bubblewrap**")
            # A script of the page marks the word when the page is there.
            page.locator("article mark").first.wait_for()
            assert watch.foreign == []
            assert watch.errors == []
    except browser.NoBrowser as reason:
        pytest.skip(str(reason))


def test_the_workflow_publishes_what_make_builds() -> None:
    workflow = YAML(typ="safe").load((ROOT / ".github/workflows/docs.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    assert "make docs" in [step.get("run") for step in steps]
    (upload,) = [step for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert f"site_dir: {upload['with']['path']}\n" in (ROOT / "mkdocs.yml").read_text()
