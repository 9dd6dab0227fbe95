"""Whose a change is: undo takes back what the entity did, and leaves what the user saved while it worked."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.files.paths import state_dir
from tests.acp.integration.test_files import END, call
from tests.acp.integration.test_undo import says
from tests.support.fixtures.acp import Start

GATES = ["done", "read_file", "write_file", "edit_file", "run_tests"]
OPEN = [{"max_turns": 20}, {"bash_writable_paths": ["workspace"]}]


def bash(command: str) -> dict[str, Any]:
    return call("bash", command=command)


def python(code: str) -> dict[str, Any]:
    return call("python", code=code)


def when(seen: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something as soon as a file is there, as a person who works beside the agent."""

    def wait() -> None:
        until = time.monotonic() + 60
        while not seen.exists() and time.monotonic() < until:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


class Person:
    """A person who saves a file of their own and makes another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mine.txt").write_text("before\n")

    def save(self) -> None:
        (self.folder / "mine.txt").write_text("my work\n")
        (self.folder / "new_mine.txt").write_text("my new file\n")

    def check(self) -> None:
        assert (self.folder / "mine.txt").read_text() == "my work\n"
        assert (self.folder / "new_mine.txt").read_text() == "my new file\n"


def listed(agent: Any, session: str) -> dict[str, bool]:
    """The files that the entity changed, each with whether perhaps the user did."""
    return {
        each["path"]: each["perhapsYours"] for each in agent.call("_cantrip/changes", {"sessionId": session})["files"]
    }


# --- ignore rules that go away


RULES = {
    "an edit": [call("edit_file", path=".gitignore", old_text="data.csv\nkeep/\n", new_text="*.tmp\n")],
    "an empty file": [call("write_file", path=".gitignore", content="")],
    "an exception": [call("edit_file", path=".gitignore", old_text="keep/\n", new_text="!data.csv\n")],
    "rm": [bash("rm .gitignore")],
    "sed": [bash("sed -i '/data.csv/d; /keep/d' .gitignore")],
    "rm, slow": [bash("sleep 0.5; rm .gitignore; echo made > made.txt")],
}


@pytest.mark.sandbox
@pytest.mark.parametrize("git", [True, False], ids=["git", "no git"])
@pytest.mark.parametrize("by", RULES)
def test_files_that_stop_being_ignored_are_nobodys(start: Start, folder: Path, by: str, git: bool) -> None:
    if git:
        subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("data.csv\nkeep/\n")
    (folder / "data.csv").write_text("irreplaceable\n")
    (folder / "keep" / "sub").mkdir(parents=True)
    for name in ("one", "sub/two"):
        (folder / "keep" / name).write_text(name)
    shell = "command" in str(RULES[by])
    agent = start([*RULES[by], END], gates=GATES, medium="bash" if shell else "conversation", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Tidy the ignore file.")
    assert (folder / ".gitignore").exists() != by.startswith("rm")
    assert set(listed(agent, session)) == {".gitignore"} | ({"made.txt"} if "slow" in by else set())
    says(agent, session, "/undo --force")
    assert (folder / ".gitignore").read_text() == "data.csv\nkeep/\n"
    assert (folder / "data.csv").read_text() == "irreplaceable\n"
    assert [(folder / "keep" / name).read_text() for name in ("one", "sub/two")] == ["one", "sub/two"]
    assert not (folder / "made.txt").exists()
    says(agent, session, "/redo")
    says(agent, session, "/restore 0 --force")
    assert (folder / "data.csv").exists()


def test_an_ignored_file_that_the_user_made_meanwhile_stays(start: Start, folder: Path) -> None:
    (folder / ".gitignore").write_text("data.csv\n")
    steps = [call("write_file", path="a.txt", content="a"), END, call("write_file", path=".gitignore", content=""), END]
    agent = start(steps, gates=GATES)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "First.")
    (folder / "data.csv").write_text("mine\n")
    agent.prompt(session, "Second.")
    says(agent, session, "/undo")
    assert (folder / "data.csv").read_text() == "mine\n"


def test_a_file_made_before_its_own_rule_goes_with_the_undo(start: Start, folder: Path) -> None:
    steps = [
        call("write_file", path="new.txt", content="a"),
        call("write_file", path=".gitignore", content="new.txt\n"),
    ]
    agent = start([*steps, END], gates=GATES)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    says(agent, session, "/undo")
    assert not (folder / "new.txt").exists()
    assert not (folder / ".gitignore").exists()


# --- what the user saves while a call is open


def test_what_the_user_saves_while_a_question_is_open_stays(start: Start, folder: Path) -> None:
    person = Person(folder)
    agent = start([call("write_file", path="a.txt", content="a"), END], gates=GATES)

    def answer(params: dict[str, Any]) -> Any:
        person.save()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    agent.services["session/request_permission"] = answer
    session = agent.session(folder, mode="ask")
    agent.prompt(session, "Go.")
    assert set(listed(agent, session)) == {"a.txt"}
    says(agent, session, "/undo")
    assert not (folder / "a.txt").exists()
    person.check()


@pytest.mark.sandbox
@pytest.mark.parametrize("command", ["sleep 1; cat a.txt", "touch a.txt", "echo a > a.txt"])
def test_what_the_user_saves_while_the_question_for_a_command_is_open_stays(
    start: Start, folder: Path, command: str
) -> None:
    person = Person(folder)
    agent = start([bash(command), END], gates=["done"], medium="bash", wards=OPEN)

    def answer(params: dict[str, Any]) -> Any:
        person.save()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    agent.services["session/request_permission"] = answer
    session = agent.session(folder, mode="ask")
    agent.prompt(session, "Go.")
    assert set(listed(agent, session)) <= {"a.txt"}
    says(agent, session, "/undo --force")
    person.check()


WITHOUT_WRITING = {
    "a cell": ("code", python("import time\nprint(open('/dev/null').read(), flush=True)\ntime.sleep(1)\nwrite_file('a.txt', 'a')")),
    "a cell with tests": ("code", python("write_file('test_x.py', 'import time\\ndef test_x(): time.sleep(1)')\nrun_tests()")),
    "a command": ("bash", bash("sleep 1; cantrip_write_file a.txt a || write_file a.txt a")),
    "a command that reads": ("bash-open", bash("sleep 1; cat mine.txt; ls | wc -l")),
    "a call of a gate": ("conversation", call("run_tests")),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("by", WITHOUT_WRITING)
def test_what_the_user_saves_while_something_runs_that_cannot_write_stays(start: Start, folder: Path, by: str) -> None:
    person = Person(folder)
    medium, step = WITHOUT_WRITING[by]
    (folder / "test_it.py").write_text("import time\ndef test_it(): time.sleep(1)\n")
    wards = OPEN if medium == "bash-open" else [{"max_turns": 20}]
    agent = start([step, END], gates=GATES, medium=medium.removesuffix("-open"), wards=wards)
    session = agent.session(folder, mode="sandboxed")
    thread = threading.Timer(0.7, person.save)
    running = agent.start_prompt(session, "Go.")
    thread.start()
    agent.answer(running)
    thread.join()
    assert not {"mine.txt", "new_mine.txt"} & set(listed(agent, session))
    says(agent, session, "/undo")
    person.check()
    assert not (folder / "a.txt").exists()


# --- what nobody can know


@pytest.fixture
def unsure(start: Start, folder: Path) -> tuple[Any, str, Person]:
    """A session in which the user saved files while a slow command wrote others. What it says that it writes is known."""
    person = Person(folder)
    (folder / "old.txt").write_text("old\n")
    (folder / "tool.py").write_text("open('made.txt', 'w').write('made')\n")
    command = "touch /tmp/x; echo go > began.txt; sleep 1; python3 tool.py; echo new > old.txt; rm began.txt"
    agent = start([bash(command), END], gates=["done"], medium="bash", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    thread = when(folder / "began.txt", person.save)
    agent.prompt(session, "Go.")
    thread.join()
    assert listed(agent, session) == {"old.txt": False, "made.txt": True, "mine.txt": True, "new_mine.txt": True}
    return agent, session, person


@pytest.mark.sandbox
def test_files_that_perhaps_the_user_changed_are_listed_apart_and_asked_about(
    unsure: tuple[Any, str, Person], folder: Path
) -> None:
    agent, session, person = unsure
    rows = says(agent, session, "/changes").split("\n")
    apart = next(n for n, row in enumerate(rows) if "perhaps by you" in row)
    assert next(n for n, row in enumerate(rows) if "old.txt" in row) < apart
    assert all(next(n for n, row in enumerate(rows) if name in row) > apart for name in ("made.txt", "`mine.txt"))
    asked: list[Any] = []

    def answer(params: dict[str, Any]) -> Any:
        asked.append(params)
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    agent.services["session/request_permission"] = answer
    told = says(agent, session, "/undo")
    assert asked[0]["toolCall"]["title"].startswith("These 3 files changed while a command ran, perhaps by you.")
    assert "Left as they are, because they may be yours" in told
    assert (folder / "old.txt").read_text() == "old\n"
    assert (folder / "made.txt").exists()
    person.check()


@pytest.mark.sandbox
def test_without_an_answer_they_are_left_and_with_force_or_by_name_restored(
    unsure: tuple[Any, str, Person], folder: Path
) -> None:
    agent, session, person = unsure
    agent.services["session/request_permission"] = lambda params: {"outcome": {"outcome": "cancelled"}}
    done = agent.call("_cantrip/undo", {"sessionId": session, "ask": False})
    assert {each["path"] for each in done["conflicts"]} == {"made.txt", "mine.txt", "new_mine.txt"}
    assert {each["path"] for each in done["restored"]} == {"old.txt"}
    person.check()
    # A person who names a file has answered.
    says(agent, session, "/undo made.txt")
    assert not (folder / "made.txt").exists()
    person.check()
    says(agent, session, "/restore 0 --force")
    assert (folder / "mine.txt").read_text() == "before\n"
    assert not (folder / "new_mine.txt").exists()
    says(agent, session, "/redo")
    person.check()


@pytest.mark.sandbox
def test_a_redo_brings_the_doubt_back(unsure: tuple[Any, str, Person], folder: Path) -> None:
    agent, session, person = unsure
    before = listed(agent, session)
    for undo in ("/undo --force", "/undo mine.txt"):
        says(agent, session, undo)
        says(agent, session, "/redo")
        assert listed(agent, session) == before
        agent.call("_cantrip/undo", {"sessionId": session, "ask": False})
        person.check()
        says(agent, session, "/redo")


@pytest.mark.sandbox
def test_undo_all_of_the_list_leaves_them_too(unsure: tuple[Any, str, Person], folder: Path) -> None:
    agent, session, person = unsure
    done = agent.call("_cantrip/undo", {"sessionId": session, "since": "start", "ask": False})
    assert {each["path"] for each in done["restored"]} == {"old.txt"}
    person.check()


# --- what cannot come back


@pytest.mark.sandbox
@pytest.mark.parametrize("command", ["rm -rf build keep.log", "rm -rf ./*", "mv build keep.log /tmp"])
def test_an_undo_names_the_ignored_files_that_stay_lost(start: Start, folder: Path, command: str) -> None:
    (folder / ".gitignore").write_text("build/\n*.log\n")
    (folder / "build").mkdir()
    (folder / "build" / "out").write_text("x")
    (folder / "keep.log").write_text("x")
    agent = start([bash(command), END], gates=["done"], medium="bash", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Clean.")
    told = says(agent, session, "/undo")
    assert "nothing to undo" not in told
    why = "its earlier content was not kept: ignored by git, so no copy was kept"
    assert f"`build`: {why}" in told
    # A copy was made of a file that the command names.
    assert (f"`keep.log`: {why}" in told) == ("keep.log" not in command)
    assert (folder / "keep.log").exists() == ("keep.log" in command)
    assert os.path.exists(folder / ".gitignore")


@pytest.mark.sandbox
def test_an_ignored_file_that_is_there_again_is_not_named(start: Start, folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "a.log").write_text("x")
    steps = [bash("rm *.log"), bash("echo again > a.log; echo b > b.txt")]
    agent = start([*steps, END], gates=["done"], medium="bash", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    assert "a.log" not in says(agent, session, "/undo")


IGNORED_WRITES = {
    "edit_file": [call("edit_file", path="data.csv", old_text="precious", new_text="gone")],
    "write_file": [call("write_file", path="data.csv", content="gone\n")],
    "by a link": [call("write_file", path="link", content="gone\n")],
    "in a folder": [call("write_file", path="keep/sub/two", content="gone\n")],
    "a new one": [
        call("write_file", path="new.tmp", content="x"),
        call("write_file", path="keep/deep/er/new", content="x"),
    ],
    "after its own rule": [
        call("write_file", path=".gitignore", content="*\n"),
        call("write_file", path="n.txt", content="x"),
    ],
    "echo": [bash("echo gone > data.csv")],
    "sed, slow": [bash("sleep 0.4; sed -i s/precious/gone/ data.csv keep/sub/two")],
    "rm": [bash("rm data.csv keep/one")],
    "cp": [bash("cp data.csv keep/one; cp data.csv keep/three")],
    "mv": [bash("mv keep/one data.csv")],
}


@pytest.mark.sandbox
@pytest.mark.parametrize("git", [True, False], ids=["git", "no git"])
@pytest.mark.parametrize("by", IGNORED_WRITES)
def test_an_ignored_file_that_the_entity_writes_comes_back(start: Start, folder: Path, by: str, git: bool) -> None:
    if git:
        subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("data.csv\nkeep/\n*.tmp\n")
    (folder / "data.csv").write_text("precious\n")
    (folder / "link").symlink_to("data.csv")
    (folder / "keep" / "sub").mkdir(parents=True)
    for name in ("one", "sub/two"):
        (folder / "keep" / name).write_text("precious\n")
    before = files(folder)
    shell = "command" in str(IGNORED_WRITES[by])
    agent = start([*IGNORED_WRITES[by], END], gates=GATES, medium="bash" if shell else "conversation", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Change it.")
    changed = files(folder)
    assert changed != before
    # What else is in an ignored folder is not looked at.
    (folder / "keep" / "other").write_text("mine\n")
    says(agent, session, "/undo")
    assert files(folder) == before | {"keep/other": "mine\n"}
    says(agent, session, "/redo")
    assert files(folder) == changed | {"keep/other": "mine\n"}
    agent.call("session/close", {"sessionId": session})
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    says(agent, session, "/undo")
    assert files(folder) == before | {"keep/other": "mine\n"}
    assert "keep/other" not in listed(agent, session)


def files(folder: Path) -> dict[str, str]:
    """The files of a folder with their texts."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / ".git"))
    return {str(path.relative_to(folder)): path.read_text() for path in found}


