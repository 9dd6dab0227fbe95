"""The client in a pipe: text, JSON lines, permissions, files, exit status. Some agents are written with the official SDK."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.integration.client.client_processes import OFFICIAL_SDK, POLITE, rude, run_client


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def said(events: list[dict[str, Any]]) -> str:
    """The agent's words."""
    updates = [event["update"] for event in events if event["event"] == "update"]
    return "".join(u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk")


def test_a_turn_in_a_pipe_is_plain_text(tmp_path: Path) -> None:
    done = run_client("--cwd", str(tmp_path), "--prompt", "say", agent=OFFICIAL_SDK)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("Polite 1.2.3 · ACP 1\nsession  ")
    for part in (
        f"folder   {tmp_path}\n",
        "loom     /looms/polite.loom.jsonl\n",
        "\n❯ say\n",
        "\n✻ Thinking about it.\n",
        "\n● Hello there, friend.\n",
        "\n■ end_turn · 1,200 tokens in, 34 out (1,000 cached) · ",
    ):
        assert part in done.stdout
    assert done.stderr == ""


def test_tool_calls_show_kind_status_output_and_diff() -> None:
    done = run_client("--prompt", "tool", agent=POLITE)
    assert done.returncode == 0
    for part in (
        "▸ execute  make test\n  │ collecting\n  │ 1 failed\n  ✗ failed · exit 2 · ",
        "▸ edit  Edit a.py  /p/a.py:2\n",
        "  │ @@ -1,3 +1,3 @@\n  │  one\n  │ -two\n  │ +2\n  │  three\n  ✓ completed · ",
        "■ end_turn · 2 tool calls · ",
    ):
        assert part in done.stdout


def test_lines_of_stdin_are_prompts_of_one_session() -> None:
    done = run_client("--json", agent=POLITE, stdin="say one\n\nsay two\n")
    events = lines(done.stdout)
    assert [event["text"] for event in events if event["event"] == "prompt"] == ["say one", "say two"]
    assert [event["turn"] for event in events if event["event"] == "result"] == [1, 2]
    assert len({event["session_id"] for event in events if "session_id" in event}) == 1


def test_a_dash_reads_one_prompt_of_many_lines() -> None:
    done = run_client("--json", "--prompt", "-", agent=POLITE, stdin="say a\nb\n")
    assert said(lines(done.stdout)).strip() == "a\nb"


def test_json_has_every_update_and_a_result() -> None:
    done = run_client("--json", "--prompt", "tool", agent=OFFICIAL_SDK)
    events = lines(done.stdout)
    assert [event["event"] for event in events] == ["session", "prompt", *["update"] * 6, "result"]
    assert events[0]["agent"]["name"] == "polite"
    assert events[0]["loom"] == "/looms/polite.loom.jsonl"
    result = events[-1]
    assert (result["stop_reason"], result["loom"]) == ("end_turn", "/looms/polite.loom.jsonl")
    assert result["usage"]["inputTokens"] == 1200
    assert result["seconds"] >= 0


def test_all_updates_of_a_turn_come_before_its_result_in_order() -> None:
    done = run_client("--json", "--prompt", "many 5000", agent=POLITE)
    events = lines(done.stdout)
    assert said(events).split() == [str(n) for n in range(5000)]
    assert events[-1]["event"] == "result"


@pytest.mark.parametrize(
    ("rule", "answer"),
    [("once", "selected one"), ("always", "selected all"), ("never", "selected no"), ("ask", "selected no")],
)
def test_permission_by_rule(rule: str, answer: str) -> None:
    done = run_client("--json", "--allow", rule, "--prompt", "ask", agent=POLITE)
    events = lines(done.stdout)
    assert said(events) == f"answer: {answer}"
    asked = next(event for event in events if event["event"] == "permission")
    assert asked["tool_call"]["title"] == "Delete the world"
    assert asked["answer"] == answer.split()[1]


def test_permission_in_a_pipe_names_what_was_answered_and_why() -> None:
    done = run_client("--prompt", "ask", agent=OFFICIAL_SDK)
    assert (
        "▸ delete  Delete the world\n  ? permission: Reject (there is no terminal to ask; see --allow)\n" in done.stdout
    )


@pytest.mark.parametrize(("what", "status"), [("limit", 1), ("refuse", 1), ("error", 1), ("say", 0)])
def test_exit_status(what: str, status: int) -> None:
    assert run_client("--prompt", what, agent=POLITE).returncode == status


def test_an_error_names_the_agent_the_method_and_its_stderr_and_the_next_prompt_goes_on() -> None:
    done = run_client("--prompt", "error", "--prompt", "say", agent=OFFICIAL_SDK)
    assert done.returncode == 1
    assert "refused session/prompt: the model is out of order (-32603): status 529" in done.stderr
    assert "Its stderr ended with:\n  about to fail" in done.stderr
    assert "● Hello there, friend." in done.stdout


def test_files_of_the_folder_are_lent_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "in.txt").write_text("inside\n")
    (tmp_path / "out.txt").write_text("secret\n")
    (folder / "link").symlink_to(tmp_path / "out.txt")
    prompts = [
        f"read {folder}/in.txt",
        f"read {tmp_path}/out.txt",
        f"read {folder}/link",
        f"read {folder}/../out.txt",
        f"read {folder}/missing",
        f"write {folder}/new/file.txt",
        f"write {tmp_path}/evil.txt",
        f"write {folder}/link",
    ]
    stdin = "\n".join(prompts) + "\n"
    done = run_client("--cwd", str(folder), "--json", agent=OFFICIAL_SDK, stdin=stdin)
    words = said(lines(done.stdout))
    assert words.startswith("content: inside\n")
    assert words.count("refused: -32602") == 5
    assert words.count("refused: -32002") == 1
    assert words.count("written") == 1
    assert "secret" not in done.stdout
    assert (folder / "new" / "file.txt").read_text() == "written by polite\n"
    assert not (tmp_path / "evil.txt").exists()
    assert (tmp_path / "out.txt").read_text() == "secret\n"
    assert sum(event["event"] == "file" for event in lines(done.stdout)) == len(prompts)


