"""Quick fixes: each mends its finding, in every way in which the place can be written."""

from pathlib import Path

import pytest

from cantrip_acp.lsp.recipes import diagnostics
from cantrip_acp.lsp.recipes.fixes.code_actions import of as fixes
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.lsp.server.positions import TextDocument

WARDS = "  wards:\n    - max_turns: 3\n"
NO_DONE = [
    "circle:\n  gates:\n    - echo\n    - plan\n" + WARDS,
    "circle:\n  gates:\n  - echo # why\n" + WARDS,
    "circle:\n  gates: [echo]\n" + WARDS,
    "circle:\n  gates: []\n" + WARDS,
    "circle:\r\n  wards:\r\n    - max_turns: 3\r\n",
    "circle: {wards: [{max_turns: 3}]}\n",
    '"circle":\n' + WARDS,
]
NO_TURNS = [
    "circle:\n  gates: [done]\n  wards:\n    - bash_network: false\n",
    "circle:\n  gates: [done]\n  wards: [{max_depth: 0}]\n",
    "circle:\n  gates: [done]\n  wards: []\n",
    "circle:\n  gates: [done]\n",
]
HEAD = "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n"
MORE = [
    ("circle:\n  gates:\n" + WARDS, "schema"),
    ("circle:\n  gates: [done]\n  wards:\n", "schema"),
    (HEAD + "    - max_secnds: 1\n", "unknown-key"),
    (HEAD.replace("[done]", "[done, 'red_file']"), "unknown-name"),
    ("crystal: antropic:claude-sonnet-5-5\n" + HEAD, "unknown-name"),
    ("crystal: anthropic:claude-sonet-5-5\n" + HEAD, "unknown-model"),
    ('crystal: {provider: openai, model: "gpt-6.1-sool"}\n' + HEAD, "unknown-model"),
    ("call:\n  require_done: true\n" + HEAD, "legacy-key"),
    (HEAD + "    - require_done: true\n", "legacy-key"),
    (HEAD.replace("[done]", "[done, call_entity]"), "legacy-key"),
    ("name: a\nname: b\n" + HEAD, "duplicate-key"),
    ("call:\n  system_prompt: a\n  system_prompt: |\n    b\n    c\n" + HEAD, "duplicate-key"),
    ("call:\n  system_prompt: a\n  system_prompt_file: b\n" + HEAD, "exclusive-keys"),
    ("circle:\n  gates:\n    - done\n    - plan\n    - name: plan\n      ephemeral: true\n" + WARDS, "duplicate-gate"),
    (HEAD + "    - remove_gate: [done]\n", "CIRCLE-1"),
    (HEAD + "    - max_turns: 5\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, plan]") + "    - remove_gate: plan\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, call_agent]") + "    - max_depth: 0\n", "wards-cancel"),
    (HEAD + "    - max_turns: 2\n    - max_turns: 4\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, call_agent]") + "    - max_children_total: 0\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, call_agent]") + "    - child_gate_denylist: [done]\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, call_entity]") + "    - child_medium_allowlist: []\n", "wards-cancel"),
    (HEAD.replace("[done]", "[done, compile_and_load]"), "idle-gate"),
    (HEAD + "    - bash_timeout_ms: 5\n", "idle-ward"),
    (HEAD.replace("[done]", "[done, read_file, fetch, client_terminal]"), "lethal-trifecta"),
    (
        "mcp_servers:\n  - name: web\n    command: web-server\n    sandbox: false\n"
        + HEAD.replace("[done]", "[done, git_log]"),
        "lethal-trifecta",
    ),
    (HEAD.replace("[done]", "[done, read_file, fetch]"), "lethal-trifecta"),
    (
        "circle:\n  medium: bash\n  gates:\n    - done\n    - fetch\n" + WARDS + "    - bash_network: [a.example]\n",
        "lethal-trifecta",
    ),
    (HEAD + "\t- max_depth: 1\n", "syntax"),
    ("circle:\n  loom: true\n  medium: bash\n" + HEAD[8:], "schema"),
    ("", "CANTRIP-1"),
    ("name: a", "CANTRIP-1"),
    ("circle: []\nname: a\n", "CANTRIP-1"),
    ("circle:\n", "CANTRIP-1"),
    ("call: be kind\n" + HEAD, "CANTRIP-1"),
    ("call: null\n" + HEAD, "CANTRIP-1"),
    ("call:\n" + HEAD, "CANTRIP-1"),
    ("circle:\n  gates: done\n" + WARDS, "schema"),
    ("circle:\n  gates: [done]\n  wards: {max_turns: 3}\n", "schema"),
    (
        "circle:\n  gates: [done]\n  wards:\n    max_turns: 3\n    bash_writable_paths:\n      - src\n  medium: bash\n",
        "schema",
    ),
    (HEAD + "    - max_depth: 0\n      max_seconds: 5\n", "schema"),
    ("circle:\n  gates: [done]\n  wards: [{max_turns: 3, max_depth: 0}]\n", "schema"),
    (HEAD.replace("3", "'3'"), "schema"),
    (HEAD.replace("3", "0"), "schema"),
    ("call: {temperature: '0.2'}\n" + HEAD, "schema"),
    ("call: {require_done_tool: Yes}\n" + HEAD, "schema"),
    ("circle:\n  medium: python\n" + HEAD[8:], "unknown-name"),
    ("circle:\n  medium: 'shel'\n" + HEAD[8:], "unknown-name"),
    ("crystal: anthropic\n" + HEAD, "schema"),
    ("crystal:\n  provider: openai\n" + HEAD, "schema"),
    ("crystal: {provider: openai}\n" + HEAD, "schema"),
    (HEAD.replace("[done]", "[done, {name: echo, root: x}]"), "unknown-key"),
]


