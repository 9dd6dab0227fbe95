"""Requests of a tree view of looms, one page at a time: the looms, their casts and their turns.
Each is a request of its own (``cantrip/loom/…``); the client need not have the file open. The language server's README.md
lists parameters and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.uris import from_fs_path

from cantrip_acp.lsp.looms import labels
from cantrip_acp.lsp.looms.cache import path_of
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.text import codecs
from cantrip_acp.text.sanitize import without_links
from cantrip_acp.types.errors import LoomError

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.language_server import Server

PAGE, LARGEST_PAGE = 100, 1_000
ENDING = ".loom.jsonl"
_HEAD = 65_536
"""The bytes at a loom's beginning that are searched for its first intent."""


class RequestFailed(JsonRpcException):
    """The error of a request that was valid but failed."""

    CODE = -32803


class RequestParams:
    """The parameters of a request. Each reader raises `JsonRpcInvalidParams`."""

    def __init__(self, params: object) -> None:
        # pygls makes an object of the parameters of requests that the protocol does not define.
        values = params._asdict() if hasattr(params, "_asdict") else params
        if not isinstance(values, Mapping):
            raise JsonRpcInvalidParams("the parameters are an object")
        self._params = values

    def path(self) -> Path:
        uri = self._params.get("uri")
        path = path_of(uri) if isinstance(uri, str) else None
        if path is None:
            raise JsonRpcInvalidParams(
                f"'uri' must be the address of a file or folder (file:///…), not {str(uri)[:200]!r}"
            )
        return path

    def text(self, name: str) -> str | None:
        value = self._params.get(name)
        if value is not None and not isinstance(value, str):
            raise JsonRpcInvalidParams(f"{name!r} is a text")
        return value

    def count(self, name: str, default: int, most: int) -> int:
        value = self._params.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise JsonRpcInvalidParams(f"{name!r} must be a whole number, 0 or more")
        return min(value, most)

    def page(self) -> slice:
        offset = self.count("offset", 0, 1 << 31)
        return slice(offset, offset + self.count("limit", PAGE, LARGEST_PAGE))


async def _read(ls: Server, asked: RequestParams, answer: Callable[[LoomDocument], dict[str, Any]]) -> dict[str, Any]:
    path = asked.path()
    book = await ls.looms.book(path)

    def read() -> dict[str, Any]:
        with book.lock:
            if book.broken is not None:
                raise LoomError(book.broken)
            about = {"version": book.version, "problems": book.damage}
            return {**about, **answer(book)}

    try:
        return await asyncio.to_thread(read)
    except LoomError as error:
        raise RequestFailed(str(error), data={"error": type(error).__name__}) from None


async def casts(ls: Server, params: object) -> dict[str, Any]:
    """A page of casts: those of entities that are not children, or with ``turn`` those of the children that it spawned."""
    asked = RequestParams(params)
    page, turn = asked.page(), asked.text("turn")

    def answer(book: LoomDocument) -> dict[str, Any]:
        found = book.tree.top() if turn is None else book.tree.spawned(_turn(book, turn))
        chosen = [labels.cast(book, number) for number in found[page]]
        return {"total": len(found), "offset": page.start, "turns": len(book.index), "casts": chosen}

    return await _read(ls, asked, answer)


async def turns(ls: Server, params: object) -> dict[str, Any]:
    """A page of turns in the order of writing: of one ``cast``, or all."""
    asked = RequestParams(params)
    page, cast = asked.page(), asked.text("cast")

    def answer(book: LoomDocument) -> dict[str, Any]:
        found: Any = range(len(book.index))
        if cast is not None:
            number = next((n for n, places in enumerate(book.index.casts) if places.id == cast), None)
            if number is None:
                raise JsonRpcInvalidParams(f"no cast {cast[:80]!r} in this loom")
            found = book.tree.turns[number]
        chosen = list(found[page])
        turns = [labels.turn(book, n, body) for n, body in zip(chosen, book.bodies(chosen), strict=True)]
        return {"total": len(found), "offset": page.start, "turns": turns}

    return await _read(ls, asked, answer)


async def list_looms(ls: Server, params: object) -> dict[str, Any]:
    """A page of the looms in the state folder and the workspace folders, the most recently written first."""
    asked = RequestParams(params if params is not None else {})
    page = asked.page()
    folders = [_state_looms(), *ls.documents.folders]
    found = await asyncio.to_thread(_looms, folders)
    ls.looms.folders(folders)
    return await asyncio.to_thread(_list, found, page)


def _state_looms() -> Path:
    from cantrip_acp.files import paths as folders

    return folders.state_dir(None) / "looms"


def _looms(folders: list[Path]) -> list[tuple[float, int, Path]]:
    found: dict[Path, tuple[float, int, Path]] = {}
    for folder in folders:
        for path in folder.glob(f"*{ENDING}"):
            try:
                about = path.stat()
            except OSError:  # the file was removed meanwhile
                continue
            found[path] = (about.st_mtime, about.st_size, path)
    return sorted(found.values(), key=lambda each: each[0], reverse=True)


def _list(found: list[tuple[float, int, Path]], page: slice) -> dict[str, Any]:
    looms = [_about(path, modified, size) for modified, size, path in found[page]]
    return {"total": len(found), "offset": page.start, "looms": looms}


def _about(path: Path, modified: float, size: int) -> dict[str, Any]:
    return {
        "uri": from_fs_path(str(path)),
        "name": path.name.removesuffix(ENDING),
        "title": _title(path),
        "size": size,
        "modified": round(modified * 1000),
    }


async def forks(ls: Server, params: object) -> dict[str, Any]:
    """The looms of sessions related to a loom's session by forks, the last written first, each with the first message that
    differs."""
    path = RequestParams(params).path()
    return await asyncio.to_thread(_forks, path)


def _forks(path: Path) -> dict[str, Any]:
    from cantrip_acp.lsp.looms import forks

    looms = []
    for other in forks.related(path):
        try:
            about = other.stat()
        except OSError:  # the file was removed meanwhile
            continue
        found = {
            name: None if text is None else labels.plain(without_links(text))
            for name, text in forks.difference(path, other).items()
        }
        looms.append(_about(other, about.st_mtime, about.st_size) | found)
    return {"looms": sorted(looms, key=lambda each: each["modified"], reverse=True)}


def _title(path: Path) -> str:
    """The first intent in a loom; empty if it is not near the file's beginning."""
    from cantrip_acp.types.records import CastRecord

    try:
        with path.open("rb") as file:
            lines = file.read(_HEAD).split(b"\n")[:-1]
    except OSError:
        return ""
    decoder = codecs.json_decoder(CastRecord)
    for line in lines:
        if line.startswith(b'{"type":"cast"'):
            try:
                return labels.plain(without_links(decoder.decode(line).intent or ""))
            except (msgspec.DecodeError, UnicodeError):
                continue
    return ""


def _turn(book: LoomDocument, name: str) -> int:
    number = book.index.numbers.get(name)
    if number is None:
        raise JsonRpcInvalidParams(f"no turn {name[:80]!r} in this loom")
    return number


REQUESTS: dict[str, Callable[[Server, object], Any]] = {
    "list": list_looms,
    "forks": forks,
    "casts": casts,
    "turns": turns,
}


def answer(name: str, ls: Server, params: object) -> Any:
    """The answer to the request ``cantrip/loom/NAME``."""
    return REQUESTS[name](ls, params)
