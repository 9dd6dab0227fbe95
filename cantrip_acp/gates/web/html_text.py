"""HTML to text: converts a server's answer to text for a crystal. A page becomes Markdown, other text stays unchanged, and
other data are refused.

The input is not trusted. Its size is limited here, and the caller limits the time.
"""

from __future__ import annotations

import codecs
import re
from html import unescape
from typing import TYPE_CHECKING

from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.web.download import Answer

MOST_HTML = 2_000_000
"""The most characters of a page that are converted."""

_TEXTS = re.compile(
    r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml|toml)|application/(?:x-)?"
    r"(?:javascript|ecmascript|typescript|yaml|toml|sh|httpd-php|ndjson|jsonl|sql|graphql|tex|latex|subrip|mpegurl|diff)"
    r"|image/svg\+xml|message/[\w.-]+"
)
_PAGES = ("text/html", "application/xhtml+xml")
_UNSAID = ("", "application/octet-stream", "binary/octet-stream", "application/binary", "unknown/unknown")
_CHARSETS = re.compile(
    r"utf-?(?:8|16|32)(?:-?[lb]e)?(?:-sig)?|us-ascii|ascii|latin-?[0-9]+|iso-?8859-?[0-9]+(?:-[ei])?|"
    r"(?:windows|cp)-?[0-9]+|koi8-?[rut]|shift[-_]?jis|x-sjis|sjis|euc-?(?:jp|kr|cn)|gb(?:2312|k|18030)|big5(?:-?hkscs)?|"
    r"iso-2022-(?:jp|kr)(?:-[0-9a-z]+)?|tis-620|mac-?(?:roman|cyrillic)"
)
_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,2000})</title", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LONG_LINK = re.compile(r"\]\((data|javascript|vbscript|blob):[^)\s\]]*\)", re.IGNORECASE)
_EMPTY_LINES = re.compile(r"\n{3,}")


def answer_text(answer: Answer, *, raw: bool) -> str:
    """Return the text of an answer. With ``raw``, a page's source. Raises `GateError` if the answer is not text."""
    kind = answer.content_type.partition(";")[0].strip().lower()
    page = kind in _PAGES
    if not page and not _TEXTS.fullmatch(kind):
        if kind not in _UNSAID or _binary(answer.body):
            size = f"{'more than ' if answer.cut else ''}{len(answer.body):,} bytes"
            raise GateError(
                f"{answer.url} is {kind or 'data of an unknown type'} ({size}), which cannot be read as text"
            )
        page = kind == "" and answer.body[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))
    text = _CONTROL.sub("", _decoded(answer, page).replace("\r\n", "\n").replace("\r", "\n"))
    return markdown(text, answer.url) if page and not raw else text


def markdown(html: str, url: str) -> str:
    """Convert a page to Markdown with absolute links, without menus, scripts and styles."""
    try:
        import html_to_markdown as converter
    except ImportError:
        raise GateError(
            f"a page as text needs html-to-markdown, not installed here: {install_command('web')}",
            "fetch it with raw=true",
        ) from None
    short = html[:MOST_HTML]
    options = converter.ConversionOptions(
        extract_metadata=False,
        base_url=url,
        preprocessing=converter.PreprocessingOptions(enabled=True, remove_navigation=True, remove_forms=False),
    )
    try:
        text = converter.convert(short, options).content or ""
    except Exception as error:  # noqa: BLE001
        # The converter raises many kinds of errors. Each means that this page cannot be converted.
        raise GateError(f"the page cannot be converted to text ({error})", "fetch it with raw=true") from None
    text = _LONG_LINK.sub(r"](\1:…)", text)
    text = _EMPTY_LINES.sub("\n\n", _CONTROL.sub("", text)).strip()
    found = _TITLE.search(short)
    title = " ".join(unescape(found[1]).split()) if found else ""
    if title and not text.startswith("# "):
        text = f"# {_CONTROL.sub('', title)}\n\n{text}"
    if len(html) > MOST_HTML:
        text += f"\n\n[the page is longer: this is its first {MOST_HTML:,} characters]"
    return text


def _binary(data: bytes) -> bool:
    if b"\0" in data[:4096] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    # Ignore the last characters, because the sample may end inside a character.
    return "\ufffd" in data[:4096].decode("utf-8", "replace")[:-3]


def _decoded(answer: Answer, page: bool) -> str:
    """Decode with the byte order mark, the server's charset, the page's charset or UTF-8, in this order. Never fails."""
    body = answer.body
    named: list[str] = [name for mark, name in _BOMS if body.startswith(mark)]
    said = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", answer.content_type, re.IGNORECASE)
    if said:
        named.append(said[1])
    if page and (inside := _META.search(body[:4096])):
        named.append(inside[1].decode("ascii", "replace"))
    for name in named:
        # Do not use other codecs of Python. No page uses them, and some are very slow.
        if not _CHARSETS.fullmatch(name.lower()):
            continue
        try:
            return body.decode(name, "replace")
        except (LookupError, UnicodeError):
            continue
    try:
        return body.decode("utf-8", "replace" if answer.cut else "strict")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")
