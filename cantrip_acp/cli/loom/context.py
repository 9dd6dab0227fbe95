"""`cantrip loom context`: what the crystal read before it wrote a turn, by source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_loom, complete_turn, examples
from cantrip_acp.cli.session.setup import state_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.core.history.replayed_context import Window
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.messages import Message

_PART = re.compile(r"^#{1,6} (?P<name>.*) · source: (?P<source>.*)$", re.MULTILINE)
"""Matches a heading of the knowledge layer. Texts in the layer cannot imitate a heading (`substrate.knowledge`)."""


@click.command(
    "context",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        'cantrip loom context "" 1',
        'cantrip loom context "" 1 --full',
    ),
)
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.argument("turn", required=False, shell_complete=complete_turn)
@click.option("--full", is_flag=True, help="Show the text of every message.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the text of every message.")
@state_option
def context(name: str | None, turn: str | None, full: bool, as_json: bool, state_dir: Path | None) -> int:
    """Show what the crystal read before it wrote TURN: messages by source with their size in tokens, and what it knew.

    TURN is a number (1 is the first answer of the thread that was written last), a turn's id or its beginning; by default the
    turn written last. An empty text for FILE is the newest loom.

    Exit status: 0 done, 2 there is no such loom or turn.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import open_by_name

    with open_by_name(name or None, paths.state_dir(state_dir)) as held:
        turn_id, number = _turn(held, turn)
        window, at, differs = _window(held, turn_id)
        messages = window.messages[:at]
        if differs:
            click.echo(
                "note: this is rebuilt from the loom, and not exactly what was sent: the recorded digest differs",
                err=True,
            )
        if as_json:
            click.echo(json.dumps(_data(turn_id, number, window, messages) | {"differs": differs}))
        elif full:
            _print_messages(messages)
        else:
            _print_summary(turn_id, number, window, messages)
    return 0


def _turn(held: Loom, wanted: str | None) -> tuple[str, int | None]:
    """The id of a turn of a crystal, and its number in the thread that was written last (None if it is not in it)."""
    from cantrip_acp.loom.find_loom import answers, find_turn
    from cantrip_acp.types.errors import TurnNotFound

    turn_id, numbered = find_turn(held, wanted), answers(held)
    if held.places[turn_id].role != "crystal":
        raise TurnNotFound(f"{turn_id} is not an answer of the model; `cantrip loom thread` lists the answers")
    return turn_id, numbered.index(turn_id) + 1 if turn_id in numbered else None


def _window(held: Loom, turn_id: str) -> tuple[Window, int, bool]:
    """The window of the crystal's context that contains a turn, the number of messages before it, and whether it differs from
    the sent query."""
    from cantrip_acp.core.history.replayed_context import ReplayedContext
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.types.errors import LoomError

    view = ReplayedContext(held, Outline(held))
    for window in view.windows(turn_id):
        for uttered in window.uttered:
            if turn_id in (uttered.turn.id, uttered.first):
                return window, uttered.at, uttered.first in view.differing
    raise LoomError(f"what the crystal read before {turn_id} is not in this loom")


def _known(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The parts of the knowledge layer, each with its heading, source and size."""
    from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN

    found: list[dict[str, Any]] = []
    for message in messages:
        text = (message.content or "") if message.kind == "knowledge" and message.role != "assistant" else ""
        heads = [*_PART.finditer(text)]
        ends = [*(each.start() for each in heads), len(text)][1:]
        for head, end in zip(heads, ends, strict=True):
            tokens = -(-len(text[head.start() : end].encode()) // CHARS_PER_TOKEN)
            found.append({"name": head["name"], "source": head["source"], "tokens": tokens})
    return found


def _data(turn_id: str, number: int | None, window: Window, messages: Sequence[Message]) -> dict[str, Any]:
    import msgspec

    from cantrip_acp.core.folding.policy import tokens_of

    return {
        "turn": turn_id,
        "number": number,
        "entity": window.entity_id,
        "tokens": sum(map(tokens_of, messages)),
        "tools": [tool.name for tool in window.tools],
        "knowledge": _known(messages),
        "messages": msgspec.to_builtins(list(messages)),
    }


def _print_summary(turn_id: str, number: int | None, window: Window, messages: Sequence[Message]) -> None:
    from cantrip_acp.core.folding.policy import tokens_of
    from cantrip_acp.text.sanitize import clean_line
    from cantrip_acp.types.messages import KIND_NAMES

    sizes: dict[str, int] = {}
    for message in messages:
        sizes[message.kind] = sizes.get(message.kind, 0) + tokens_of(message)
    shown = f"turn {number}, {turn_id}" if number is not None else turn_id
    click.echo(f"{shown}: the crystal read {len(messages):,} messages, about {sum(sizes.values()):,} tokens")
    for kind, tokens in sizes.items():
        click.echo(f"{tokens:>9,}  {KIND_NAMES.get(kind, kind)}")
        for part in _known(messages) if kind == "knowledge" else ():
            click.echo(f"{part['tokens']:>15,}  {clean_line(part['name'])}  {clean_line(part['source'])}")
    if window.tools:
        click.echo(f"tools: {', '.join(clean_line(tool.name) for tool in window.tools)}")


def _print_messages(messages: Sequence[Message]) -> None:
    from cantrip_acp.text.sanitize import clean
    from cantrip_acp.types.messages import KIND_NAMES

    for message in messages:
        click.echo(f"--- {message.role}: {KIND_NAMES.get(message.kind, message.kind)}")
        if message.content:
            click.echo(clean(message.content).rstrip("\n"))
        for call in message.tool_calls:
            click.echo(clean(f"{call.gate} {call.args}"))
