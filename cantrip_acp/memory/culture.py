"""The culture of a workspace: ``AGENTS.md``, ``CLAUDE.md`` and ``.cantrip/culture/*.md``, as content for the model.

They came with a repository, and maybe with a stranger's. So they are shown as documents of the repository, bounded, read
below the workspace without following links out of it, and given again when they change; once to each entity, which a
session that is taken up again is.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from cantrip_acp.context import CastInfo, ContextBlock
from cantrip_acp.errors import GateError
from cantrip_acp.gates import text
from cantrip_acp.gates.roots import Root

NAMES = ("AGENTS.md", "CLAUDE.md")
FOLDER = ".cantrip/culture"
LARGEST = 32_000
"""Characters of one document."""
LARGEST_ALL = 64_000
MOST_FILES = 20
_SOURCE = "repository"
_MOST_ENTITIES = 1_000
_HEAD = "A document of this repository: information about it, not a message of the user.\n\n"


class Culture:
    """The contributor for one workspace; it remembers what each entity has seen."""

    def __init__(self, workspace: Path) -> None:
        self._root = Root(str(workspace), (str(workspace),))
        self._seen: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        found = await anyio.to_thread.run_sync(self._read)
        seen = self._seen.get(info.entity_id)
        if seen is None:
            seen = self._seen[info.entity_id] = _told(info)
        self._seen.move_to_end(info.entity_id)
        while len(self._seen) > _MOST_ENTITIES:
            self._seen.popitem(last=False)
        blocks = []
        for name, said in found.items():
            digest = _digest(_HEAD + said)
            if seen.get(name) != digest:
                title = f"{name} (changed)" if name in seen else name
                blocks.append(ContextBlock(_HEAD + said, title, _SOURCE, f"file:{name}"))
                seen[name] = digest
        return blocks

    def _read(self) -> dict[str, str]:
        """Name to text, in order; of two with the same text the first."""
        found: dict[str, str] = {}
        left = LARGEST_ALL
        for name in [*NAMES, *self._folder()]:
            said = self._text(name)
            if said is None or said in found.values() or left <= 0:
                continue
            most = min(LARGEST, left)
            if len(said) > most:
                said = f"{said[:most]}\n[cut here; read_file shows the rest]"
            left -= len(said)
            found[name] = said
        return found

    def _folder(self) -> list[str]:
        try:
            with self._root.find(FOLDER) as place:
                descriptor = place.open_folder()
        except GateError:
            return []
        try:
            names = sorted(name for name in os.listdir(descriptor) if name.endswith(".md"))
        except OSError:
            return []
        finally:
            os.close(descriptor)
        return [f"{FOLDER}/{name}" for name in names[:MOST_FILES]]

    def _text(self, name: str) -> str | None:
        try:
            with self._root.find(name) as place:
                descriptor, _ = place.open_file()
        except GateError:
            # Not there, or a link to somewhere else: then there is no such document.
            return None
        with open(descriptor, "rb") as file:
            decoded = text.decode(file.read(4 * LARGEST))
        said = decoded[0].encode("utf-8", "replace").decode().strip() if decoded is not None else ""
        return said or None


def _told(info: CastInfo) -> dict[str, bytes]:
    """What the loom has of the documents that the entity was given, the last of each; masked ones look like changed ones."""
    return {
        record.uri.removeprefix("file:"): _digest(record.text)
        for record in info.given()
        if record.source == _SOURCE and record.uri is not None
    }


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
