"""Skills: folders with a ``SKILL.md``, as other agents read them, become knowledge and programs.

A skill is a chunk with its description. On it are its instructions (the text of ``SKILL.md``) and a program for each file of
its folder ``scripts``. A session reads the descriptions from the beginning, and the instructions when it adds the skill.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from cantrip_acp.gates.confinement import Root
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Removal, Spec
from cantrip_acp.substrate.documents import MOST_FILES, file_name, folder_names, read_text, short_hash
from cantrip_acp.substrate.substrate import Substrate, at_most_once, storable
from cantrip_acp.substrate.types import of_type
from cantrip_acp.types.errors import GateError

FOLDERS = (".cantrip/skills", ".claude/skills")
"""The folders of a workspace that hold skills. The user's own are in ``skills`` of the configuration folder."""
_INTERPRETERS = {".py": "python3", ".sh": "sh", ".js": "node", ".mjs": "node", ".rb": "ruby", ".pl": "perl"}
_LONGEST_FRONT = 10_000
_LONGEST_DESCRIPTION = 2_000
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def sync_skills(
    substrate: Substrate, scope: str, root: Root | Path, folders: tuple[str, ...], source: str
) -> list[str]:
    """Bring the skills of some folders into a scope, as far as they changed. Returns the ids of all present skills.

    ``source`` is the label: ``repository`` gets the path of ``SKILL.md``.
    """
    prefix = f"skill:{short_hash(scope)}:"
    found: list[str] = []
    for folder in folders:
        for name in folder_names(root, folder)[:MOST_FILES]:
            path = f"{folder}/{name}"
            text = read_text(root, f"{path}/SKILL.md")
            if text is None:
                continue
            skill = f"{prefix}{short_hash(path)}"
            found.append(skill)
            change = _change(substrate, skill, scope, _skill(skill, name, path, text, root))
            if change is not None:
                label = f"{source}:{path}/SKILL.md" if source == "repository" else source
                with at_most_once():
                    substrate.commit(change, author="cantrip", source=label, message=f"skill {name} changed")
    before = (each.chunk.id for each in substrate.scope(scope).placed if each.chunk.id.startswith(prefix))
    gone = [Removal(skill, scope) for skill in before if skill not in found]
    if gone:
        message = f"{len(gone)} skills removed"
        with at_most_once():
            substrate.commit(Change(removals=gone), author="cantrip", source=source, message=message)
    return found


def _skill(skill: str, folder_name: str, path: str, text: str, root: Root | Path) -> list[NewChunk]:
    """Make the chunk of a skill, followed by the chunks that are placed on it."""
    front = _front_matter(text)
    name = file_name(front.get("name") or folder_name)
    description = front.get("description") or "A skill without a description."
    file = storable(f"{path}/SKILL.md")
    chunks = [
        NewChunk(skill, name, Spec(), {"text": description[:_LONGEST_DESCRIPTION], "path": file}),
        NewChunk(f"{skill}:instructions", "instructions", Spec(), {"text": _FRONT.sub("", text).strip(), "path": file}),
    ]
    for script in folder_names(root, f"{path}/scripts")[:MOST_FILES]:
        body = _program(root, f"{path}/scripts/{script}", name)
        if body is not None:
            stem = file_name(f"{name}.{os.path.splitext(script)[0]}")
            chunks.append(NewChunk(f"{skill}:{short_hash(script)}", stem, Spec(True, True), body))
    return chunks


def _program(root: Root | Path, path: str, skill: str) -> dict[str, object] | None:
    """The body of a script's program. None if it is no regular file, its name is not UTF-8, or nothing here runs it."""
    try:
        if isinstance(root, Path):
            mode = os.stat(root / path).st_mode
            path = os.path.join(os.path.realpath(root), path)
        else:
            with root.find(path) as place:
                descriptor, status = place.open_file()
            os.close(descriptor)
            mode, path = status.st_mode, f"./{path}"
    except (GateError, OSError):
        return None
    if not stat.S_ISREG(mode) or storable(path) != path:
        return None
    text = f"Run the script {os.path.basename(path)} of the skill {skill}, which says how."
    body: dict[str, object] = {"text": text, "runtime": "vm", "path": path}
    interpreter = _INTERPRETERS.get(os.path.splitext(path)[1])
    if mode & stat.S_IXUSR:
        return {**body, "executable": path}
    return {**body, "executable": interpreter, "args": [path]} if interpreter is not None else None


def _change(substrate: Substrate, skill: str, scope: str, chunks: list[NewChunk]) -> Change | None:
    """The change that brings a skill up to date in the substrate; None if there is nothing to do."""
    new = [each for each in chunks if not substrate.holds(each)]
    inside = {each.id for each in chunks[1:]}
    before = {each.chunk.id for each in substrate.scope(skill).placed} if substrate.exists(skill) else set[str]()
    placed = any(each.scope == scope for each in substrate.placements(skill))
    gone = [Removal(each, skill) for each in sorted(before - inside) if each.startswith(f"{skill}:")]
    if not new and not gone and placed and inside <= before:
        return None
    placements = [NewPlacement(skill, scope), of_type("skill", skill)]
    for each in chunks[1:]:
        placements.append(NewPlacement(each.id, skill))
        if "executable" in each.body:
            placements.append(of_type("program", each.id))
    return Change(chunks, placements, gone)


def _front_matter(text: str) -> dict[str, str]:
    """The text fields at the beginning of ``SKILL.md``. Empty if there are none, or if they are not YAML."""
    found = _FRONT.match(text)
    if found is None or len(found[1]) > _LONGEST_FRONT:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(found[1])
    except (YAMLError, ValueError, RecursionError):
        return {}
    return (
        {key: value.strip() for key, value in data.items() if isinstance(value, str)} if isinstance(data, dict) else {}
    )