INTO = {
    "cp": ("cp a.txt docs", {"docs/a.txt"}),
    "mv": ("mv a.txt docs/", {"docs/a.txt", "a.txt"}),
    "cp to a path": ("cp a.txt {folder}/docs", {"docs/a.txt"}),
    "ln": ("ln -s ../a.txt docs", {"docs/a.txt"}),
    "touch": ("touch docs", set()),
    "a subshell": ("(cd docs; touch b); touch notes.md; rm -f notes.md", {"docs/b"}),
    "a here-document": ("cat > docs/b <<'X'\nrm docs/notes.md\nX", {"docs/b"}),
}


@pytest.mark.sandbox
@pytest.mark.parametrize("by", INTO)
def test_a_folder_into_which_a_command_writes_is_not_all_the_commands(start: Start, folder: Path, by: str) -> None:
    """What the user saves beside it, while the command runs, is perhaps the user's."""
    command, own = INTO[by]
    (folder / "docs").mkdir()
    (folder / "docs" / "notes.md").write_text("before\n")
    (folder / "a.txt").write_text("a\n")
    waits = "touch .started; while [ ! -e .saved ]; do sleep 0.02; done; sleep 0.4; rm .saved .started; "
    agent = start([bash(waits + command.format(folder=folder)), END], gates=GATES, medium="bash", wards=OPEN)

    def save() -> None:
        (folder / "docs" / "notes.md").write_text("my work\n")
        (folder / ".saved").write_text("")

    session = agent.session(folder, mode="sandboxed")
    saving = when(folder / ".started", save)
    agent.prompt(session, "Copy it.")
    saving.join()
    found = listed(agent, session)
    assert {path for path, perhaps in found.items() if not perhaps} >= own
    assert found["docs/notes.md"]
    says(agent, session, "/undo")
    assert (folder / "docs" / "notes.md").read_text() == "my work\n"
    assert (folder / "a.txt").read_text() == "a\n"
    assert [each.name for each in (folder / "docs").iterdir()] == ["notes.md"]


