"""What `cantrip cast` and `cantrip repl` allow without asking, in a line; and `--ask`, in a real terminal."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp import Circle, Loom
from cantrip_acp.acp.permissions.allowed import allowed
from cantrip_acp.cli.session.permissions import describe_allowed, describe_asking
from tests.support.command_line import GREETER, Done, Terminal, TerminalScreen, recipe, run
from tests.support.gate_calls import Site, serving

sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")

WRITER = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "first\\n"}}]
    - tool_calls: [{gate: write_file, args: {path: two.txt, content: "second\\n"}}]
    - tool_calls: [{gate: write_file, args: {path: sub/three.txt, content: "third\\n"}}]
    - {content: Done., repeat: true}
circle:
  gates: [done, write_file]
  wards: [{max_turns: 9}]
"""
COMMANDS = """
crystal:
  provider: scripted
  tools: text
  responses:
    - {content: "I make it.\\n```bash\\ntouch made\\n```"}
    - {bash: touch refused}
    - {content: Done.}
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 9}, {bash_writable_paths: [workspace]}]
"""
HERE = "{here} (the workspace)"
TABLES = {
    "files": ("conversation", ["done", "write_file"], {}, {"writes": f"write_file in {HERE}"}),
    "files of a folder": (
        "conversation", ["done", {"name": "edit_file", "root": "a"}], {}, {"writes": "edit_file in {here}/a"},
    ),
    "fetch": (
        "conversation", ["done", "fetch"], {}, {"network": "fetch: hosts that the intent names by their address"},
    ),
    "fetch with hosts": (
        "conversation", ["done", "fetch"], {"bash_network": ["pypi.org"]},
        {"network": "fetch: hosts that the intent names by their address and pypi.org"},
    ),
    "fetch with the network": (
        "conversation", ["done", "fetch"], {"bash_network": True}, {"network": "fetch: any public host"},
    ),
    "shell": ("bash", ["done"], {}, {}),
    "shell that writes": (
        "bash", ["done", "edit_file"], {"bash_writable_paths": ["."], "bash_network": True},
        {"writes": f"commands in {HERE}; edit_file in {HERE}", "network": "commands: the whole network"},
    ),
    "shell with hosts": (
        "bash", ["done"], {"bash_writable_paths": ["a"], "bash_network": ["pypi.org", "b.example"]},
        {"writes": "commands in {here}/a", "network": "commands: pypi.org, b.example"},
    ),
    "code": ("code", ["done"], {"bash_writable_paths": ["."], "bash_network": True}, {}),
    "code that writes": ("code", ["done"], {"code_writable_paths": ["."]}, {"writes": f"Python in {HERE}"}),
    "monty": ("monty", ["done"], {"code_writable_paths": ["."]}, {}),
    "tests": (
        "conversation", ["done", "run_tests"], {"bash_writable_paths": ["."], "bash_network": ["a.b"]},
        {"writes": f"run_tests in {HERE}", "network": "run_tests: a.b"},
    ),
    "children": (
        "code", ["done", "call_agent"], {"bash_writable_paths": ["."], "bash_network": True},
        {"children": f"with no more than this; a shell of theirs writes in {HERE}; a shell of theirs reaches the whole network"},
    ),
    "children without a shell": (
        "code", ["done", "call_agent"], {"bash_writable_paths": ["."], "child_medium_allowlist": ["code"]},
        {"children": "with no more than this"},
    ),
    "no children": ("code", ["done", "call_agent"], {"bash_writable_paths": ["."], "max_depth": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_table_follows_from_the_circle(tmp_path: Path, name: str) -> None:
    medium, gates, wards, wanted = TABLES[name]
    circle = Circle(medium, gates, {"max_turns": 3, **wards}, workspace=tmp_path)
    rows = dict(allowed(circle).rows())
    empty = {"writes": "nothing", "network": "none", "children": "none", "servers": "none"}
    assert rows == empty | {title: text.format(here=tmp_path) for title, text in wanted.items()}
    assert describe_asking(circle).startswith("asks before each write and each command")


def test_one_line_says_that_nothing_can_be_changed() -> None:
    assert describe_allowed(allowed(Circle(gates=["done", "echo"], wards={"max_turns": 3}))) == [
        "allows nothing that changes files or reaches the network"
    ]


@pytest.mark.parametrize("arguments", [("cast", "go"), ("cast", "go", "--json"), ("repl",)])
def test_a_table_on_stderr_says_what_is_allowed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    done = run(command, recipe(tmp_path, WRITER), *rest, cwd=tmp_path, stdin="go\n" if command == "repl" else "")
    assert done.status == 0
    assert done.err.splitlines() == [
        "cantrip: allows without asking calls of its gates; --ask asks before each write and command:",
        f"  writes     write_file in {tmp_path} (the workspace)",
        "  network    none",
        "  children   none",
        "  servers    none",
    ]
    assert "without asking" not in done.out
    if "--json" in rest:
        assert done.lines[-1]["event"] == "result"


@pytest.mark.parametrize("command", ["cast", "repl"])
def test_without_a_terminal_ask_is_refused_before_anything_happens(tmp_path: Path, command: str) -> None:
    rest = ["go"] if command == "cast" else []
    done = run(
        command, recipe(tmp_path, WRITER), *rest, "--ask", "--loom", tmp_path / "x.jsonl", cwd=tmp_path, stdin="go\n"
    )
    assert done.status == 2
    assert "--ask needs a terminal" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "one.txt").exists()
    assert not (tmp_path / "x.jsonl").exists()


def test_a_write_is_asked_about_once_always_or_not(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with Terminal("cast", recipe(tmp_path, WRITER), "go", "--ask", "--loom", loom, cwd=tmp_path) as terminal:
        assert "asks before each write and each command" in terminal.wait_for("which? ")
        assert not (tmp_path / "one.txt").exists()
        # A key that is no answer does nothing, and Enter is not needed.
        terminal.type("x?3")
        shown = terminal.wait_for("which? ")
        assert "+second" in shown
        assert "Always allow writes in this folder" in shown
        terminal.type("a")
        assert "+third" in terminal.wait_for("which? ")
        assert (tmp_path / "two.txt").read_text() == "second\n"
        terminal.type("y")
        assert terminal.end() == 0
    assert not (tmp_path / "one.txt").exists()
    assert (tmp_path / "sub" / "three.txt").read_text() == "third\n"
    with Loom.open(loom, readonly=True) as held:
        first = next(t for t in held.turns() if t.role == "crystal").observation.results[0]
    assert (first.is_error, "the user refused this" in str(first.result)) == (True, True)


FETCHER = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: fetch, args: {url: "URL"}}]
    - {content: Done., repeat: true}
circle:
  gates: [done, fetch]
  wards: [{max_turns: 4}]
"""
PAGE = {"/page?data=SECRET": (200, {"Content-Type": "text/plain"}, b"the page")}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site that may only be fetched from where the environment says so, which names it too."""
    monkeypatch.delenv("CANTRIP_FETCH_PRIVATE_HOSTS", raising=False)
    with serving(PAGE) as served:
        yield served


def _casts(tmp_path: Path, site: Site, *more: str, intent: str = "go", command: str = "cast") -> Done:
    address = site.url("/page?data=SECRET").replace("127.0.0.1", "localhost")
    text = FETCHER.replace("URL", address)
    words = (intent,) if command == "cast" else ()
    return run(
        command, recipe(tmp_path, text), *words, *more, cwd=tmp_path, stdin=f"{intent}\n" if command == "repl" else ""
    )


@pytest.mark.parametrize("command", ["cast", "repl"])
def test_nothing_is_sent_to_a_host_that_nobody_named(tmp_path: Path, site: Site, command: str) -> None:
    done = _casts(tmp_path, site, command=command)
    assert f"nobody named the host http://localhost:{site.port}" in done.out
    assert f"--allow-host http://localhost:{site.port}" in " ".join(done.out.split())
    assert "fetch: hosts that the intent names by their address" in done.err
    # Named, it goes on to what else is judged: here, that the address is a private one.
    for more, intent in (
        (("--allow-host", f"localhost:{site.port}"), "go"),
        (("--allow-host", f"http://localhost:{site.port}"), "go"),
        ((), f"Read {site.url('/').replace('127.0.0.1', 'localhost')}"),
    ):
        done = _casts(tmp_path, site, *more, intent=intent, command=command)
        assert "nobody named" not in done.out, done
        assert "is not fetched" in done.out, done
    assert not site.asked


def test_a_host_that_the_environment_names_is_reached(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_FETCH_PRIVATE_HOSTS", f"localhost:{site.port}")
    assert "the page" in _casts(tmp_path, site).out
    assert len(site.asked) == 1


def test_a_fork_sends_only_where_somebody_named_the_host(tmp_path: Path, site: Site) -> None:
    """What the user wrote in the thread names hosts; what the entity found there does not."""
    address = site.url("/page?data=SECRET").replace("127.0.0.1", "localhost")
    file = recipe(tmp_path, FETCHER.replace("URL", address), "fetcher.cantrip.yaml")
    for intent, refused in (("go", True), (f"Read {address}", False)):
        loom = tmp_path / f"{refused}.loom.jsonl"
        run("cast", recipe(tmp_path, GREETER), intent, "--loom", loom, cwd=tmp_path)
        forked = run("loom", "fork", loom, "", "Go on.", "--recipe", file, cwd=tmp_path)
        assert ("nobody named" in forked.out) is refused, forked
        assert ("is not fetched" in forked.out) is not refused, forked
    assert not site.asked


def test_a_host_that_is_none_is_refused(tmp_path: Path, site: Site) -> None:
    done = _casts(tmp_path, site, "--allow-host", "*")
    assert done.status == 2
    assert "'*' is not a valid host" in done.err


def test_always_holds_from_cast_to_cast_of_a_repl(tmp_path: Path) -> None:
    text = WRITER.replace("sub/three.txt", "three.txt").replace(
        "    - tool_calls: [{gate: write_file, args: {path: two",
        "    - {content: Next.}\n    - tool_calls: [{gate: write_file, args: {path: two",
    )
    with Terminal("repl", recipe(tmp_path, text), "--ask", cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        terminal.wait_for("which? ")
        terminal.type("2")
        terminal.wait_for("■ text")
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        terminal.wait_for("■ text")
        terminal.wait_for("❯ ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert [(tmp_path / f"{name}.txt").exists() for name in ("one", "two", "three")] == [True, True, True]


@pytest.mark.parametrize(("key", "status"), [("\x04", 0), ("\x03", 130)])
def test_the_end_of_input_is_a_no_and_an_interrupt_ends_the_cast(tmp_path: Path, key: str, status: int) -> None:
    with Terminal("cast", recipe(tmp_path, WRITER), "go", "--ask", cwd=tmp_path) as terminal:
        for _ in range(3 if key == "\x04" else 1):
            terminal.wait_for("which? ")
            terminal.type(key)
        assert terminal.end() == status
    assert not list(tmp_path.glob("*.txt"))


@sandbox
def test_a_command_is_asked_about_also_where_it_came_as_text(tmp_path: Path) -> None:
    with Terminal("cast", recipe(tmp_path, COMMANDS), "go", "--ask", "--json", cwd=tmp_path) as terminal:
        assert "touch made" in terminal.wait_for("which? ")
        assert not (tmp_path / "made").exists()
        terminal.type("1")
        assert "touch refused" in terminal.wait_for("which? ")
        assert (tmp_path / "made").exists()
        terminal.type("n")
        assert terminal.end() == 0
    assert not (tmp_path / "refused").exists()


@sandbox
def test_a_refused_command_is_shown_as_one_that_did_not_run(tmp_path: Path) -> None:
    asked = COMMANDS.replace('    - {content: "I make it.\\n```bash\\ntouch made\\n```"}\n', "")
    with Terminal("cast", recipe(tmp_path, asked), "go", "--ask", cwd=tmp_path) as terminal:
        assert "touch made" not in terminal.wait_for("which? ")
        terminal.type("n")
        assert re.search(r"execute\S*  not run", terminal.wait_for("turn 1"))
        assert terminal.end() == 0
    assert not (tmp_path / "refused").exists()


def test_a_harmless_recipe_says_so(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, GREETER), "go", cwd=tmp_path)
    assert done.err == "cantrip: allows nothing that changes files or reaches the network\n"


ASKS = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: ask_user, args: {question: "Which way?", choices: [left, right]}}]
    - tool_calls: [{gate: ask_user, args: {question: "Why?"}}]
    - tool_calls: [{gate: ask_user, args: {question: "And how?"}}]
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "first"}}]
    - {content: Done.}
