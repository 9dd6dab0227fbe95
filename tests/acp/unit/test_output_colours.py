"""The colours of a command's output, from the program's bytes to what a client gets: right, small, and no way around the
masking of secrets."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.acp.protocol import ClientAbilities, SessionNotification
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.loom.query.recorded_events import _program_ended
from cantrip_acp.loom.records.turn_parts import together
from cantrip_acp.mediums import program_events
from cantrip_acp.mediums.program_events import ProgramEvents
from cantrip_acp.sandbox import Collector
from cantrip_acp.text.program_output import UNFINISHED, UNFINISHED_PART
from cantrip_acp.text.redaction import MASK, Redactor
from cantrip_acp.types import events
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import Output
from cantrip_acp.types.styled import MOST_CHANGES, Styled, join
from tests.support.acp_schema_check import check as check_schema

IDS: dict[str, Any] = {"entity_id": "e", "cast_id": "c"}
PLAIN = ClientAbilities()
TERMINAL = ClientAbilities(display_terminal=True, output_styles=True)
CODE = re.compile(r"\x1b\[[0-9;]*m")


class Turn:
    """What a medium tells of its program."""

    entity_id, cast_id, depth, listening = "e", "c", 0, True

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    async def emit(self, event: events.Event) -> None:
        self.events.append(event)


def live(
    streams: list[tuple[int, bytes]], redactor: Redactor, limit: int = 100_000
) -> tuple[list[events.Event], Output]:
    """The events of a program that prints these pieces, and its record."""
    turn = Turn()
    collectors = {1: Collector(limit), 2: Collector(limit)}

    async def run() -> Output:
        report = ProgramEvents(ToolCall("b", "bash", "{}"), turn, "bash")  # type: ignore[arg-type]
        turn.events.append(events.CommandStarted(**IDS, call_id="b", command="make", tool="bash"))
        for stream, data in streams:
            collectors[stream].feed(data)
            for number, name in ((1, "stdout"), (2, "stderr")):
                await report.output(name, collectors[number].read())
                if (state := collectors[number].state()) is not None:
                    await report.output(UNFINISHED if state[1] else UNFINISHED_PART, state[0])
        for number, name in ((1, "stdout"), (2, "stderr")):
            await report.output(name, collectors[number].finish())
        stdout, stderr, truncated = collectors[1].share(collectors[2], limit)
        return await report.end(Output.of(stdout, stderr, exit_code=0, truncated=truncated))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_events, "shared", lambda: redactor)
        patch.setattr(Collector, "_due", staticmethod(lambda last: True))
        output = anyio.run(run)
    # As the hub sends them.
    return [redactor.masked(event) for event in turn.events], redactor.masked(output)


def updates_of(happened: list[events.Event], client: ClientAbilities) -> list[dict[str, Any]]:
    translator = Translator(client)
    shown = []
    for event in happened:
        for update in [*translator.translate(event), *translator.flush()]:
            plain = msgspec.json.decode(msgspec.json.encode(SessionNotification("s", update)))
            check_schema("SessionNotification", plain)
            shown.append(plain["update"])
    return shown


def replayed(output: Output) -> list[events.Event]:
    """The events of the same program after its record was written and read again."""
    read = msgspec.json.decode(msgspec.json.encode(output), type=Output)
    started = events.CommandStarted(**IDS, call_id="b", command="make", tool="bash")
    return [started, *_program_ended(IDS, "b", "bash", read)]


def in_terminal(updates: list[dict[str, Any]]) -> str:
    return "".join(each.get("_meta", {}).get("terminal_output", {}).get("data", "") for each in updates)


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for text in texts(list(pair))]
    return [text for each in value for text in texts(each)] if isinstance(value, list) else []


def cells(text: str) -> list[tuple[str, str]]:
    """The characters that a terminal shows, each with its last code."""
    out, style = [], ""
    for piece in re.split(r"(\x1b\[[0-9;]*m)", text):
        if CODE.fullmatch(piece):
            style = "" if piece == "\x1b[0m" else piece.replace("[0;", "[")
        else:
            out += [(c, style) for c in piece if c != "\n"]
    return out


SECRETS = st.text("abcXYZ0189_-+/=.$(é", min_size=8, max_size=24)
NOISE = st.sampled_from(
    [
        *("\x1b[31m", "\x1b[0m", "\x1b[m", "\x1b[1;4m", "\x1b[38;5;9m", "\x1b[38;2;1;2;3m", "\x1b[7m", "\x1b[22m"),
        *(
            "\x1b[K",
            "\x1b[2A",
            "\x1b]0;title\x07",
            "\x1b]8;;http://x\x1b\\",
            "\x1b(B",
            "\x1b",
            "\x9b31m",
            "\x07",
            "\u202e",
        ),
    ]
)


@st.composite
def leaks(draw: st.DrawFn) -> tuple[str, list[tuple[int, bytes]]]:
    """A secret, and a program's output with codes between its characters, cut anywhere, beside other text."""
    secret = draw(SECRETS)
    raw = ""
    for _ in range(draw(st.integers(1, 3))):
        raw += draw(st.sampled_from(["", "word ", "line\n", "50 %\r", "\x1b[32m"]))
        for character in secret:
            raw += "".join(draw(st.lists(NOISE, max_size=2))) + character
        raw += draw(st.sampled_from(["", "\n", "\r\n", "\r", " end\n", "\x1b[0m\n"]))
    data = raw.encode()
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=12))})
    pieces = [data[start:end] for start, end in pairwise(cuts)]
    stream = draw(st.sampled_from([1, 2]))
    return secret, [(stream, piece) for piece in pieces]


