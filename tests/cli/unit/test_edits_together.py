"""Edits of one utterance: one question for all of them, whose answer covers exactly what was shown."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

ASK = "session/request_permission"
END = {"content": "Done."}
FILES: dict[str, Any] = {"gates": ["done", "read_file", "write_file", "edit_file"]}


def write(path: str, content: str = "new\n") -> dict[str, Any]:
    return {"gate": "write_file", "args": {"path": path, "content": content}}


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"gate": "edit_file", "args": {"path": path, "old_text": old, "new_text": new}}


def ask(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(calls)}


def question(agent: RawClient) -> dict[str, Any]:
    return agent.until(lambda message: message.get("method") == ASK)


def choose(agent: RawClient, message: dict[str, Any], option: str, **meta: Any) -> None:
    assert option in [each["optionId"] for each in message["params"]["options"]]
    outcome = {"outcome": "selected", "optionId": option, **({"_meta": {"cantrip": meta}} if meta else {})}
    agent.send({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}})


def titles(agent: RawClient) -> list[str]:
    return [m["params"]["toolCall"]["title"] for m in agent.seen if m.get("method") == ASK]


def failures(agent: RawClient) -> list[str]:
    return [str(u.get("rawOutput")) for u in agent.updates("tool_call_update") if u.get("status") == "failed"]


@pytest.fixture
def agent(start: Start, folder: Path) -> Any:
    """Starts an agent whose first utterance makes these calls, and returns it with its first question and the prompt."""

    def begin(*calls: dict[str, Any], **options: Any) -> tuple[RawClient, dict[str, Any], Any]:
        (folder / "a.txt").write_text("one\ntwo\n")
        found = start([ask(*calls), END], **{**FILES, **options})
        found.permit = None
        prompt = found.start_prompt(found.session(folder, mode="ask"))
        return found, question(found), prompt

    return begin


SIX = [
    edit("a.txt", "one", "1"),
    edit("a.txt", "1\ntwo", "1\n2"),
    write("b.txt"),
    write("sub/c.txt"),
    write("b.txt", "newer\n"),
    write("d.txt"),
]


def test_one_question_has_all_changes(agent: Any, folder: Path) -> None:
    found, message, prompt = agent(*SIX, edit("a.txt", "not there", "x"), write(".git/config"))
    call = message["params"]["toolCall"]
    assert (call["title"], call["kind"]) == ("6 edits in 4 files (+6 −3)", "edit")
    texts = [(Path(each["path"]).name, each.get("oldText"), each["newText"]) for each in call["content"]]
    assert texts == [
        ("a.txt", "one\ntwo\n", "1\ntwo\n"), ("a.txt", "1\ntwo\n", "1\n2\n"), ("b.txt", None, "new\n"),
        ("c.txt", None, "new\n"), ("b.txt", "new\n", "newer\n"), ("d.txt", None, "new\n"),
    ]  # fmt: skip
    assert [(each["name"], each["kind"]) for each in message["params"]["options"]] == [
        ("Allow all", "allow_once"), ("Look at each", "allow_once"), ("Reject all", "reject_once"),
    ]  # fmt: skip
    assert call["toolCallId"] in [each["toolCallId"] for each in found.updates("tool_call")]
    assert not (folder / "b.txt").exists()
    choose(found, message, "allow_once")
    found.answer(prompt)
    assert len(titles(found)) == 1
    assert (folder / "a.txt").read_text() == "1\n2\n"
    assert (folder / "b.txt").read_text() == "newer\n"
    assert len(failures(found)) == 2
    # The question stands at the first edit's own call, which ends with its own change.
    ended = [u for u in found.updates("tool_call_update") if u["toolCallId"] == call["toolCallId"]]
    assert [each["status"] for each in ended] == ["in_progress", "completed"]


def test_each_is_asked_singly(agent: Any, folder: Path) -> None:
    found, message, prompt = agent(*SIX)
    choose(found, message, "each")
    for _ in SIX:
        choose(found, question(found), "allow_once")
    found.answer(prompt)
    assert len(titles(found)) == 7
    assert titles(found)[2] == "Edit a.txt (+1 −1)"
    assert (folder / "d.txt").exists()


def test_a_rejection_of_all_has_its_reason_at_each(agent: Any, folder: Path) -> None:
    found, message, prompt = agent(*SIX)
    choose(found, message, "reject_once", reason="not now")
    found.answer(prompt)
    assert len(titles(found)) == 1
    # The second edit needs the first.
    assert len(failures(found)) == 6
    assert sum("not now" in each for each in failures(found)) == 5
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


def test_what_changed_since_it_was_shown_asks_again(agent: Any, folder: Path) -> None:
    found, message, prompt = agent(write("b.txt"), edit("a.txt", "one", "1"), write("c.txt"))
    (folder / "a.txt").write_text("one\ntwo\nby somebody else\n")
    choose(found, message, "allow_once")
    again = question(found)
    assert again["params"]["toolCall"]["title"] == "Edit a.txt (+1 −1)"
    assert "by somebody else" in again["params"]["toolCall"]["content"][0]["newText"]
    choose(found, again, "reject_once")
    found.answer(prompt)
    assert (folder / "a.txt").read_text() == "one\ntwo\nby somebody else\n"
    assert (folder / "c.txt").exists()
    assert len(titles(found)) == 2


def test_an_answer_holds_for_its_utterance_alone(start: Start, folder: Path) -> None:
    same = ask(write("a.txt"), write("b.txt"))
    found = start([same, same, ask(write("a.txt", "x"), write("b.txt", "x")), END], **FILES)
    found.prompt(found.session(folder, mode="ask"))
    assert titles(found) == ["2 edits in 2 files (new, +2)", "2 edits in 2 files (+0 −0)", "2 edits in 2 files (+2 −2)"]


def test_only_edits_that_would_ask_are_in_the_question(start: Start, folder: Path) -> None:
    (folder / "src").mkdir()
    found = start(
        [ask(write("src/a.txt")), ask(write("src/b.txt"), write("c.txt"), write("src/d.txt"), write("e.txt")), END],
        **FILES,
    )
    found.permit = "allow_always"
    session = found.session(folder, mode="ask")
    prompt = found.start_prompt(session)
    found.permit = None
    message = question(found)
    choose(found, message, "allow_always")
    message = question(found)
    assert [Path(each["path"]).name for each in message["params"]["toolCall"]["content"]] == ["c.txt", "e.txt"]
    choose(found, message, "allow_once")
    found.answer(prompt)


@pytest.mark.parametrize(("mode", "made"), [("trusted", True), ("read-only", False)])
def test_a_new_mode_settles_the_question(agent: Any, folder: Path, mode: str, made: bool) -> None:
    found, message, prompt = agent(*SIX, wards=[{"max_turns": 9}, {"bash_writable_paths": ["."]}])
    found.call("session/set_mode", {"sessionId": message["params"]["sessionId"], "modeId": mode})
    if not any(m.get("id") == prompt and "method" not in m for m in found.seen):
        found.answer(prompt)
    assert (folder / "d.txt").exists() == made
    assert len(titles(found)) == 1


def test_a_cancelled_prompt_makes_no_edit(agent: Any, folder: Path) -> None:
    found, message, prompt = agent(*SIX)
    found.tell("session/cancel", {"sessionId": message["params"]["sessionId"]})
    found.send({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": {"outcome": "cancelled"}}})
    assert found.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert (folder / "a.txt").read_text() == "one\ntwo\n"
    assert len(titles(found)) == 1


class OneKey:
    """A person who presses one key (`crystals.human.Typing`)."""

    def __init__(self, pressed: str) -> None:
        self.pressed = pressed

    def write(self, text: str) -> None:
        raise AssertionError("nothing is written here")

    async def line(self, prompt: str) -> str:
        raise AssertionError("one key answers")

    async def key(self, prompt: str, keys: str) -> str:
        assert self.pressed in keys
        return self.pressed


def test_the_terminal_has_keys_for_all_and_for_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from cantrip_acp.acp.permissions.interceptor import Question
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.permissions import TerminalQuestions
    from cantrip_acp.crystals import human
    from cantrip_acp.types.records import Diff

    shown = io.StringIO()
    asked = Question(
        call_id="c", tool="edits", title="2 edits in 2 files", kind="edit", pattern="", pattern_text="", raw_input=None,
        entity_id="e", cast_id="c", diffs=(Diff(f"{folder}/a", None, "x\n"), Diff(f"{folder}/b", "x\n", "y\n")), edits=2,
    )  # fmt: skip
    monkeypatch.setattr(human, "typing_at", lambda question: OneKey("e"))
    decision = anyio.run(TerminalQuestions(Screen(shown), folder).ask, asked)
    assert (decision.answer, decision.reason) == ("each", "")
    text = shown.getvalue()
    assert all(words in text for words in ("2 edits in 2 files", "+x", "-x", "+y", "y Allow all", "e Look at each"))
    assert "n Reject all" in text


FAMILY: dict[str, Any] = {
    "gates": ["done", "write_file", "edit_file", "call_agent", "call_agent_batch"],
    "wards": [{"max_turns": 9}, {"max_depth": 1}],
}


def delegate(gate: str, **args: Any) -> dict[str, Any]:
    return ask({"gate": gate, "args": args})


def test_a_childs_edits_are_one_question_too(start: Start, folder: Path) -> None:
    finished = ask({"gate": "done", "args": {"answer": "ok"}})
    edits = ask(write("a.txt", "one\n"), edit("a.txt", "one", "1"), write("b.txt"))
    found = start([delegate("call_agent", intent="Edit them"), edits, finished, edits, END], **FAMILY)
    found.permit = None
    prompt = found.start_prompt(found.session(folder, mode="ask"))
    message = question(found)
    call = message["params"]["toolCall"]
    assert call["title"] == "3 edits in 2 files (+3 −1) (child)"
    assert len(call["content"]) == 3
    # The client knows the call, and which child makes it.
    known = next(each for each in found.updates("tool_call") if each["toolCallId"] == call["toolCallId"])
    assert known["_meta"]["cantrip"]["child"]
    assert not (folder / "b.txt").exists()
    choose(found, message, "allow_once")
    # The parent's own ones have a question of their own.
    second = question(found)
    assert second["params"]["toolCall"]["title"].startswith("3 edits in 2 files")
    assert (folder / "a.txt").read_text() == "1\n"
    choose(found, second, "reject_once")
    found.answer(prompt)
    assert len(titles(found)) == 2
    ended = [u for u in found.updates("tool_call_update") if u["toolCallId"] == call["toolCallId"]]
    assert [each["status"] for each in ended] == ["in_progress", "completed"]


def test_children_beside_each_other_ask_about_their_own_edits(start: Start, folder: Path) -> None:
    def edits(name: str) -> dict[str, Any]:
        calls = [write(f"{name}1.txt", name), write(f"{name}2.txt", name)]
        return {"when": f"Edit {name}", "tool_calls": calls}

    def finished(name: str) -> dict[str, Any]:
        return {"when": f"Edit {name}", "tool_calls": [{"gate": "done", "args": {"answer": name}}]}

    batch = {"when": "go", **delegate("call_agent_batch", requests=["Edit x", "Edit y"])}
    found = start([batch, *(make(name) for name in "xy" for make in (edits, finished)), END], **FAMILY)
    found.permit = None
    prompt = found.start_prompt(found.session(folder, mode="ask"))
    asked = [question(found), question(found)]
    shown = [{Path(each["path"]).name for each in each["params"]["toolCall"]["content"]} for each in asked]
    assert sorted(map(sorted, shown)) == [["x1.txt", "x2.txt"], ["y1.txt", "y2.txt"]]
    for message, names in zip(asked, shown, strict=True):
        choose(found, message, "allow_once" if "x1.txt" in names else "reject_once")
    found.answer(prompt)
    assert len(titles(found)) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["x1.txt", "x2.txt"]