circle:
  gates: [done, ask_user, write_file]
  wards: [{max_turns: 9}]
"""


def test_questions_are_asked_and_a_refusal_has_a_reason_in_a_terminal(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with Terminal("repl", recipe(tmp_path, ASKS), "--loom", loom, "--ask", cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        terminal.wait_for("answer: ")
        terminal.type("up\r")
        terminal.wait_for("a number from 1 to 2")
        terminal.wait_for("answer: ")
        terminal.type("2\r")
        terminal.wait_for("answer: ")
        terminal.type("Because\r")
        terminal.wait_for("answer: ")
        terminal.type("\r")
        terminal.wait_for("which? ")
        terminal.type("r")
        terminal.wait_for("reason: ")
        terminal.type("use Docs/ instead\r")
        terminal.wait_for("Done.")
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert not (tmp_path / "one.txt").exists()
    with Loom.open(loom, readonly=True) as held:
        results = [record for turn in held.turns() for record in turn.observation.results]
    assert [record.result for record in results][:2] == ["right", "Because"]
    assert results[2].is_error
    assert "The user's reason: use Docs/ instead\nDo what the reason asks" in results[3].result
    assert results[3].annotations["reason"] == "use Docs/ instead"


def test_without_a_terminal_the_entity_decides_by_itself(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    run("cast", recipe(tmp_path, ASKS), "go", "--loom", loom, cwd=tmp_path)
    with Loom.open(loom, readonly=True) as held:
        (first, *_) = [record for turn in held.turns() for record in turn.observation.results]
    assert "Decide with what you know" in first.result


PLANS = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "too early"}}]
    - {content: "# Plan\\n\\nFirst."}
    - {content: "# Plan\\n\\nSecond."}
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "first"}}]
    - {content: Done.}
    - {content: "# Plan\\n\\nThird."}
    - {content: Finished.}
circle:
  gates: [done, write_file]
  wards: [{max_turns: 9}]
"""


