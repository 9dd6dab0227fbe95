"""Files through the client (ACP, File System): what is open and not saved is seen, and the gates' rules hold all the same."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import SOON, Problem, RawClient
from tests.support.fixtures.acp import Start

BOTH = {"fs": {"readTextFile": True, "writeTextFile": True}}
GATES = ["done", "read_file", "write_file", "edit_file", "search", "list_dir"]
END = {"content": "Done."}


class Editor:
    """An editor's buffers: those that are open and not saved; the others are the disk's."""

    def __init__(self, agent: RawClient, *, saves: bool = True, **unsaved: str) -> None:
        self.open = {name.replace("__", "/"): text for name, text in unsaved.items()}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.saves = saves
        agent.services = {"fs/read_text_file": self.read, "fs/write_text_file": self.write}

    def read(self, params: dict[str, Any]) -> Any:
        self.calls.append(("read", params))
        path = Path(params["path"])
        text = self.open.get(str(path))
        if text is None:
            if not path.exists():
                raise Problem(f"no such file {path}", -32002)
            text = path.read_text()
        lines = text.splitlines(keepends=True)
        first = (params.get("line") or 1) - 1
        limit = params.get("limit")
        return {"content": "".join(lines[first:] if limit is None else lines[first : first + limit])}

    def write(self, params: dict[str, Any]) -> Any:
        self.calls.append(("write", params))
        if self.saves:
            Path(params["path"]).write_text(params["content"])
            self.open.pop(params["path"], None)
        else:
            self.open[params["path"]] = params["content"]
        return None

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.calls]


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def results(agent: RawClient) -> list[Any]:
    return [u["rawOutput"]["output"] for u in agent.updates("tool_call_update") if "rawOutput" in u]


def run(
    start: Start, folder: Path, *steps: dict[str, Any], capabilities: Any = BOTH, **options: Any
) -> tuple[Any, Any]:
    """An agent at a session's beginning, and that session."""
    agent = start([*steps, END], capabilities=capabilities, gates=options.pop("gates", GATES), **options)
    return agent, agent.session(folder)


def test_unsaved_text_is_read_by_lines_too(start: Start, folder: Path) -> None:
    path = folder / "a.txt"
    path.write_text("saved\n")
    agent, session = run(
        start, folder, call("read_file", path="a.txt"), call("read_file", path="./a.txt", offset=2, limit=1),
        call("read_file", path="a.txt", offset=9), call("read_file", path="new.txt"), call("read_file", path="absent.txt"),
    )  # fmt: skip
    editor = Editor(agent)
    editor.open = {str(path): "one\ntwo\nthree\n", str(folder / "new.txt"): "never saved\n"}
    agent.prompt(session)
    found = results(agent)
    assert found[:2] == ["one\ntwo\nthree\n", "two\n"]
    assert "has 3 lines; offset 9 is past its end" in found[2]
    assert found[3] == "never saved\n"
    assert "no such file: 'absent.txt'" in found[4]
    # All of it, to compare it with the disk.
    assert editor.calls[1][1] == {"sessionId": session, "path": str(path)}
    assert {params["path"] for _, params in editor.calls} == {str(path), f"{folder}/new.txt", f"{folder}/absent.txt"}
    update = next(u for u in agent.updates("tool_call_update") if u.get("rawOutput") == {"output": "two\n"})
    assert update["locations"] == [{"path": str(path), "line": 2}]


def test_an_edit_is_made_of_what_the_client_sees(start: Start, folder: Path) -> None:
    path = folder / "src" / "a.py"
    path.parent.mkdir()
    path.write_text("old = 1\n")
    agent, session = run(start, folder, call("edit_file", path="src/a.py", old_text="two", new_text="2"))
    agent.permit = None
    editor = Editor(agent)
    editor.open = {str(path): "# unsaved\none\ntwo\n"}
    prompt = agent.start_prompt(session)
    asked = agent.until(lambda m: m.get("method") == "session/request_permission")
    diff = {"type": "diff", "path": str(path), "oldText": "# unsaved\none\ntwo\n", "newText": "# unsaved\none\n2\n"}
    assert asked["params"]["toolCall"]["content"] == [diff]
    assert editor.kinds() == ["read"]
    agent.decide(asked, "allow_once")
    agent.answer(prompt)
    assert results(agent) == ["edited src/a.py at line 3"]
    last = agent.updates("tool_call_update")[-1]
    assert (last["content"], last["locations"]) == ([diff], [{"path": str(path), "line": 3}])
    assert editor.kinds() == ["read", "read", "write"]
    assert path.read_text() == "# unsaved\none\n2\n"


