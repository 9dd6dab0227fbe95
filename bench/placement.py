"""Where the knowledge layer stands: in the system prompt, or in a message before the history. Which is better?

    python -m bench.placement                       # prompt caches: no key, no model
    python -m bench.placement --crystal anthropic:claude-sonnet-4-5
    python -m bench.placement --crystal llamacpp:any   # what serves at $LLAMACPP_BASE_URL

**Caches**: the same scripted session under both placements, 24 queries with a fold, while what it knows changes a number of
times. Its requests are made by the crystals' own code; what a provider would find in its cache follows from their bytes. A
cache of prefixes (OpenAI, most local servers) has what a request begins with in common with the one before. A cache with
points (Anthropic) has what ended at a point of an earlier request. A price is that of the input: from the cache 0.1, written to
Anthropic's 1.25, else 1.

**Answers** (with ``--crystal``): 20 questions about what the session knows (``placement.yaml``), a session each: facts, rules
that must be followed, old facts beside new ones, and facts that changed after the same session had been asked once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import msgspec
from ruamel.yaml import YAML

from cantrip_acp import Loom, ScriptedCrystal
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN
from cantrip_acp.crystals.contract import Crystal, Query
from cantrip_acp.evaluation.grading import put
from cantrip_acp.gates.contract import as_text
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build import build, crystals
from cantrip_acp.types.errors import CantripError

PLACEMENTS = ("system", "history")
KINDS = ("fact", "rule", "conflict", "changed")
CHANGES = (0, 1, 3, 7)
CASTS, TURNS = 8, 3
LOOK_BACK = 20
"""How many blocks before a cache point Anthropic looks for a shorter prefix."""
_RECIPE = """\
call: {{system_prompt: "{prompt}", max_tokens: 48, temperature: 0.0}}
circle: {{medium: conversation, gates: [{gates}], wards: [{{max_turns: 6}}]}}
memory: {{culture: true, record: false, placement: {placement}}}
folding: {{trigger_after_turns: 16, keep_turns: 4}}
"""


@dataclass(frozen=True, slots=True)
class Cached:
    """Sums of one session, in tokens: sent, found in the cache, written to it; and the price of the input."""

    sent: float
    read: float
    written: float
    price: float

    @property
    def share(self) -> float:
        """How much of what was sent came from the cache."""
        return self.read / self.sent


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 2 for a crystal that cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.placement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--crystal", metavar="PROVIDER:MODEL", help="ask this model the questions too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="cantrip-eval-") as folder:
        for name in ("state", "config"):
            os.environ[f"CANTRIP_{name.upper()}_DIR"] = f"{folder}/{name}"
        os.environ["CANTRIP_SUBSTRATE"] = f"sqlite:{folder}/substrate.db"
        print("\n".join(anyio.run(cache_table, Path(folder))), flush=True)
        if options.crystal is not None:
            try:
                print("\n".join(anyio.run(answer_table, Path(folder), options.crystal)))
            except CantripError as error:
                print(f"python -m bench.placement: {error}", file=sys.stderr)
                return 2
    return 0


# Caches


async def cache_table(folder: Path) -> list[str]:
    """The lines of the table of caches."""
    head = f"{CASTS * TURNS} queries, a fold"
    lines = [
        f"| {head} | placement | tokens sent | prefix cache | its price | cache points | their price |",
        "|---" * 7 + "|",
    ]
    for changes in CHANGES:
        for placement in PLACEMENTS:
            queries = await _session(folder / f"{placement}{changes}", placement, changes)
            prefix, points = of_prefixes(queries), of_points(queries)
            lines.append(
                f"| {changes} changes | {placement} | {prefix.sent:,.0f} | {prefix.share:.0%} | {prefix.price:,.0f} "
                f"| {points.share:.0%} | {points.price:,.0f} |"
            )
    return [*lines, ""]


async def _session(folder: Path, placement: str, changes: int) -> list[Query]:
    """The queries of a session whose knowledge changes before so many of its casts."""
    workspace = folder / "workspace"
    put({"a.py": "x = 1  # of many\n" * 40, "AGENTS.md": _document(0)}, workspace)
    reads = {"content": "I read it.", "tool_calls": [{"gate": "read_file", "args": {"path": "a.py"}}]}
    script = ([reads] * (TURNS - 1) + [{"content": "It is as you say."}]) * CASTS
    crystal = ScriptedCrystal(script, record_inputs=True)
    prompt = "You are careful and work in small steps. " * 40
    cantrip = _cantrip(folder, workspace, placement, crystal, "read_file, edit_file, search, done", prompt)
    async with cantrip.invoke() as entity:
        for number in range(CASTS):
            if CASTS - number <= changes:
                (workspace / "AGENTS.md").write_text(_document(number))
            await entity.cast(f"Look at place {number}.")
    for query in crystal.invocations:
        known = sum(message.kind == "knowledge" for message in query.messages)
        # A fold keeps it: one message, or one with its answer.
        assert known == (1 if placement == "system" else 2), known
    return crystal.invocations


def _document(number: int) -> str:
    return "Run the tests after each change, and say what failed.\n" * 60 + f"The release is 5.{number}.\n"


def of_prefixes(queries: Sequence[Query]) -> Cached:
    """What a cache of prefixes finds."""
    from cantrip_acp.crystals.catalog.types import ModelInfo
    from cantrip_acp.crystals.openai.chat_messages import Dialect, render, render_tools
    from cantrip_acp.crystals.tool_schemas import ToolSchemas

    before, sent, read, schemas = b"", 0, 0, ToolSchemas("")
    for query in queries:
        messages = render(query.messages, ModelInfo(), "any", Dialect("openai"))
        body = msgspec.json.encode([render_tools(query.tools, schemas), messages]).rstrip(b"]")
        sent += len(body)
        read += next((at for at, (old, new) in enumerate(zip(before, body, strict=False)) if old != new), len(before))
        before = body
    return Cached(*(each / CHARS_PER_TOKEN for each in (sent, read, 0, sent - read + 0.1 * read)))


def of_points(queries: Sequence[Query]) -> Cached:
    """What a cache with points finds, by Anthropic's rules."""
    from cantrip_acp.crystals.anthropic.messages import with_cache_points
    from cantrip_acp.crystals.anthropic.request import request
    from cantrip_acp.crystals.catalog.types import ModelInfo

    kept: set[bytes] = set()
    sent, read, written = 0, 0, 0
    for query in queries:
        digest, size, found, end = blake2b(digest_size=16), 0, 0, 0
        prefixes: list[tuple[bytes, int]] = []
        new: list[bytes] = []
        for block in _blocks(with_cache_points(request(query, "claude", ModelInfo(), {}))):
            point = block.pop("cache_control", None)
            text = msgspec.json.encode(block)
            digest.update(text)
            size += len(text)
            prefixes.append((digest.digest(), size))
            if point is not None:
                found = max([found, *(at for name, at in prefixes[-LOOK_BACK:] if name in kept)])
                new.append(digest.digest())
                end = size
        kept.update(new)
        sent, read, written = sent + size, read + found, written + end - found
    price = sent - read - written + 0.1 * read + 1.25 * written
    return Cached(*(each / CHARS_PER_TOKEN for each in (sent, read, written, price)))