def test_a_plan_stands_once_in_a_terminal(tmp_path: Path) -> None:
    planned = re.sub(r"    - (tool_calls|.*Second).*\n", "", PLANS)
    arguments = ("repl", recipe(tmp_path, planned), "--loom", tmp_path / "x.loom.jsonl", "--plan")
    with TerminalScreen(*arguments, cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until("return it")
        terminal.type("2\r")
        seen = terminal.until("Done.")
    assert "I approve this plan. The mode is now" in seen
    assert seen.count("First.") == 1


def test_a_plan_is_returned_edited_and_approved_in_a_terminal(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf '# Plan\\n\\nEdited.' > \"$1\"\n")
    editor.chmod(0o755)
    arguments = ("repl", recipe(tmp_path, PLANS), "--loom", loom, "--plan")
    with Terminal(*arguments, cwd=tmp_path, VISUAL=str(editor), TERM="dumb") as terminal:
        terminal.wait_for("allows nothing that changes files")
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        terminal.wait_for("plan? ")
        assert not (tmp_path / "one.txt").exists()
        terminal.type("perhaps\r")
        terminal.wait_for("type 1, 2, 3, e")
        terminal.wait_for("plan? ")
        terminal.type("n shorter\r")
        terminal.wait_for("Second.")
        terminal.wait_for("plan? ")
        terminal.type("1\r")
        terminal.wait_for("which? ")
        terminal.type("1")
        terminal.wait_for("Done.")
        terminal.wait_for("❯ ")
        terminal.type("/plan\r")
        terminal.wait_for("plan mode")
        terminal.wait_for("❯ ")
        terminal.type("more\r")
        terminal.wait_for("plan? ")
        terminal.type("e\r")
        terminal.wait_for("Edited.")
        terminal.wait_for("plan? ")
        terminal.type("2\r")
        terminal.wait_for("Finished.")
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert (tmp_path / "one.txt").read_text() == "first"
    with Loom.open(loom, readonly=True) as held:
        intents = [start.intent or "" for start, _ in held.casts()]
    assert [intent.partition("\n\n")[2] for intent in intents] == [
        "", "shorter", "# Plan\n\nSecond.", "", "# Plan\n\nEdited.",
    ]  # fmt: skip


SHELL = """
crystal:
  provider: scripted
  responses:
    - {bash: "curl -sS http://npm.example/"}
    - {bash: "curl -sS http://npm.example/"}
    - {content: Done., repeat: true}
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 4}]
"""


@pytest.mark.sandbox
def test_a_host_that_a_command_wants_is_asked_about(tmp_path: Path) -> None:
    state, loom = tmp_path / "state", tmp_path / "x.loom.jsonl"
    words = ("cast", recipe(tmp_path, SHELL), "go", "--ask", "--loom", loom, "--state-dir", state)
    with Terminal(*words, cwd=tmp_path) as terminal:
        terminal.wait_for("which? ")
        terminal.type("a")
        shown = terminal.wait_for("which? ")
        assert "`curl` wants npm.example:80" in shown
        assert "project" in shown
        terminal.type("n")
        shown = terminal.wait_for("which? ")
        terminal.type("p")
        assert terminal.end() == 0
    with Loom.open(loom, readonly=True) as held:
        outputs = [t.observation.output.stdout for t in held.turns() if t.observation.output is not None]
    assert "the user refused this: `curl` wants npm.example:80" in outputs[0]
    assert "npm.example cannot be found" in outputs[1]
    assert "commands may reach http://npm.example" in run("trust", "--list", "--state-dir", state, cwd=tmp_path).out
    run("trust", "--revoke", ".", "--state-dir", state, cwd=tmp_path)
    assert "npm.example" not in run("trust", "--list", "--state-dir", state, cwd=tmp_path).out


@pytest.mark.sandbox
@pytest.mark.parametrize("hosts", [(), ("--allow-host", "npm.example")])
def test_without_ask_only_named_hosts_are_reached(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    done = run("cast", recipe(tmp_path, SHELL), "see http://npm.example/", "--json", *hosts, cwd=tmp_path)
    text = "npm.example cannot be found" if hosts else "nobody can be asked here"
    assert text in done.out