def test_files_are_written_by_the_client(start: Start, folder: Path) -> None:
    (folder / "b.txt").write_text("same\nbefore\n")
    agent, session = run(
        start, folder, call("write_file", path="deep/er/new.txt", content="fresh\n"),
        call("write_file", path="b.txt", content="same\nafter\n"), call("write_file", path="b.txt", content="same\nafter\n"),
    )  # fmt: skip
    editor = Editor(agent)
    agent.prompt(session)
    assert results(agent) == [
        "created deep/er/new.txt (1 line, 6 bytes)", "updated b.txt (2 lines, 11 bytes)",
        "unchanged: b.txt (2 lines, 11 bytes)",
    ]  # fmt: skip
    assert [params["path"] for kind, params in editor.calls if kind == "write"] == [
        f"{folder}/deep/er/new.txt", f"{folder}/b.txt",
    ]  # fmt: skip
    assert (folder / "deep/er/new.txt").read_text() == "fresh\n"
    assert [u["locations"] for u in agent.updates("tool_call_update") if "updated" in str(u.get("rawOutput"))] == [
        [{"path": f"{folder}/b.txt", "line": 2}]
    ]


def test_what_is_not_saved_is_said(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("needle saved\n")
    agent, session = run(
        start, folder, call("write_file", path="a.txt", content="needle unsaved\n"), call("search", pattern="needle"),
        call("read_file", path="a.txt"),
    )  # fmt: skip
    Editor(agent, saves=False)
    agent.prompt(session)
    written, found, read = results(agent)
    assert "which has not saved it yet: commands still see the old file" in written
    assert found.startswith(
        "a.txt:1:needle saved\n[only saved text was searched; these files have unsaved changes in the editor"
    )
    assert found.endswith("which read_file sees: a.txt]")
    assert read == "needle unsaved\n"
    assert (folder / "a.txt").read_text() == "needle saved\n"


def test_a_gates_rules_hold_before_the_client_is_asked(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside.txt")
    (folder / ".env").write_text("KEY=1")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    os.mkfifo(folder / "pipe")
    locked = folder / "locked.pem"
    locked.write_text("key")
    locked.chmod(0o600)
    steps = [
        call("read_file", path=str(tmp_path / "outside.txt")), call("read_file", path="../outside.txt"),
        call("read_file", path="link"), call("read_file", path=".env"), call("read_file", path="picture.png"),
        call("read_file", path="pipe"), call("read_file", path="locked.pem"), call("write_file", path=".git/hooks/x", content="x"),
        call("write_file", path=".vscode/tasks.json", content="x"), call("write_file", path="../x", content="x"),
        call("edit_file", path=".env", old_text="1", new_text="2"),
        call("write_file", path="folder/", content="x"),
    ]  # fmt: skip
    agent, session = run(start, folder, *steps)
    editor = Editor(agent)
    agent.prompt(session)
    assert len(results(agent)) == len(steps)
    assert editor.calls == []
    for text, expected in zip(
        results(agent),
        ["outside", "outside", "outside", "hidden", "[image: ", "a pipe", "hidden", "protected", "protected", "outside", "hidden",
         "names a folder"],
        strict=True,
    ):  # fmt: skip
        assert expected in text
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("answer", [None, 1, "text", {}, {"content": None}, {"content": ["a"]}, []])
def test_an_answer_of_the_wrong_shape_is_an_observation(start: Start, folder: Path, answer: Any) -> None:
    (folder / "a.txt").write_text("saved\n")
    agent, session = run(
        start, folder, call("read_file", path="a.txt"), call("edit_file", path="a.txt", old_text="saved", new_text="x")
    )
    agent.services = {"fs/read_text_file": lambda params: answer}
    assert agent.prompt(session)["stopReason"] == "end_turn"
    assert all(
        "the editor refused, reading 'a.txt': the answer to fs/read_text_file has the wrong shape" in r
        for r in results(agent)
    )
    assert (folder / "a.txt").read_text() == "saved\n"


def test_more_than_was_asked_for_is_cut(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("")
    agent, session = run(
        start, folder, call("read_file", path="a.txt", offset=2, limit=2), call("read_file", path="a.txt")
    )
    many = "".join(f"{n}\n" for n in range(1, 200_000))
    agent.services = {"fs/read_text_file": lambda params: {"content": many}}
    agent.prompt(session)
    few, cut = results(agent)
    assert few == "2\n3\n"
    assert len(cut) < 300_000
    assert "read on with offset" in cut
    edit = {"gate": "edit_file", "args": {"path": "a.txt", "old_text": "x", "new_text": "y"}}
    agent, session = run(start, folder, {"tool_calls": [edit]})
    agent.services = {"fs/read_text_file": lambda params: {"content": "x" * 20_000_000}}
    agent.prompt(session)
    assert "larger than the 16,777,216 bytes" in results(agent)[0]


def test_a_client_that_fails_is_an_observation(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    agent, session = run(
        start, folder, call("read_file", path="a.txt"), call("edit_file", path="a.txt", old_text="saved", new_text="x"),
        call("write_file", path="a.txt", content="new\n"),
    )  # fmt: skip

    def fail(params: dict[str, Any]) -> Any:
        raise Problem("buffer is\nbusy " + "x" * 5000)

    agent.services = {"fs/read_text_file": fail, "fs/write_text_file": fail}
    agent.prompt(session)
    assert ["the editor refused, reading" in r for r in results(agent)] == [True, True, False]
    assert results(agent)[2].startswith("the editor refused, writing 'a.txt': buffer is busy xxx")
    assert all(len(result) < 500 for result in results(agent))
    assert (folder / "a.txt").read_text() == "saved\n"


def test_a_client_without_the_methods_that_it_offers(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    agent, session = run(
        start, folder, call("read_file", path="a.txt"), call("edit_file", path="a.txt", old_text="saved", new_text="x")
    )

    def missing(params: dict[str, Any]) -> Any:
        raise Problem("Method not found", -32601)

    agent.services = {"fs/read_text_file": missing, "fs/write_text_file": missing}
    agent.prompt(session)
    assert results(agent) == ["saved\n", "edited a.txt at line 1"]
    assert (folder / "a.txt").read_text() == "x\n"


def test_reading_alone_never_overwrites_what_is_not_saved(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    (folder / "b.txt").write_text("saved\n")
    steps = [
        call("edit_file", path="a.txt", old_text="typed", new_text="x"), call("write_file", path="a.txt", content="x"),
        call("edit_file", path="b.txt", old_text="saved", new_text="x"),
    ]  # fmt: skip
    agent, session = run(start, folder, *steps, capabilities={"fs": {"readTextFile": True}})
    editor = Editor(agent)
    editor.open = {str(folder / "a.txt"): "typed\n"}
    agent.prompt(session)
    assert ["unsaved changes" in result for result in results(agent)] == [True, True, False]
    assert (folder / "a.txt").read_text() == "saved\n"
    assert (folder / "b.txt").read_text() == "x\n"


def test_nothing_is_asked_of_a_client_that_offers_nothing(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    offers: list[dict[str, Any]] = [{}, {"fs": {}}, {"fs": {"readTextFile": "yes", "writeTextFile": 1}}, {"fs": None}]
    for capabilities in offers:
        agent, session = run(start, folder, call("read_file", path="a.txt"), capabilities=capabilities)
        agent.prompt(session)
        assert results(agent) == ["saved\n"]


def test_files_elsewhere_are_the_disks(start: Start, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("disk\n")
    gates = ["done", {"name": "read_file", "root": str(other)}]
    agent, session = run(start, folder, call("read_file", path="a.txt"), gates=gates)
    editor = Editor(agent)
    agent.prompt(session)
    assert (results(agent), editor.calls) == (["disk\n"], [])
    agent = start([call("read_file", path=f"{other}/a.txt"), END], capabilities=BOTH, gates=GATES)
    editor = Editor(agent)
    editor.open = {str(other / "a.txt"): "open\n"}
    agent.prompt(agent.session(folder, additionalDirectories=[str(other)]))
    assert results(agent) == ["open\n"]


def test_a_cancel_ends_the_wait_for_a_client(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    agent, session = run(start, folder, call("read_file", path="a.txt"))
    prompt = agent.start_prompt(session)
    request = agent.until(lambda m: m.get("method") == "fs/read_text_file")
    began = time.monotonic()
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert time.monotonic() - began < SOON
    told = next(m for m in agent.seen if m.get("method") == "$/cancel_request")
    assert told["params"] == {"requestId": request["id"]}
    agent.send({"jsonrpc": "2.0", "id": request["id"], "result": {"content": "late"}})
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.sandbox
def test_a_cells_gates_take_the_same_way(start: Start, folder: Path) -> None:
    path = folder / "a.txt"
    path.write_text("saved\n")
    cell = "text = read_file('a.txt')\nwrite_file('a.txt', text + 'more\\n')\nprint(text)"
    agent, session = run(start, folder, {"code": cell}, medium="code")
    editor = Editor(agent)
    editor.open = {str(path): "typed\n"}
    agent.prompt(session)
    assert [params["path"] for _, params in editor.calls][-1] == str(path)
    assert path.read_text() == "typed\nmore\n"
    assert any("typed" in json.dumps(update.get("rawOutput")) for update in agent.updates("tool_call_update"))
