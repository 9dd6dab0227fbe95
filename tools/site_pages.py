"""Hook of MkDocs: the site also has the pages that stand outside of `docs/`, and links work as they do on GitHub.

A page such as `editors/zed/README.md` has the same path on the site as in the repository; a page of `docs/` has its path
below `docs/`. A link is relative to the page's place in the repository. A link to a file that is no page of the site goes
to the file in the repository's web pages. A link to nothing stays as it is, and `mkdocs build --strict` refuses it.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Written for the repository's front page; the site has a start page of its own.
NOT_HERE = ("README.md",)
LANDING = "README.md"
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?!\w+:)([^)\s]+)(\))")
_ROW_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def version() -> str:
    about = re.search(r'__version__ = "(.+?)"', (ROOT / "cantrip_acp" / "version.py").read_text("utf-8"))
    assert about
    return about[1]


def repository_path(source: str) -> str:
    """Where a page of the site is in the repository."""
    return f"docs/{source}" if (ROOT / "docs" / source).exists() else source


def linked_pages() -> list[str]:
    """Pages outside of `docs/`, by their paths in the repository."""
    named = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "vscode-extension/README.md"]
    named += ["bench/README.md", "bench/placement.md", "deploy/README.md"]
    named += ["cantrip_acp/lsp/README.md", "cantrip_acp/lsp/recipes/rules.md"]
    return named + sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("editors/*/README.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pictures: set[str] = set()
    for path in linked_pages():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        for _, target, _ in _LINK.findall((ROOT / path).read_text("utf-8")):
            pictures |= _pictures(path, target)
    for page in (ROOT / "docs").rglob("*.md"):
        for _, target, _ in _LINK.findall(page.read_text("utf-8")):
            pictures |= _pictures(str(page.relative_to(ROOT)), target)
    for picture in sorted(pictures):
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def _pictures(page: str, target: str) -> set[str]:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))
    is_picture = path.endswith((".png", ".svg", ".gif")) and not path.startswith("docs/")
    return {path} if is_picture and (ROOT / path).is_file() else set()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    if here == LANDING:
        markdown = markdown.replace("[Repository](", f"**Version {version()}** · [Repository](", 1)

    def link(found: re.Match[str]) -> str:
        return f"{found[1]}{_target(found[2], here, config, files)}{found[3]}"

    pieces: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_prose(markdown[end : fence.start()], link), fence[0]]
        end = fence.end()
    pieces.append(_prose(markdown[end:], link))
    return "".join(pieces)


def _prose(text: str, link: Any) -> str:
    # GitHub shows `a\|b` in a table as a|b. Python-Markdown shows the backslash, and needs none.
    rows = [
        _ROW_CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    ]
    return _LINK.sub(link, "\n".join(rows))


def _target(target: str, here: str, config: MkDocsConfig, files: Files) -> str:
    path, mark, anchor = target.partition("#")
    if not path:
        return target
    folder = posixpath.dirname(repository_path(here))
    there = posixpath.normpath(posixpath.join(folder, path))
    if not (ROOT / there).exists():
        return target
    for candidate in (there.removeprefix("docs/"), f"{there.removeprefix('docs/')}/README.md"):
        if files.get_file_from_path(candidate) is not None:
            return os.path.relpath(candidate, posixpath.dirname(here) or ".") + mark + anchor
    return f"{config.extra['repository']}/blob/main/{quote(there)}{mark}{anchor}"