@settings(max_examples=300)
@given(leaks())
def test_codes_between_its_characters_do_not_show_a_secret(leak: tuple[str, list[tuple[int, bytes]]]) -> None:
    secret, pieces = leak
    redactor = Redactor([secret])
    happened, output = live(pieces, redactor)
    everything = [msgspec.to_builtins(output), *map(events.as_json, happened)]
    for client in (PLAIN, TERMINAL):
        for told in (happened, replayed(output)):
            updates = updates_of(told, client)
            everything += [*updates, in_terminal(updates)]
    for event in happened:
        if isinstance(event, events.CommandOutput | events.CommandProgress):
            everything.append(event.styled.coded())
    for text in texts(everything):
        assert secret not in text
        assert secret not in CODE.sub("", text)
        # A line that begins again replaces what stood there.
        drawn = text.replace("\r\x1b[K", " ")
        assert secret not in re.sub(r"[\x00-\x1f]", "", CODE.sub("", drawn))
    # A lone escape takes the next character with it, so that what is left is no secret.
    shown = re.sub(r"\x1b.", "", b"".join(data for _, data in pieces).decode(), flags=re.DOTALL)
    assert MASK in output.styled.text or secret not in shown


PRINTED = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2]),
        st.sampled_from(
            [
                "\x1b[31m",
                "\x1b[1m",
                "\x1b[0m",
                "\x1b[48;5;100m",
                "red",
                "more\n",
                "\n",
                "10 %\r",
                "é\U0001f600",
                "\x1b]8;;u\x07",
            ]
        ).map(str.encode),
    ),
    max_size=40,
)


@given(PRINTED)
def test_what_is_loaded_again_has_the_colours_of_what_ran(printed: list[tuple[int, bytes]]) -> None:
    happened, output = live(printed, Redactor())
    happened = [each for each in happened if not isinstance(each, events.CommandProgress)]
    ran, loaded = updates_of(happened, TERMINAL), updates_of(replayed(output), TERMINAL)
    assert cells(in_terminal(ran)) == cells(in_terminal(loaded))
    assert ran[-1] == loaded[-1]
    recorded = ran[-1]["rawOutput"]["output"]
    assert CODE.sub("", in_terminal(loaded)) == recorded
    styles = tuple((at, style) for at, style in ran[-1].get("_meta", {}).get("cantrip", {}).get("styles", []))
    assert cells(Styled(recorded, styles).coded()) == cells(in_terminal(ran))
    # A client without a terminal gets what it always got.
    assert "\x1b" not in str(updates_of(happened, PLAIN)).replace("\\x1b", "\x1b")
    assert "styles" not in str(updates_of(happened, PLAIN))


def test_a_red_word() -> None:
    happened, output = live([(1, b"a \x1b[31mred\x1b[0m word\n")], Redactor())
    assert output == Output(stdout="a red word\n", exit_code=0, stdout_styles=((2, "31"), (5, "")))
    assert b'"stdout_styles":[[2,"31"],[5,""]]' in msgspec.json.encode(output)
    updates = updates_of(happened, TERMINAL)
    assert in_terminal(updates) == "a \x1b[31mred\x1b[0m word\n"
    assert updates[-1]["rawOutput"]["output"] == "a red word\n"
    assert updates[-1]["_meta"]["cantrip"] == {"styles": [[2, "31"], [5, ""]]}
    plain, _ = live([(1, b"a red word\n")], Redactor())
    assert "styles" not in str([events.as_json(each) for each in plain])


def test_records_without_colours_and_damaged_ones_are_read() -> None:
    old = msgspec.json.decode(b'{"stdout":"a\\n","stderr":"","exit_code":0}', type=Output)
    assert old.styled == Styled("a\n")
    hostile = Output(
        stdout="abc", stdout_styles=((0, "31m\x1b]0;t\x07"), (1, "999"), (-5, "31"), (2, "1"), (1, "32"), (9, "33"))
    )
    assert hostile.styled.coded() == "ab\x1b[1mc\x1b[0m"


def test_the_record_of_a_hostile_output_is_bounded() -> None:
    raw = b"".join(b"\x1b[38;2;%d;%d;1mx" % (n % 256, n // 256) for n in range(60_000))
    _, output = live([(1, raw)], Redactor(), limit=1_000_000)
    assert len(output.stdout) == 1_000_000 or output.truncated or len(output.stdout) == 60_000
    assert len(output.stdout_styles or ()) <= MOST_CHANGES
    assert len(msgspec.json.encode(output)) < 60_000 + 60 * MOST_CHANGES
    # The colours of its end are there.
    assert (output.stdout_styles or ())[-1][1].startswith("38;2;")


def test_outputs_that_are_joined_keep_their_colours_apart() -> None:
    red, plain = Output(stdout="red", stdout_styles=((0, "31"),)), Output(stdout="plain", stderr="e")
    both = together([red, plain, red])
    assert both is not None
    assert both.streams == (Styled("redplainred", ((0, "31"), (3, ""), (8, "31"))), Styled("e"))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["", "31", "1;4"])), max_size=6),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_parts_of_a_styled_text_joined_are_the_text(changes: list[tuple[int, str]], one: int, two: int) -> None:
    styled = join([Styled("0123456789ab", tuple(sorted(dict(changes).items())))])
    first, second = sorted((one, two))
    parts = [styled.part(0, first), styled.part(first, second), styled.part(second, 12)]
    assert join(parts).text == styled.text
    assert cells(join(parts).coded()) == cells(styled.coded())
