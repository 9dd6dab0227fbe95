"""HTML export: writes the page and a loom's data to one file that needs neither this program nor the loom.

The data are in script blocks that no browser runs; a hash in the policy admits the one real script. The file is written
piece by piece, and the browser decodes a block when it is displayed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec

from cantrip_acp.loom.output_file import output_file
from cantrip_acp.loom.view import assets
from cantrip_acp.loom.view.auth import POLICY
from cantrip_acp.loom.view.reader import CHUNK, MOST_NODES, LoomReader
from cantrip_acp.text.redaction import ShapeMask
from cantrip_acp.types.errors import LoomError

BLOCK = 100
"""The number of turns in one block."""


def write_html(where: Path | str, target: Path, beside: Path | str | None = None, *, raw: bool = False) -> int:
    """Write a loom's page to a file and return the number of turns in it. `output_file` decides what may be replaced. With
    ``beside``, a second loom, the page has both side by side.

    The file may be given to others: known secrets are masked. Text that looks like a secret is masked too, unless
    ``raw``.

    Raises `LoomError` if there is no loom, `OutputError` if the file cannot be written.
    """
    reading = LoomReader(where, beside)
    try:
        reading.load()
        if reading.broken is not None:
            raise LoomError(reading.broken)
        with output_file(target, mode=0o600) as out:
            file = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
            _write(reading, file, raw)
            file.detach()
        return len(reading.index)
    finally:
        reading.close()


def _write(reading: LoomReader, file: TextIO, raw: bool) -> None:
    with page(file, assets.text("view.css"), assets.script(), raw=raw) as block:
        _blocks(reading, file, block)


def _blocks(reading: LoomReader, file: TextIO, block: Callable[[str, Any], None]) -> None:
    total, casts, rewards = len(reading.index), len(reading.index.casts), len(reading.index.rewards)
    about = reading.about() | {"readonly": True, "kept": True}
    block("loom", about)
    for start in range(0, total, MOST_NODES):
        block(f"nodes-{start}", reading.nodes(start))
    for start in range(0, total, CHUNK):
        _raw(file, f"numbers-{start}", reading.numbers(start).decode())
    for start in range(0, about["casts"], 1_000):
        block(f"casts-{start}", reading.casts(start))
    for start in range(0, rewards, 2_000):
        block(f"rewards-{start}", reading.rewards(start))
    for start in range(0, total, BLOCK):
        numbers = range(start, min(start + BLOCK, total))
        block(f"rows-{start}", reading.rows(numbers))
        block(f"turns-{start}", [reading.turn(n, whole=True) for n in numbers])
    for start in range(0, casts, BLOCK):
        numbers = range(start, min(start + BLOCK, casts))
        block(f"cast-{start}", [reading.cast(n, whole=True) for n in numbers])


@contextmanager
def page(file: TextIO, style: str, script: str, *, raw: bool = False) -> Iterator[Callable[[str, Any], None]]:
    """Write a page around the data blocks that the ``with`` block writes with the function that it gets: a name and JSON data.

    Known secrets in the data are masked, and without ``raw`` what looks like one. No other script and style can run in the page.
    """
    shapes = ShapeMask(raw=raw)

    def block(name: str, data: Any) -> None:
        shown = shapes.data(msgspec.to_builtins(data, enc_hook=str))
        _raw(file, name, msgspec.json.encode(shown).decode())

    text = assets.text("index.html")
    policy = f"{POLICY}; script-src {_hash(script)}; style-src {_hash(style)}"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    text = text.replace("<!-- policy -->", meta)
    text = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: f"<style>{style}</style>", text)
    head, _, tail = text.partition('<script type="module" src="main.js"></script>')
    file.write(head)
    yield block
    file.write(f'<script type="module">{script}</script>')
    file.write(tail)


def _raw(file: TextIO, name: str, text: str) -> None:
    file.write(f'<script type="application/json" id="data-{name}">{escaped(text)}</script>\n')


def escaped(json: str) -> str:
    """Escape JSON so that it cannot end its script element or open another one. U+2028 and U+2029, which JavaScript
    takes for line ends, are escaped too."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
