"""Agents of an ``AGENTS.md``: each heading whose bullet list has a ``yool_id`` is an agent.

    ### dev-agent
    - yool_id: agent.dev.${stack}.v1
    - authority: [user, ci]
    - lane: build
    - agent_terms:
        budget_usd: 0.50
    - Role: implements code from spec

    ### linter
    - yool_id: agent.lint.ruff.v1
    - lane: build
    - run: ruff check {path}
    - inputs: [src/**, pyproject.toml]
    - env: [RUFF_TARGET]

``run`` is a command and ``recipe`` a recipe: with one of them, workers can run the agent. ``inputs``, ``env`` and ``network`` are
for commands, and for people otherwise.

The terms may be indented or not, and may be bullets too. Keys may be written ``Yool-ID`` or ``**lane**``. Other bullets are for
people. Headings in code blocks are examples.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.tuples import AgentTerms
from cantrip_acp.tuplespace.yools.command_yool import Command, Template, check_hosts, check_variables
from cantrip_acp.types.errors import CantripError

_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)[\s#]*$")
_FENCE = re.compile(r"^\s*(?:[-*+]\s+)?(```+|~~~+)(.*)$")
_ENTRY = re.compile(
    r"^\s*(?P<bullet>[-*+]\s+)?[*`]{0,3}(?P<key>[A-Za-z][\w -]*?)[*`]{0,3}\s*:[*`]{0,3}(?:\s+(?P<value>.*))?$"
)
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_TERMS = tuple(each.name for each in msgspec.structs.fields(AgentTerms))


@dataclass
class AgentBlock:
    """One agent, with the line of each of its keys, for errors."""

    file: str
    title: str
    line: int
    values: dict[str, Any] = field(default_factory=dict)
    """Keys as ``yool_id``, with the values of their bullets as YAML reads them; texts for keys that are for people."""
    terms: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise the error for a key, with the file and the line of the key or the heading."""
        raise TupleError(f"agent {self.title!r}: {message}", where=f"{self.file}:{self.lines.get(key, self.line)}")

    @property
    def lane(self) -> str | None:
        lane = self.values.get("lane")
        if lane is not None and not isinstance(lane, str):
            self.fail("lane", f"lane must be a text, not {lane!r}")
        return lane

    @property
    def authority(self) -> tuple[str, ...]:
        """The ``authority`` of the agent: who may order it, as a list or one text."""
        found = self.values.get("authority", ())
        try:
            return convert([found] if isinstance(found, str) else found, tuple[str, ...])
        except msgspec.ValidationError:
            self.fail("authority", f"authority must be a list such as [user, ci], not {found!r}")

    @property
    def command(self) -> Command | None:
        if (text := self._text("run")) is None:
            return None
        if "recipe" in self.values:
            self.fail("recipe", "it has run and recipe; keep one of them")
        inputs = self._list("inputs") if "inputs" in self.values else None
        made = Command(run=text, inputs=inputs, env=self._list("env"), network=self._list("network"))
        for key, check in (
            ("run", lambda: Template(made.run)),
            ("env", lambda: check_variables(made.env)),
            ("network", lambda: check_hosts(made.network)),
        ):
            try:
                check()
            except CantripError as error:
                self.fail(key, f"{key}: {error}")
        return made

    @property
    def recipe(self) -> str | None:
        """The recipe that the agent casts: its name, or its path in the project."""
        return self._text("recipe")

    def _text(self, key: str) -> str | None:
        if key not in self.values:
            return None
        text = str(self.values[key])
        if len(text) > 1 and text.startswith("`") and text.endswith("`") and "`" not in text[1:-1]:
            text = text[1:-1]
        if not text.strip():
            self.fail(key, f"{key} is empty")
        return text

    def _list(self, key: str) -> tuple[str, ...]:
        """Parse a list written as ``[a, b]`` or ``a, b``."""
        text = str(self.values.get(key, "")).strip()
        text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return tuple(name for part in text.split(",") if (name := part.strip().strip("`'\"").strip()))

    @property
    def agent_terms(self) -> AgentTerms | None:
        for key, value in self.terms.items():
            try:
                convert({key: value}, AgentTerms)
            except msgspec.ValidationError as error:
                self.fail(key, str(error))
        return convert(self.terms, AgentTerms) if self.terms else None

    @property
    def description(self) -> str:
        return str(self.values.get("role") or self.values.get("description") or "")

    def names(self, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The names of the agent: for ``agent.dev.${stack}`` one for each stack.

        The values of a placeholder are in the block's own bullet (``- stack: [python, dotnet]``) or else in ``known``.
        """
        yool = self.values["yool_id"]
        if not isinstance(yool, str):
            self.fail("yool_id", f"yool_id must be a name such as agent.dev.python.v1, not {yool!r}")
        names = [yool]
        for key in dict.fromkeys(_PLACEHOLDER.findall(yool)):
            values = self._values_of(key) or known.get(key, ())
            if not values:
                self.fail("yool_id", f"${{{key}}} has no value; add a bullet with its values, such as - {key}: [a, b]")
            names = [name.replace(f"${{{key}}}", value) for name in names for value in values]
        return tuple(dict.fromkeys(names))

    def _values_of(self, key: str) -> tuple[str, ...]:
        text = str(self.values.get(_normal(key)) or "").strip()
        if text.lower().replace("-", " ").startswith("auto"):
            return ()
        return tuple(value for value in re.split(r"[\s,\[\]]+", text) if value)


def parse_agents(text: str, file: str) -> list[AgentBlock]:
    """The agents of a text, in order. Raises `TupleError` with file and line."""
    found = [AgentBlock(file, "", 1)]
    fence, in_terms = "", False
    for number, line in enumerate(text.splitlines(), 1):
        marks = _FENCE.match(line)
        if fence:
            if marks and marks[1].startswith(fence) and not marks[2].strip():
                fence = ""
            continue
        if marks:
            fence = marks[1]
            continue
        heading = _HEADING.match(line)
        if heading:
            found.append(AgentBlock(file, heading[2], number))
            in_terms = False
            continue
        entry = _ENTRY.match(line)
        if entry is None:
            # Text between the bullets; an empty line does not end the terms of a loose list.
            in_terms = in_terms and not line.strip()
            continue
        in_terms = _add(found[-1], entry, number, in_terms)
    for block in found:
        if "yool_id" not in block.values and "agent_terms" in block.lines:
            block.fail(
                "agent_terms", "it has agent_terms but no yool_id; add a bullet such as - yool_id: agent.dev.python"
            )
    return [block for block in found if "yool_id" in block.values]


def _add(block: AgentBlock, entry: re.Match[str], line: int, in_terms: bool) -> bool:
    """Add one ``key: value`` to a block. Returns whether the next line may be a term."""
    key, value = _normal(entry["key"]), (entry["value"] or "").strip()
    indented = entry.string[:1].isspace()
    is_term = in_terms and (key in _TERMS or not entry["bullet"] or indented)
    if not (is_term or entry["bullet"]):
        return False
    if is_term and key not in _TERMS:
        near = difflib.get_close_matches(key, _TERMS, n=1) or [f"one of {', '.join(_TERMS)}"]
        block.lines.setdefault(key, line)
        block.fail(key, f"{entry['key']!r} is no term; a term is {near[0]}")
    ours = key in ("yool_id", "authority", "lane", "agent_terms")
    runs = key in ("run", "recipe", "inputs", "env", "network")
    values = block.terms if is_term else block.values
    if key in values:
        if ours or is_term or runs:
            where = block.lines[key]
            block.lines[key] = line
            block.fail(key, f"{entry['key']} is given twice, first in line {where}")
        return False
    block.lines[key] = line
    values[key] = _yaml(block, key, value) if ours or is_term else value
    if key != "agent_terms":
        return is_term
    terms = values[key]
    if isinstance(terms, dict):
        for each, amount in terms.items():
            block.lines[str(each)] = line
            block.terms[str(each)] = amount
    elif terms is not None:
        block.fail(key, f"agent_terms must be followed by lines such as budget_usd: 0.50, not by {terms!r}")
    return True


def _yaml(block: AgentBlock, key: str, value: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(value.strip("`") if key in ("yool_id", "lane") else value)
    except (YAMLError, ValueError) as error:
        problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or str(error).splitlines()[0]
        block.fail(key, f"the value of {key} cannot be read: {problem}")


def _normal(key: str) -> str:
    return re.sub(r"[\s-]+", "_", key.strip()).lower()