@pytest.mark.sandbox
@pytest.mark.parametrize("before", [True, False], ids=["linked before", "linked by a command"])
def test_a_change_by_another_name_of_the_same_file_is_undone(start: Start, folder: Path, before: bool) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("a\n")
    if before:
        os.link(folder / "sub" / "a.txt", folder / "other.txt")
    link = [] if before else [bash("ln sub/a.txt other.txt")]
    agent = start([*link, bash("echo more >> other.txt"), END], gates=["done"], medium="bash", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    assert set(listed(agent, session)) == {"other.txt", "sub/a.txt"}
    says(agent, session, "/undo")
    assert (folder / "sub" / "a.txt").read_text() == "a\n"
    assert (folder / "other.txt").exists() == before


def test_a_text_in_utf_16_is_merged_with_what_the_user_changed(start: Start, folder: Path) -> None:
    text = "one\r\ntwo é\r\nthree\r\nfour\r\n"
    (folder / "a.txt").write_bytes(text.encode("utf-16"))
    agent = start([call("edit_file", path="a.txt", old_text="one", new_text="ONE"), END], gates=GATES)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    (folder / "a.txt").write_bytes(text.replace("one", "ONE").replace("four", "mine").encode("utf-16"))
    assert "merged with your own changes" in says(agent, session, "/undo")
    assert (folder / "a.txt").read_bytes() == text.replace("four", "mine").encode("utf-16")


def test_a_conflict_in_a_file_without_lines_says_so(start: Start, folder: Path) -> None:
    agent = start([call("write_file", path="a.bin", content="b"), END], gates=GATES)
    (folder / "a.bin").write_text("a")
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    (folder / "a.bin").write_bytes(b"mine\0")
    assert "you changed it after the entity did (it is no text that can be merged)" in says(agent, session, "/undo")
    assert (folder / "a.bin").read_bytes() == b"mine\0"


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after another prompt and a restart"])
def test_who_deleted_the_copies_is_told_that_they_are_gone(start: Start, folder: Path, later: bool) -> None:
    """It would be wrong to say that nothing was changed."""
    (folder / "a.txt").write_text("a\n")
    steps = [call("write_file", path="a.txt", content=text) for text in ("b\n", "c\n")]
    agent = start([steps[0], END, steps[1], END], gates=GATES, wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "First.")
    reopen = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    agent.call("session/close", {"sessionId": session})
    for path in (state_dir() / "checkpoints").iterdir():
        path.unlink()
    agent.call("session/load", reopen)
    if later:
        agent.prompt(session, "Second.")
        agent.call("session/close", {"sessionId": session})
        agent.call("session/load", reopen)
        # What came later can be undone.
        assert "Restored 1 file" in says(agent, session, "/undo")
        assert (folder / "a.txt").read_text() == "b\n"
    for command in ("/undo", "/restore 0"):
        told = says(agent, session, command)
        assert "were deleted from" in told
        assert "only later changes can be undone" in told
    assert (folder / "a.txt").read_text() == "b\n"


@pytest.mark.sandbox
def test_that_nothing_can_be_undone_is_said_with_its_limit(start: Start, folder: Path) -> None:
    (folder / ".gitignore").write_text("*.csv\n")
    (folder / "data.csv").write_text("precious\n")
    agent = start([bash("for each in *.csv; do echo gone > $each; done"), END], gates=GATES, medium="bash", wards=OPEN)
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session, "Go.")
    assert "no prompt of this session has changed a file, apart from what git ignores" in says(agent, session, "/undo")