def test_terminals_are_not_offered() -> None:
    done = run_client("--json", "--prompt", "terminal", agent=POLITE)
    assert said(lines(done.stdout)) == "refused: -32601, advertised: False"


def test_sign_in_is_explained_and_done() -> None:
    refused = run_client("--prompt", "x", agent=rude("wants_sign_in"))
    assert refused.returncode == 1
    assert "Sign in first" in refused.stderr
    assert "--auth browser: Sign in with the browser (Opens a page)" in refused.stderr
    assert "● welcome" in run_client("--auth", "browser", "--prompt", "x", agent=rude("wants_sign_in")).stdout


@pytest.mark.parametrize(
    ("arguments", "agent", "words"),
    [
        ([], ["/nonexistent/agent"], "no program named '/nonexistent/agent'"),
        ([], ["/etc/passwd"], "may not be executed"),
        (["--cwd", "/nonexistent"], ["true"], "does not exist"),
        (["--allow", "perhaps"], ["true"], "perhaps"),
        (["--timeout", "0"], ["true"], "--timeout"),
    ],
)
def test_a_wrong_command_line_is_status_2(arguments: list[str], agent: list[str], words: str) -> None:
    done = run_client("--prompt", "x", *arguments, agent=agent)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_no_agent_is_status_2_and_help_has_an_example() -> None:
    done = run_client(agent=[])
    assert done.returncode == 2
    done = run_client("--help", agent=[])
    assert "cantrip client -- cantrip-acp" in done.stdout


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    import shlex
    import subprocess

    from tests.cli.integration.client.client_processes import CLIENT, environment

    command = shlex.join([*CLIENT, "--prompt", "many 20000", "--", *POLITE])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 200 >/dev/null; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_poor_encoding_is_no_error(encoding: str) -> None:
    done = run_client("--prompt", "say 🎉 ünïcode", agent=POLITE, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() or encoding == "latin-1"
    assert "# end_turn" in done.stdout


def test_the_protocol_package_is_somebody_elses() -> None:
    """The agent of these tests shares no code with the client."""
    assert "cantrip" not in Path(POLITE[1]).read_text().replace('"cantrip"', "")
    assert sys.executable == POLITE[0]
