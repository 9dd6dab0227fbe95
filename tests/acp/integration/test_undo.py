"""Undo, restore and review in a session: what the entity changed goes back, what the user changed stays."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.checkpoints.store import store_name
from cantrip_acp.files.paths import state_dir
from tests.acp.integration.test_files import BOTH, END, Editor, call
from tests.support.acp_client import Problem
from tests.support.fixtures.acp import Start

GATES = ["done", "read_file", "write_file", "edit_file"]
LINES = "one\ntwo\nthree\nfour\nfive\n"


def says(agent: Any, session: Any, text: str) -> str:
    """The answer to a slash command."""
    before = len(agent.updates("agent_message_chunk"))
    agent.prompt(session, text)
    return "".join(each["content"]["text"] for each in agent.updates("agent_message_chunk")[before:])


@pytest.fixture
def changed(start: Start, folder: Path) -> tuple[Any, Any]:
    """A session in which two prompts changed files, and one did not."""
    (folder / "a.txt").write_text(LINES)
    (folder / "old.txt").write_text("old\n")
    steps = [
        call("write_file", path="a.txt", content=LINES.replace("one", "ONE")),
        call("write_file", path="sub/new.txt", content="new\n"),
        END,
        call("edit_file", path="a.txt", old_text="two\n", new_text="TWO\n"),
        END,
        call("read_file", path="a.txt"),
    ]
    agent = start([*steps, END], gates=GATES, capabilities=BOTH)
    Editor(agent)
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    for prompt in ("First.", "Second.", "Third."):
        agent.prompt(session, prompt)
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE").replace("two", "TWO")
    return agent, session


def test_undo_goes_back_prompt_by_prompt_and_redo_forward(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    assert "Restored 1 file" in says(agent, session, "/undo")
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE")
    assert (folder / "sub" / "new.txt").exists()
    assert "sub/new.txt` (deleted)" in says(agent, session, "/undo")
    assert (folder / "a.txt").read_text() == LINES
    assert not (folder / "sub").exists()
    assert (folder / "old.txt").read_text() == "old\n"
    assert "nothing to undo" in says(agent, session, "/undo")
    says(agent, session, "/redo")
    assert (folder / "sub" / "new.txt").read_text() == "new\n"
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE")


def test_redo_takes_each_undo_back_once_and_then_says_that_nothing_is_left(
    changed: tuple[Any, Any], folder: Path
) -> None:
    agent, session = changed
    texts = [LINES.replace("one", "ONE").replace("two", "TWO"), LINES.replace("one", "ONE"), LINES]
    for text in texts[1:]:
        assert "`/redo` takes this back" in says(agent, session, "/undo")
        assert (folder / "a.txt").read_text() == text
    for text in texts[-2::-1]:
        assert "`/undo` takes this back" in says(agent, session, "/redo")
        assert (folder / "a.txt").read_text() == text
    for _ in range(2):
        assert "there is nothing to redo" in says(agent, session, "/redo")
        assert (folder / "a.txt").read_text() == texts[0]
    assert "there is nothing to redo" in str(agent.error("_cantrip/redo", {"sessionId": session}))
    # The same for one file, and /undo would undo more than that file.
    says(agent, session, "/undo a.txt")
    assert "takes this back" not in says(agent, session, "/redo")
    assert "there is nothing to redo" in says(agent, session, "/redo")
    assert (folder / "a.txt").read_text() == texts[0]


def test_a_redo_that_left_a_file_can_be_repeated(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    says(agent, session, "/restore 0")
    (folder / "sub").mkdir()
    (folder / "sub" / "new.txt").write_text("mine\n")
    assert "sub/new.txt`: you changed it" in says(agent, session, "/redo")
    assert "Restored 1 file" in says(agent, session, "/redo --force")
    assert (folder / "sub" / "new.txt").read_text() == "new\n"
    assert "there is nothing to redo" in says(agent, session, "/redo")


def test_restore_of_a_turn_and_of_the_start(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    says(agent, session, "/restore 1")
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE")
    assert not (folder / "sub").exists()
    says(agent, session, "/restore 4")
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE").replace("two", "TWO")
    assert (folder / "sub" / "new.txt").read_text() == "new\n"
    says(agent, session, "/restore 0")
    assert (folder / "a.txt").read_text() == LINES


def test_what_the_user_changed_is_merged_or_asked_about(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    (folder / "a.txt").write_text("ONE\nTWO\nthree\nfour\nMINE\n")
    (folder / "sub" / "new.txt").write_text("mine\n")
    told = says(agent, session, "/restore 0")
    assert "`a.txt` (merged with your own changes)" in told
    assert "sub/new.txt`: you changed it after the entity did (it would be deleted)" in told
    assert (folder / "a.txt").read_text() == "one\ntwo\nthree\nfour\nMINE\n"
    assert (folder / "sub" / "new.txt").read_text() == "mine\n"
    says(agent, session, "/restore 0 --force")
    assert not (folder / "sub").exists()
    says(agent, session, "/redo")
    assert (folder / "sub" / "new.txt").read_text() == "mine\n"


def asked(agent: Any) -> dict[str, Any]:
    """The next question of the agent."""
    found: dict[str, Any] = agent.until(lambda message: message.get("method") == "session/request_permission")
    return found


def choose(agent: Any, question: dict[str, Any], option: str) -> None:
    assert option in [each["optionId"] for each in question["params"]["options"]]
    outcome = {"outcome": "selected", "optionId": option}
    agent.send({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": outcome}})


@pytest.mark.parametrize("by", ["/restore 0", "/undo", "_cantrip/restore", "_cantrip/undo"])
def test_conflicts_are_a_question(changed: tuple[Any, Any], folder: Path, by: str) -> None:
    """Keep mine, nothing at all, or over my changes; the rest is merged or restored in the first and the last case."""
    agent, session = changed
    mine = {"a.txt": "mine\n", "sub/new.txt": "new\n"}
    (folder / "a.txt").write_text(mine["a.txt"])
    params = {"sessionId": session, **({"turn": 0} if by == "_cantrip/restore" else {})}
    if by == "_cantrip/undo":
        params["since"] = "start"
    agent.permit = None

    def begin() -> Any:
        return agent.start_prompt(session, by) if by[0] == "/" else agent.ask(by, params)

    for option in ("cancel", "overwrite"):
        request = begin()
        question = asked(agent)
        call_id = question["params"]["toolCall"]["toolCallId"]
        diff = question["params"]["toolCall"]["content"][1]
        wanted = LINES.replace("one", "ONE") if by == "/undo" else LINES
        assert (diff["path"], diff["oldText"], diff["newText"]) == (str(folder / "a.txt"), "mine\n", wanted)
        assert (folder / "sub" / "new.txt").exists(), "nothing is done before the answer"
        choose(agent, question, option)
        reply = agent.answer(request)["result"]
        if by[0] == "_":
            assert reply["answer"] == option
            assert bool(reply["restored"]) == (option != "cancel")
        assert [each["status"] for each in agent.updates("tool_call_update") if each["toolCallId"] == call_id] == [
            "failed" if option == "cancel" else "completed"
        ]
        if option == "cancel":
            assert {path: (folder / path).read_text() for path in mine} == mine
        else:
            assert (folder / "a.txt").read_text() == wanted
            assert (folder / "sub").exists() == (by == "/undo")
    # What was overwritten was kept first.
    agent.call("_cantrip/redo", {"sessionId": session})
    assert {path: (folder / path).read_text() for path in mine} == mine
    if by != "/undo":
        request = begin()
        choose(agent, asked(agent), "keep")
        agent.answer(request)
        assert (folder / "a.txt").read_text() == "mine\n"
        assert not (folder / "sub").exists()


def test_a_file_that_changes_while_the_user_is_asked_is_not_overwritten(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    editor = Editor(agent)
    (folder / "a.txt").write_text("mine\n")
    agent.permit = None
    request = agent.ask("_cantrip/restore", {"sessionId": session, "turn": 0})
    question = asked(agent)
    (folder / "a.txt").write_text("newer\n")
    choose(agent, question, "overwrite")
    done = agent.answer(request)["result"]
    assert [each["path"] for each in done["conflicts"]] == ["a.txt"]
    assert [each["path"] for each in done["restored"]] == ["sub/new.txt"]
    assert (folder / "a.txt").read_text() == "newer\n"
    # The same for text in the editor.
    request = agent.ask("_cantrip/restore", {"sessionId": session, "turn": 0})
    question = asked(agent)
    editor.open = {str(folder / "a.txt"): "not saved\n"}
    choose(agent, question, "overwrite")
    done = agent.answer(request)["result"]
    assert [each["path"] for each in done["conflicts"]] == ["a.txt"]
    assert editor.open == {str(folder / "a.txt"): "not saved\n"}


def test_a_question_about_conflicts_ends_with_its_prompt_and_yields_to_another(
    changed: tuple[Any, Any], folder: Path
) -> None:
    agent, session = changed
    (folder / "a.txt").write_text("mine\n")
    agent.permit = None
    request = agent.start_prompt(session, "/restore 0")
    asked(agent)
    agent.tell("session/cancel", {"sessionId": session})
    agent.answer(request)
    assert (folder / "sub" / "new.txt").exists()
    request = agent.ask("_cantrip/restore", {"sessionId": session, "turn": 0})
    question = asked(agent)
    says(agent, session, "/cost")
    prompt = agent.start_prompt(session, "/restore 0")
    other = asked(agent)
    choose(agent, question, "overwrite")
    assert "a prompt was sent" in agent.answer(request)["error"]["message"]
    choose(agent, other, "cancel")
    agent.answer(prompt)
    assert (folder / "a.txt").read_text() == "mine\n"
    assert (folder / "sub" / "new.txt").exists()


def test_who_cannot_or_will_not_ask_gets_the_conflicts(changed: tuple[Any, Any], folder: Path) -> None:
    def refuses(params: dict[str, Any]) -> Any:
        raise Problem("no", -32601)

    agent, session = changed
    (folder / "a.txt").write_text("mine\n")
    done = agent.call("_cantrip/restore", {"sessionId": session, "turn": 0, "ask": False, "dryRun": True})
    assert [each["path"] for each in done["restored"]] == ["sub/new.txt"]
    agent.services["session/request_permission"] = refuses
    told = says(agent, session, "/restore 0")
    assert "`/restore 0 --force` restores them all the same" in told
    assert not (folder / "sub").exists()
    count = len(agent.seen)
    done = agent.call("_cantrip/restore", {"sessionId": session, "turn": 0, "ask": False})
    assert [each["path"] for each in done["conflicts"]] == ["a.txt"]
    assert not any(each.get("method") == "session/request_permission" for each in agent.seen[count:])
    assert (folder / "a.txt").read_text() == "mine\n"


def test_force_still_merges_what_can_be_merged(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    (folder / "a.txt").write_text("ONE\nTWO\nthree\nfour\nMINE\n")
    (folder / "sub" / "new.txt").write_text("mine\n")
    says(agent, session, "/restore 0 --force")
    assert (folder / "a.txt").read_text() == "one\ntwo\nthree\nfour\nMINE\n"
    assert not (folder / "sub").exists()


def test_unsaved_text_in_the_editor_is_merged_and_written_through_it(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    editor = Editor(agent, saves=False)
    editor.open = {str(folder / "a.txt"): "ONE\nTWO\nthree\nfour\nunsaved\n"}
    on_disk = (folder / "a.txt").read_text()
    says(agent, session, "/undo")
    assert editor.open[str(folder / "a.txt")] == "ONE\ntwo\nthree\nfour\nunsaved\n"
    assert (folder / "a.txt").read_text() == on_disk


def test_the_disk_is_restored_where_the_editor_has_the_wanted_text_and_the_editor_where_the_disk_has(
    changed: tuple[Any, Any], folder: Path
) -> None:
    agent, session = changed
    editor = Editor(agent, saves=False)
    path = folder / "a.txt"
    after, before = path.read_text(), LINES.replace("one", "ONE")
    # Taken back in the editor by hand, and not saved.
    editor.open = {str(path): before}
    assert "Restored 1 file" in says(agent, session, "/undo")
    assert path.read_text() == before
    assert editor.open == {str(path): before}
    says(agent, session, "/redo")
    assert path.read_text() == after
    # What the user changed on the disk stays also then.
    path.write_text(after + "mine\n")
    says(agent, session, "/undo")
    assert path.read_text() == before + "mine\n"
    says(agent, session, "/redo")
    # Taken back on the disk, such as by git, while the editor has what the entity wrote.
    path.write_text(before)
    editor.open = {str(path): after}
    assert "Restored 1 file" in says(agent, session, "/undo")
    assert editor.open == {str(path): before}
    assert path.read_text() == before


def test_the_methods_give_data_for_a_panel(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    found = agent.call("_cantrip/changes", {"sessionId": session, "texts": True})
    assert [(each["path"], each["status"], each["added"], each["removed"]) for each in found["files"]] == [
        ("a.txt", "modified", 2, 2),
        ("sub/new.txt", "added", 1, 0),
    ]
    first = found["files"][0]
    assert first["before"] == LINES
    assert first["uri"] == f"file://{folder}/a.txt"
    assert [each["text"] for each in found["prompts"]] == ["First.", "Second."]
    since = agent.call("_cantrip/changes", {"sessionId": session, "since": 2})
    assert [(each["path"], each["added"]) for each in since["files"]] == [("a.txt", 1)]
    kept = agent.call("_cantrip/keep", {"sessionId": session, "path": "sub/new.txt"})
    assert kept == {"kept": ["sub/new.txt"]}
    assert [each["path"] for each in agent.call("_cantrip/changes", {"sessionId": session})["files"]] == ["a.txt"]
    (folder / "a.txt").write_text("other\n")
    problem = agent.error("_cantrip/undo", {"sessionId": session, "path": "a.txt", "version": first["version"]})
    assert "changed since it was shown" in str(problem)
    done = agent.call("_cantrip/restore", {"sessionId": session, "turn": 0, "dryRun": True})
    assert {each["path"] for each in (*done["restored"], *done["conflicts"])} == {"a.txt", "sub/new.txt"}
    assert (folder / "a.txt").read_text() == "other\n"


def test_everything_that_is_listed_is_undone_at_once_and_brought_back_at_once(
    changed: tuple[Any, Any], folder: Path
) -> None:
    agent, session = changed
    after = (folder / "a.txt").read_text()
    agent.call("_cantrip/keep", {"sessionId": session, "path": "sub/new.txt"})
    done = agent.call("_cantrip/undo", {"sessionId": session, "since": "start"})
    assert [each["path"] for each in done["restored"]] == ["a.txt"]
    assert (folder / "a.txt").read_text() == LINES
    assert (folder / "sub" / "new.txt").read_text() == "new\n"
    assert agent.call("_cantrip/changes", {"sessionId": session})["files"] == []
    agent.call("_cantrip/redo", {"sessionId": session})
    assert (folder / "a.txt").read_text() == after


def test_keep_and_undo_of_hunks(start: Start, folder: Path) -> None:
    text = "".join(f"{number}\n" for number in range(40))
    (folder / "n.txt").write_text(text)
    after = text.replace("3\n", "three\n", 1).replace("35\n", "last\n")
    agent = start([call("write_file", path="n.txt", content=after), END], gates=GATES)
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    agent.prompt(session, "Write.")
    assert "| +2 -2 | 2 |" in says(agent, session, "/changes")
    says(agent, session, "/changes keep n.txt 1")
    found = agent.call("_cantrip/changes", {"sessionId": session})["files"][0]
    assert [each["lines"][3:5] for each in found["hunks"]] == [["-35", "+last"]]
    says(agent, session, "/changes undo n.txt")
    assert (folder / "n.txt").read_text() == text.replace("3\n", "three\n", 1)
    assert "No file was changed" in says(agent, session, "/changes")
    says(agent, session, "/redo")
    agent.call("_cantrip/undo", {"sessionId": session, "path": "n.txt", "hunk": 1})
    assert (folder / "n.txt").read_text() == text.replace("3\n", "three\n", 1)


def files(agent: Any, session: Any) -> dict[str, list[list[str]]]:
    """The changed lines of each hunk, by file."""
    found = agent.call("_cantrip/changes", {"sessionId": session})["files"]
    return {each["path"]: [[line for line in h["lines"] if line[0] != " "] for h in each["hunks"]] for each in found}


def test_what_the_user_writes_is_no_change_of_the_agent(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    path = folder / "a.txt"
    # Far away, and beside lines of the agent, whose hunk it does not join.
    path.write_text("ONE\nTWO\n# mine\nthree\nfour\nfive\n# my own line\n")
    new = folder / "sub" / "new.txt"
    new.write_text("new\n# mine too\n")
    assert files(agent, session) == {"a.txt": [["-one", "-two", "+ONE", "+TWO"]], "sub/new.txt": [["+new"]]}
    listed = agent.call("_cantrip/changes", {"sessionId": session, "texts": True})["files"][0]
    assert listed["before"] == "one\ntwo\n# mine\nthree\nfour\nfive\n# my own line\n"
    agent.call("_cantrip/undo", {"sessionId": session, "path": "a.txt", "hunk": 1, "version": listed["version"]})
    assert path.read_text() == listed["before"]
    assert list(files(agent, session)) == ["sub/new.txt"]


def test_after_undo_all_no_own_line_is_listed(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    with (folder / "a.txt").open("a") as file:
        file.write("# my own line\n")
    assert agent.call("_cantrip/undo", {"sessionId": session, "since": "start"})["conflicts"] == []
    assert (folder / "a.txt").read_text() == LINES + "# my own line\n"
    assert files(agent, session) == {}
    with (folder / "a.txt").open("a") as file:
        file.write("# another\n")
    assert files(agent, session) == {}


def test_own_lines_between_two_prompts_and_after_a_kept_hunk(start: Start, folder: Path) -> None:
    path = folder / "n.txt"
    lines = [f"{number}\n" for number in range(60)]
    path.write_text("".join(lines))
    steps = [call("edit_file", path="n.txt", old_text="\n3\n", new_text="\nthree\n"), END,
             call("edit_file", path="n.txt", old_text="\n50\n", new_text="\nfifty\n"), END]  # fmt: skip
    agent = start(steps, gates=GATES)
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    agent.prompt(session, "Write.")
    path.write_text(path.read_text().replace("\n20\n", "\nmine\n"))
    agent.prompt(session, "Write.")
    path.write_text(path.read_text() + "last\n")
    assert files(agent, session) == {"n.txt": [["-3", "+three"], ["-50", "+fifty"]]}
    agent.call("_cantrip/keep", {"sessionId": session, "path": "n.txt", "hunk": 1})
    path.write_text("first\n" + path.read_text())
    assert files(agent, session) == {"n.txt": [["-50", "+fifty"]]}
    path.write_text(path.read_text().replace("fifty\n", "fifty!\n"))
    assert files(agent, session) == {"n.txt": [["-50", "+fifty!"]]}


def test_generated_files_are_not_listed_and_still_undone(start: Start, folder: Path) -> None:
    cached = "target/debug/x.txt"
    steps = [call("write_file", path=path, content="x\n") for path in ("a.py", "__pycache__/a.cpython-311.pyc", cached)]
    agent = start([*steps, END], gates=GATES)
    (folder / "target").mkdir()
    (folder / "target" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    agent.prompt(session, "Write.")
    assert (folder / cached).exists()
    found = agent.call("_cantrip/changes", {"sessionId": session})
    assert ([each["path"] for each in found["files"]], found["generated"]) == (["a.py"], 2)
    assert "cpython" not in says(agent, session, "/changes")
    agent.call("_cantrip/undo", {"sessionId": session, "since": "start"})
    assert not any((folder / path).exists() for path in ("a.py", "__pycache__", cached))


def test_a_fork_offers_to_restore_files(start: Start, folder: Path) -> None:
    script = [call("write_file", path="n.txt", content=f"{number}\n") for number in (1, 2)]
    agent = start([*script, END, {"repeat": True, "content": "Forked."}], gates=GATES)
    session = agent.session(folder, mode="trusted")
    agent.prompt(session, "Write.")
    fork = {"sessionId": session, "cwd": str(folder), "mcpServers": [], "_meta": {"cantrip": {"turn": 1}}}
    offered = agent.call("session/fork", fork)["_meta"]["cantrip"]["files"]
    assert offered["restored"] == [{"path": "n.txt", "action": "written"}]
    assert (folder / "n.txt").read_text() == "2\n"
    fork["_meta"]["cantrip"]["restoreFiles"] = True  # type: ignore[index]
    made = agent.call("session/fork", fork)
    assert (folder / "n.txt").read_text() == "1\n"
    # The fork's own history begins with that of the first session.
    assert "Restored 1 file" in says(agent, made["sessionId"], "/restore 0")
    assert not (folder / "n.txt").exists()


def test_the_fork_command_restores_files_and_asks_about_conflicts(changed: tuple[Any, Any], folder: Path) -> None:
    agent, session = changed
    after = (folder / "a.txt").read_text()
    told = says(agent, session, "/fork 3")
    assert "1 file was changed after that turn. `/restore" in told
    assert (folder / "a.txt").read_text() == after, "without --restore it only says so"
    told = says(agent, session, "/fork 3 --restore")
    assert "Forked from turn" in told
    assert "Restored 1 file" in told
    assert (folder / "a.txt").read_text() == LINES.replace("one", "ONE")
    says(agent, session, "/redo")
    assert (folder / "a.txt").read_text() == after
    (folder / "a.txt").write_text("mine\n")
    agent.permit = None
    sessions = len(agent.call("session/list")["sessions"])
    for option, text in (("cancel", "mine\n"), ("overwrite", LINES.replace("one", "ONE"))):
        request = agent.start_prompt(session, "/fork 3 --restore")
        choose(agent, asked(agent), option)
        agent.answer(request)
        assert (folder / "a.txt").read_text() == text
    # The fork is made in any case, and its own history leads on.
    listed = agent.call("session/list")["sessions"]
    assert len(listed) == sessions + 2
    fork = next(each["sessionId"] for each in listed if each["sessionId"] != session)
    agent.call("session/load", {"sessionId": fork, "cwd": str(folder), "mcpServers": []})
    assert "Restored" in says(agent, fork, "/restore 0")
    assert (folder / "a.txt").read_text() == LINES
    assert not (folder / "sub").exists()


def test_a_deleted_session_leaves_no_files_in_the_store(start: Start, folder: Path) -> None:
    agent = start([call("write_file", path="n.txt", content="1\n"), END], gates=GATES)
    session = agent.session(folder, mode="trusted")
    agent.prompt(session, "Write.")
    assert [each.stem for each in (state_dir() / "checkpoints").glob("*.db")] == [store_name(folder)]
    agent.call("session/close", {"sessionId": session})
    agent.call("session/delete", {"sessionId": session})
    assert not list((state_dir() / "checkpoints").glob("*.db"))
    assert (folder / "n.txt").exists()


def test_a_new_session_beside_others_in_one_database(start: Start, folder: Path, tmp_path: Path) -> None:
    step = call("write_file", path="a.txt", content="made\n")
    agent = start([step, END], gates=GATES, capabilities=BOTH, loom={"store": f"sqlite:{tmp_path}/looms.db"})
    Editor(agent)
    agent.prompt(agent.session(folder), "Write.")
    second = agent.session(folder)
    # The database has turns, this session has none.
    assert agent.call("_cantrip/changes", {"sessionId": second})["files"] == []
    assert "nothing to undo" in says(agent, second, "/undo")
    agent.call("session/set_mode", {"sessionId": second, "modeId": "sandboxed"})
    (folder / "a.txt").write_text("mine\n")
    agent.prompt(second, "Write.")
    assert (folder / "a.txt").read_text() == "made\n"
    assert "Restored 1 file" in says(agent, second, "/undo")
    assert (folder / "a.txt").read_text() == "mine\n"


def test_undo_takes_back_what_a_command_beside_python_changed(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("old\n")
    code = "shell('echo new > a.txt; mkdir -p build; echo x > build/out'); done('Done.')"
    wards = [{"max_turns": 9}, {"bash_writable_paths": ["."]}]
    agent = start([{"code": code}], medium="code", gates=["done", "shell"], wards=wards)
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    agent.permit = None  # A question would hang.
    agent.prompt(session, "Build.")
    assert (folder / "a.txt").read_text() == "new\n"
    says(agent, session, "/undo")
    assert (folder / "a.txt").read_text() == "old\n"
    assert not (folder / "build").exists()


def test_the_mode_ask_asks_about_a_command_beside_python(start: Start, folder: Path) -> None:
    wards = [{"max_turns": 9}, {"bash_writable_paths": ["."]}]
    code = "try: shell('echo new > a.txt')\nexcept GateError as error: done(str(error))"
    agent = start([{"code": code}], medium="code", gates=["done", "shell"], wards=wards)
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "ask"})
    agent.permit = "reject_once"
    agent.prompt(session, "Build.")
    (question,) = [each for each in agent.seen if each.get("method") == "session/request_permission"]
    assert question["params"]["toolCall"]["title"] == "$ echo new > a.txt"
    assert not (folder / "a.txt").exists()