def read(source: str, name: str, folder: Path) -> tuple[OpenDocument, list[diagnostics.Finding]]:
    held = OpenDocument((folder / name).as_uri(), TextDocument(source), 1)
    return held, list(diagnostics.read(held.text, held.path, folder).findings)


def mended(source: str, rule: str, name: str, folder: Path) -> None:
    held, found = read(source, name, folder)
    wrong = next(f for f in found if f.rule == rule)
    offered = list(fixes(held, wrong))
    assert offered, wrong
    for fix in offered:
        out = source
        for (start, end), text in sorted(fix.edits, reverse=True):
            out = out[:start] + text + out[end:]
        _, after = read(out, name, folder)
        before_rules, after_rules = [f.rule for f in found], [f.rule for f in after]
        assert after_rules.count(rule) < before_rules.count(rule), (fix, out, after)
        # Nothing else is broken by it.
        assert set(after_rules) <= set(before_rules) | {"idle-ward"}, (fix, out, after)


@pytest.mark.parametrize("source", NO_DONE)
def test_the_done_gate_is_added(source: str, tmp_path: Path) -> None:
    mended(source, "CIRCLE-1", "a.cantrip.yaml", tmp_path)


@pytest.mark.parametrize("source", NO_TURNS)
def test_a_turn_ward_is_added(source: str, tmp_path: Path) -> None:
    mended(source, "LOOP-2", "a.cantrip.yaml", tmp_path)


@pytest.mark.parametrize(("source", "rule"), MORE)
def test_others(source: str, rule: str, tmp_path: Path) -> None:
    mended(source, rule, "a.cantrip.yaml", tmp_path)


MOVES = [
    (
        "gates: [done]\ncircle:\n  wards:\n    - max_turns: 3\n",
        "circle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n",
    ),
    (
        "circle:\n  gates: [done]\n  max_turns: 3 # why\n",
        "circle:\n  wards: [{max_turns: 3}]\n  gates: [done]\n  # why\n",
    ),
    (
        "max_turns: 3\ncircle:\n  gates: [done]\n  wards:\n  - max_depth: 1\n",
        "circle:\n  gates: [done]\n  wards:\n  - max_turns: 3\n  - max_depth: 1\n",
    ),
    (
        "call:\n    temperature: 1\ncircle:\n  # what\n  system_prompt: |\n    a\n\n      b\n" + HEAD[8:],
        "call:\n    system_prompt: |\n      a\n\n        b\n    temperature: 1\ncircle:\n  # what\n" + HEAD[8:],
    ),
    (
        "temperature: 0.2\r\n" + HEAD.replace("\n", "\r\n"),
        HEAD.replace("\n", "\r\n") + "call:\r\n  temperature: 0.2\r\n",
    ),
    ("circle:\n  keep_turns: 2\n" + HEAD[8:].rstrip(), HEAD + "folding:\n  keep_turns: 2\n"),
]


@pytest.mark.parametrize(("source", "wanted"), MOVES)
def test_a_key_in_the_wrong_place_is_moved(source: str, wanted: str, tmp_path: Path) -> None:
    name = "a.cantrip.yaml"
    held, found = read(source, name, tmp_path)
    move, *others = fixes(held, next(f for f in found if f.rule == "unknown-key"))
    assert move.title.startswith("Move ")
    assert move.best
    assert not any(fix.best or fix.safe for fix in others)
    for (start, end), text in sorted(move.edits, reverse=True):
        source = source[:start] + text + source[end:]
    assert source == wanted
    assert read(source, name, tmp_path)[1] == []


def test_of_two_wards_the_one_that_does_nothing_goes(tmp_path: Path) -> None:
    for first, second in ((3, 2), (2, 3), (2, 2)):
        held, found = read(HEAD.replace("3", str(first)) + f"    - max_turns: {second}\n", "a.cantrip.yaml", tmp_path)
        (fix,) = fixes(held, found[0])
        ((start, end), text) = fix.edits[0]
        left = held.text.source[:start] + text + held.text.source[end:]
        assert left == HEAD.replace("3", "2"), (first, second)


SOUND = [
    # A server's program has the network that the wards give, and the entity reads files by gates of no stranger's.
    "mcp_servers: [{name: notes, command: notes-server}]\n"
    + HEAD.replace("[done]", "[done, read_file]")
    + "    - bash_network: false\n",
    HEAD.replace("[done]", "[done, call_agent]") + "    - max_children_total: 3\n    - child_gate_denylist: [fetch]\n",
    HEAD.replace("[done]", "[done, compile_and_load]") + "    - allow_compile_modules: [words]\n",
    HEAD.replace("[done]", "[done, fetch, echo]"),
]


@pytest.mark.parametrize("source", SOUND)
def test_nothing_is_said_of_what_is_sound(source: str, tmp_path: Path) -> None:
    assert read(source, "a.cantrip.yaml", tmp_path)[1] == []


def test_a_network_that_nothing_uses_is_no_way_out(tmp_path: Path) -> None:
    source = HEAD.replace("[done]", "[done, read_file]") + "    - bash_network: true\n"
    assert [f.rule for f in read(source, "a.cantrip.yaml", tmp_path)[1]] == ["idle-ward"]
