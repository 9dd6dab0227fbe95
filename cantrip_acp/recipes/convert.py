"""Converts a recipe in TOML, which earlier versions read, to YAML. Used by ``cantrip recipe convert``."""

from __future__ import annotations

import io
import re
import tomllib
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import LiteralScalarString

from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.types.errors import DefinitionError

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
_KEY = re.compile(r"\s*([^=#\[]+?)\s*=")
_PART = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^.]+?)\s*(?:\.|$)')


def toml_to_yaml(text: str, name: str) -> str:
    """The YAML text of a TOML document. Each comment is written before its key.

    Raises `DefinitionError` if the text is not TOML; the error names ``name``.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DefinitionError(f"not TOML: {error}", where=name) from None
    root = _node(data)
    left = []
    for path, comments in _comments(text):
        if not _attach(root, path, comments):
            left += comments
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    out = io.StringIO()
    yaml.dump(root, out)
    return out.getvalue() + "".join(f"# {comment}\n" for comment in left)


def _node(value: Any) -> Any:
    if isinstance(value, dict):
        return CommentedMap((key, _node(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return CommentedSeq(_node(inner) for inner in value)
    if isinstance(value, str):
        # YAML's block style cannot keep spaces at the end of a line, so such a text is written in quotes.
        return (
            LiteralScalarString(value) if re.search(r"[^\s].*\n", value) and not re.search(r"[ \t]\n", value) else value
        )
    return value if isinstance(value, bool | int | float) else str(value)


def _comments(text: str) -> list[tuple[KeyPath, list[str]]]:
    """The comments of each key, by the key's path. The comments after the last key have an empty path."""
    found: list[tuple[KeyPath, list[str]]] = []
    waiting: list[str] = []
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    path: KeyPath = ()
    quote, depth = "", 0
    for line in text.splitlines():
        if quote:
            quote = "" if quote in line else quote
            continue
        bare = _QUOTED.sub(lambda match: "x" * len(match[0]), line)
        opened = re.search(r'"""|\'\'\'', line)
        if opened is not None and opened[0] not in line[opened.end() :] and "#" not in line[: opened.start()]:
            quote, bare = opened[0], line[: opened.start()]
        elif opened is not None:
            bare = line[: opened.start()]
        code, hash_sign, _ = bare.partition("#")
        comment = line[len(code) + 1 :].strip() if hash_sign else None
        if depth == 0:
            header, key = _HEADER.match(code), _KEY.match(code)
            if header is not None:
                table = _indexed(_parts(line[header.start(2) : header.end(2)]), counts, last=header[1] == "[[")
                path = table
            elif key is not None:
                path = (*table, *_parts(line[key.start(1) : key.end(1)]))
        if code.strip():
            comments = [*waiting, *([comment] if comment else [])]
            if comments:
                found.append((path, comments))
            waiting = []
            if depth or _HEADER.match(code) is None:
                depth = max(0, depth + sum(map(code.count, "[{")) - sum(map(code.count, "]}")))
        elif comment is not None:
            waiting.append(comment)
    return [*found, ((), waiting)] if waiting else found


def _parts(key: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(key))


def _indexed(path: KeyPath, counts: dict[KeyPath, int], *, last: bool) -> KeyPath:
    """The path of a table, with the index of each list of tables on the way."""
    out: KeyPath = ()
    for number, part in enumerate(path):
        out = (*out, part)
        if last and number == len(path) - 1:
            counts[out] = counts.get(out, -1) + 1
        if out in counts:
            out = (*out, counts[out])
    return out


def _attach(root: Any, path: KeyPath, comments: list[str]) -> bool:
    """Put comments before a key. Returns False if the key does not exist."""
    parent = root
    for part in path[:-1]:
        try:
            parent = parent[part]
        except (KeyError, IndexError, TypeError):
            return False
    if not path or not isinstance(parent, CommentedMap | CommentedSeq):
        return False
    before = parent.ca.items.get(path[-1])
    if before is not None and before[1]:
        comments = [token.value.strip().removeprefix("#").strip() for token in before[1]] + comments
        before[1] = None
    parent.yaml_set_comment_before_after_key(path[-1], before="\n".join(comments), indent=2 * (len(path) - 1))
    return True