def _blocks(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for part in ("tools", "system"):
        yield from (dict(block) for block in body.get(part, ()))
    for message in body["messages"]:
        yield from ({"role": message["role"], **block} for block in message["content"])


# Answers


async def answer_table(folder: Path, chosen: str) -> list[str]:
    """The lines of the table of answers."""
    data = questions()
    right = {(placement, kind): 0 for placement in PLACEMENTS for kind in KINDS}
    tokens = dict.fromkeys(PLACEMENTS, 0)
    for placement in PLACEMENTS:
        for number, question in enumerate(data["questions"]):
            began, place = time.monotonic(), folder / f"{placement}-{number}"
            answer, used = await _ask(place, placement, chosen, data, question)
            passed = good(question, answer)
            right[placement, question["kind"]] += passed
            tokens[placement] += used
            print(
                f"{placement} {question['kind']} {'pass' if passed else 'FAIL'} {time.monotonic() - began:.1f} s: "
                f"{question['ask']} {' '.join(answer.split())[:120]!r}", file=sys.stderr, flush=True,
            )  # fmt: skip
    asked = {kind: sum(each["kind"] == kind for each in data["questions"]) for kind in KINDS}
    lines = [f"| {chosen} | {' | '.join(KINDS)} | all | tokens |", "|---" * (len(KINDS) + 3) + "|"]
    for placement in PLACEMENTS:
        found = [right[placement, kind] for kind in KINDS]
        scores = [f"{have} of {asked[kind]}" for have, kind in zip(found, KINDS, strict=True)]
        lines.append(
            f"| {placement} | {' | '.join(scores)} | {sum(found)} of {sum(asked.values())} | {tokens[placement]:,} |"
        )
    return lines


def questions() -> Mapping[str, Any]:
    """What the sessions know, what changes, and what they are asked."""
    data: Mapping[str, Any] = YAML(typ="safe").load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return data


async def _ask(
    folder: Path, placement: str, chosen: str, data: Mapping[str, Any], question: Mapping[str, Any]
) -> tuple[str, int]:
    """The answer of a session of its own, and the tokens of all its prompts."""
    workspace = folder / "workspace"
    put(data["files"], workspace)
    cantrip = _cantrip(folder, workspace, placement, chosen, "done", "You answer in one short sentence.")
    used = 0
    async with cantrip.invoke() as entity:
        for _ in range(2 if question["kind"] == "changed" else 1):
            result = await entity.cast(question["ask"])
            used += result.usage.prompt_tokens or 0
            # An answer that is cut at its length is no result, but it was said.
            said = [turn.utterance.content for turn in entity.loom.turns() if turn.role == "crystal"]
            put(data["change"], workspace)
    return as_text(result.result or said[-1] or ""), used


def good(question: Mapping[str, Any], answer: str) -> bool:
    """Whether an answer says what it must, and nothing that it must not."""
    lacks = question.get("lacks")
    return bool(re.search(question["answer"], answer.strip(), re.IGNORECASE)) and not (
        lacks and re.search(lacks, answer, re.IGNORECASE)
    )


def _cantrip(folder: Path, workspace: Path, placement: str, crystal: Crystal | str, gates: str, prompt: str) -> Any:
    file = folder / "r.cantrip.yaml"
    file.write_text(_RECIPE.format(prompt=prompt, gates=gates, placement=placement))
    recipe = load(file)
    if isinstance(crystal, str):
        crystal = crystals.crystal_named(crystal, recipe, "--crystal")
    return build.build(recipe, workspace=workspace, crystal=crystal, loom=Loom.memory())


if __name__ == "__main__":
    sys.exit(main())
