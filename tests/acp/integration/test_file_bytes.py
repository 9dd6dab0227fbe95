"""An edit changes the bytes that it must and no others, also through an editor with another view of the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acp.integration.test_files import BOTH, END, call, results
from tests.support.acp_client import Problem, RawClient
from tests.support.fixtures.acp import Start

GATES = ["done", "read_file", "write_file", "edit_file"]
OPEN = [{"max_turns": 20}, {"bash_writable_paths": ["workspace"]}]
EDIT = call("edit_file", path="f.txt", old_text="x = 1", new_text="x = 2")


class Buffers:
    """An editor that opened every file as UTF-8 when it was first asked for, and does not watch the disk."""

    def __init__(self, agent: RawClient, *, lines: str = "as they are", codec: str = "utf-8") -> None:
        self.buffers: dict[str, str] = {}
        self.written: list[str] = []
        self._lines, self._codec = lines, codec
        agent.services |= {"fs/read_text_file": self.read, "fs/write_text_file": self.write}

    def open(self, path: Path) -> str:
        if str(path) not in self.buffers:
            if not path.exists():
                raise Problem(f"no such file {path}", -32002)
            text = path.read_bytes().decode(self._codec, "replace").removeprefix("\ufeff")
            self.buffers[str(path)] = text.replace("\r\n", "\n") if self._lines == "\n" else text
        return self.buffers[str(path)]

    def read(self, params: dict[str, Any]) -> Any:
        return {"content": self.open(Path(params["path"]))}

    def write(self, params: dict[str, Any]) -> Any:
        self.written.append(params["path"])
        self.buffers[params["path"]] = params["content"]
        Path(params["path"]).write_bytes(params["content"].encode(self._codec))


def session(start: Start, folder: Path, *steps: Any, mode: str = "sandboxed", **options: Any) -> tuple[Any, Any]:
    agent = start([*steps, END], gates=GATES, capabilities=BOTH, **options)
    return agent, agent.session(folder, mode=mode)


FILES = {
    "utf-8": "x = 1\n# café\n".encode(),
    "a byte order mark": "\ufeffx = 1\n# café\n".encode(),
    "latin-1": "x = 1\n# café é è\n".encode("latin-1"),
    "windows-1252": "x = 1\n# “café” €\n".encode("cp1252"),
    "gbk": "x = 1\n# 中文注释\n".encode("gbk"),
    "shift-jis": "x = 1\n# 日本語のコメント\n".encode("shift_jis"),
    "utf-16": "x = 1\n# café\n".encode("utf-16"),
    "broken utf-8": "x = 1\n# héé".encode() + b"\xe9 \xff\n",
    "crlf": b"x = 1\r\ny = 2\r\n",
    "mixed ends": b"x = 1\r\ny = 2\nz = 3\r\n",
}


def edited(data: bytes) -> bytes:
    old, new = (
        ("x = 1".encode("utf-16-le"), "x = 2".encode("utf-16-le")) if data[:2] == b"\xff\xfe" else (b"x = 1", b"x = 2")
    )
    return data.replace(old, new)


@pytest.mark.parametrize("lines", ["as they are", "\n"])
@pytest.mark.parametrize("kind", FILES)
def test_an_edit_through_an_editor_changes_one_character(start: Start, folder: Path, kind: str, lines: str) -> None:
    path = folder / "f.txt"
    path.write_bytes(FILES[kind])
    agent, opened = session(start, folder, call("read_file", path="f.txt"), EDIT)
    Buffers(agent, lines=lines)
    agent.prompt(opened)
    assert path.read_bytes() == edited(FILES[kind])
    assert "\ufffd" not in results(agent)[0] or kind == "broken utf-8"
    diffs = [c for u in agent.updates("tool_call_update") for c in u.get("content") or () if c.get("type") == "diff"]
    assert diffs
    assert all("\ufffd" not in each["newText"] for each in diffs) or kind == "broken utf-8"


@pytest.mark.parametrize("kind", ["latin-1", "gbk"])
def test_unsaved_changes_over_wrong_letters_are_refused_with_the_reason(start: Start, folder: Path, kind: str) -> None:
    path = folder / "f.txt"
    path.write_bytes(FILES[kind])
    agent, opened = session(start, folder, EDIT)
    editor = Buffers(agent)
    editor.open(path)
    editor.buffers[str(path)] += "my unsaved line\n"
    agent.prompt(opened)
    assert path.read_bytes() == FILES[kind]
    assert "another encoding; nothing was changed" in results(agent)[0]
    assert not editor.written


@pytest.mark.parametrize("codec", ["gbk", "shift_jis"])
def test_an_editor_that_knows_the_encoding_is_used(start: Start, folder: Path, codec: str) -> None:
    path = folder / "f.txt"
    path.write_bytes(FILES["gbk" if codec == "gbk" else "shift-jis"])
    step = call("edit_file", path="f.txt", old_text="x = 1", new_text="x = 1 # 中")
    agent, opened = session(start, folder, call("read_file", path="f.txt"), step)
    Buffers(agent, codec=codec)
    agent.prompt(opened)
    assert "文" in results(agent)[0] or "日本" in results(agent)[0]
    assert "x = 1 # 中" in path.read_bytes().decode(codec)


@pytest.mark.parametrize("kind", ["latin-1", "gbk", "utf-16"])
def test_a_file_that_the_editor_cannot_read_is_the_disks(start: Start, folder: Path, kind: str) -> None:
    """As VS Code does with a file that is not open."""
    path = folder / "f.txt"
    path.write_bytes(FILES[kind])
    agent, opened = session(start, folder, call("read_file", path="f.txt"), EDIT)

    def refuse(params: dict[str, Any]) -> Any:
        raise Problem("is not text in UTF-8", -32602)

    agent.services |= {"fs/read_text_file": refuse, "fs/write_text_file": refuse}
    agent.prompt(opened)
    assert path.read_bytes() == edited(FILES[kind])


def test_unsaved_text_with_a_mark_keeps_it(start: Start, folder: Path) -> None:
    path = folder / "f.txt"
    path.write_bytes(FILES["a byte order mark"])
    agent, opened = session(start, folder, EDIT)
    editor = Buffers(agent)
    editor.open(path)
    editor.buffers[str(path)] += "mine\n"
    agent.prompt(opened)
    assert path.read_bytes() == edited(FILES["a byte order mark"]) + b"mine\n"


@pytest.mark.sandbox
@pytest.mark.parametrize("before", [[], [call("read_file", path="f.txt")]], ids=["new to the entity", "read before"])
def test_the_disk_counts_where_the_editor_shows_an_older_text(start: Start, folder: Path, before: list[Any]) -> None:
    path = folder / "f.txt"
    path.write_text("version = 1\nx = 1\n")
    steps = [*before, call("bash", command="sed -i 's/version = 1/version = 2/' f.txt"), call("bash", command="read_file f.txt"),
             call("bash", command="edit_file f.txt 'x = 1' 'x = 2'")]  # fmt: skip
    steps = [*(call("bash", command="read_file f.txt") for _ in before), *steps[len(before) :]]
    agent, opened = session(start, folder, *steps, medium="bash", wards=OPEN)
    editor = Buffers(agent)
    editor.open(path)
    agent.prompt(opened)
    assert path.read_text() == "version = 2\nx = 2\n"
    said = "\n".join(str(each) for each in results(agent))
    assert "version = 2" in said
    assert "The editor still shows an older text of this file" in said
    assert "the editor showed an older text than the disk" in said


@pytest.mark.parametrize("by", ["write_file", "edit_file"])
def test_who_writes_through_an_editor_that_formats_is_told(start: Start, folder: Path, by: str) -> None:
    (folder / "f.txt").write_text("x = 1\ny=2\n")
    whole = call("write_file", path="f.txt", content="x = 2\ny=2\n")
    steps = [
        call("read_file", path="f.txt"),
        whole if by == "write_file" else EDIT,
        call("read_file", path="f.txt"),
        whole,
    ]
    agent, opened = session(start, folder, *steps, wards=OPEN)
    editor = Buffers(agent)

    def formats(params: dict[str, Any]) -> Any:
        editor.write({**params, "content": params["content"].replace("y=2", "y = 2")})

    agent.services["fs/write_text_file"] = formats
    agent.prompt(opened)
    _, first, read, second = results(agent)
    assert "the editor changed the text while it saved it, as a formatter does: read the file again" in first
    assert read == "x = 2\ny = 2\n"
    assert "was changed since you read it" not in second
    assert (folder / "f.txt").read_text() == "x = 2\ny = 2\n"
    # What the formatter did belongs to the change.
    agent.prompt(opened, "/undo")
    assert (folder / "f.txt").read_text() == "x = 1\ny=2\n"


# --- text that changed since it was read or shown

Act = Callable[[Path], None]


def adds_a_line(path: Path) -> None:
    path.write_text(path.read_text() + "user line\n")


@pytest.mark.parametrize("through", ["disk", "editor"])
@pytest.mark.parametrize("second", ["write_file", "edit_file"])
def test_a_file_that_changed_since_it_was_read_is_not_replaced(
    start: Start, folder: Path, second: str, through: str
) -> None:
    path = folder / "f.txt"
    path.write_text("x = 1\n")
    whole = call("write_file", path="f.txt", content="whole\n")
    steps = [
        call("read_file", path="f.txt"),
        END,
        whole if second == "write_file" else EDIT,
        call("read_file", path="f.txt"),
        whole,
    ]
    agent = start([*steps, END], gates=GATES, wards=OPEN, **({"capabilities": BOTH} if through == "editor" else {}))
    opened = agent.session(folder, mode="sandboxed")
    editor = Buffers(agent)
    agent.prompt(opened)
    adds_a_line(path)
    editor.buffers.clear()
    agent.prompt(opened)
    first = results(agent)[1]
    if second == "write_file":
        assert "'f.txt' was changed since you read it; nothing was written" in first
        assert "read it again" in first
    else:
        # An edit is made of the present text.
        assert "edited f.txt" in first
        assert "user line" in results(agent)[2]
    # What was read again may be replaced.
    assert "updated f.txt" in results(agent)[3]
    assert path.read_text() == "whole\n"


@pytest.mark.parametrize("through", ["disk", "editor", "unsaved"])
def test_a_file_that_changes_while_the_user_looks_at_its_diff_is_not_replaced(
    start: Start, folder: Path, through: str
) -> None:
    path = folder / "f.txt"
    path.write_text("x = 1\n")
    step = call("write_file", path="f.txt", content="whole\n")
    agent = start([step, END], gates=GATES, **({} if through == "disk" else {"capabilities": BOTH}))
    editor = Buffers(agent)

    def answer(params: dict[str, Any]) -> Any:
        if through == "unsaved":
            editor.buffers[str(path)] = "x = 1\nunsaved\n"
        else:
            adds_a_line(path)
            editor.buffers.clear()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    agent.services["session/request_permission"] = answer
    opened = agent.session(folder, mode="ask")
    agent.prompt(opened)
    assert "was changed while the change was being allowed; nothing was written" in results(agent)[-1]
    assert path.read_text() == ("x = 1\n" if through == "unsaved" else "x = 1\nuser line\n")


@pytest.mark.parametrize("changed", [True, False])
def test_what_was_read_before_a_restart_counts(start: Start, folder: Path, changed: bool) -> None:
    path = folder / "f.txt"
    path.write_text("x = 1\n")
    steps = [call("read_file", path="f.txt"), END, call("write_file", path="f.txt", content="whole\n"), END]
    first = start(steps, gates=GATES, wards=OPEN)
    opened = first.session(folder, mode="sandboxed")
    first.prompt(opened)
    first.close()
    if changed:
        adds_a_line(path)
    again = start(steps, gates=GATES, wards=OPEN)
    again.call("session/load", {"sessionId": opened, "cwd": str(folder), "mcpServers": []})
    again.prompt(opened)
    assert ("was changed since you read it" in str(results(again)[-1])) == changed
    assert path.read_text() == ("x = 1\nuser line\n" if changed else "whole\n")


def test_own_writes_and_files_never_read_are_written_as_before(start: Start, folder: Path) -> None:
    (folder / "f.txt").write_text("x = 1\n")
    (folder / "g.txt").write_text("old\n")
    steps = [call("read_file", path="f.txt", limit=1), EDIT, call("write_file", path="f.txt", content="a\n"),
             call("write_file", path="f.txt", content="b\n"), call("write_file", path="g.txt", content="new\n")]  # fmt: skip
    agent = start([*steps, END], gates=GATES)
    opened = agent.session(folder, mode="sandboxed")
    agent.prompt(opened)
    assert [each.split()[0] for each in results(agent)[1:]] == ["edited", "updated", "updated", "updated"]
    assert (folder / "f.txt").read_text() == "b\n"
