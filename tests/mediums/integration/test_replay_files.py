"""Replays leave the user's files as they are: programs and gates write to copies, which are removed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.errors import SandboxError
from cantrip_acp.types.events import CommandOutput

pytestmark = pytest.mark.sandbox

WROTE = {
    "bash": [
        {"bash": "cat data.txt; echo more >> data.txt; mkdir -p new; echo x > new/x; rm gone.txt; ls"},
        {"bash": "cat data.txt new/x"},
    ],
    "code": [
        {"code": "import os\nopen('data.txt', 'a').write('m\\n')\nos.makedirs('new')\nos.remove('gone.txt')\nn = 1"},
        {"code": "open('new/x', 'w').write('x')\nsorted(os.listdir('.'))"},
    ],
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    fill(folder)
    return folder


def fill(folder: Path) -> None:
    """The files as they are before the thread."""
    subprocess.run(["find", str(folder), "-mindepth", "1", "-delete"], check=True)
    (folder / "data.txt").write_text("one\n")
    (folder / "gone.txt").write_text("still here\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "tool").write_bytes(b"\x7f\x00")
    (folder / "bin" / "tool").chmod(0o755)
    (folder / "link").symlink_to("data.txt")


def state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every name below a folder, with its mode, time and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        what = os.readlink(path) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, what)
    return found


def spell(place: Path, medium: str, *responses: dict[str, Any], gates: Any = ("done",), **wards: Any) -> Cantrip:
    ward = {"bash": "bash_writable_paths", "code": "code_writable_paths"}.get(medium)
    given = {"max_turns": 20, **({ward: [str(place)]} if ward else {}), **wards}
    return Cantrip(
        ScriptedCrystal(responses), circle=Circle(medium, gates, [given], workspace=place), loom=Loom.memory()
    )


def done(medium: str) -> dict[str, Any]:
    if medium == "conversation":
        return {"tool_calls": [{"gate": "done", "args": {"answer": 1}}]}
    return {"bash": "cantrip_done 1"} if medium == "bash" else {"code": "done(1)"}


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("medium", ["bash", "code"])
async def test_programs_of_a_replay_write_to_a_copy(place: Path, medium: str, recorded: bool) -> None:
    cantrip = spell(place, medium, *WROTE[medium], done(medium))
    assert (await cantrip.cast("go")).result in (1, "1")
    fill(place)
    before = state(place)
    told = await replay(cantrip, cantrip.loom, cantrip.loom.leaves()[-1], recorded_gates=recorded)
    assert state(place) == before
    # It acts as it did, so the copy is one that programs can work in, and what a turn wrote the next one sees.
    assert told.divergence is None
    assert told.turns == 3
    assert not list(Path(tempfile.gettempdir()).glob(f"cantrip-copies-{os.getpid()}-*"))


@pytest.mark.parametrize("medium", ["conversation", "bash", "code"])
async def test_gates_of_a_replay_write_to_the_same_copy(place: Path, medium: str) -> None:
    look = {
        "bash": {"bash": "cat new.txt data.txt"},
        "code": {"code": "open('new.txt').read() + open('data.txt').read()"},
    }
    cantrip = spell(
        place,
        medium,
        call("write_file", path="new.txt", content="fresh"),
        call("edit_file", path="data.txt", old_string="one", new_string="two"),
        call("read_file", path="data.txt"),
        call("search", pattern="fresh"),
        call("list_dir", path="."),
        *([look[medium]] if medium in look else []),
        done(medium),
        gates=("done", "read_file", "write_file", "edit_file", "search", "list_dir"),
        **({"code_readable_paths": [str(place)], "code_writable_paths": []} if medium == "code" else {}),
        **({"bash_writable_paths": []} if medium == "bash" else {}),
    )
    await cantrip.cast("go")
    fill(place)
    before = state(place)
    told = await replay(cantrip, cantrip.loom, cantrip.loom.leaves()[-1])
    assert state(place) == before
    assert told.divergence is None


async def test_other_gates_that_write_answer_what_was_recorded(place: Path) -> None:
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    for key, value in (("user.name", "a"), ("user.email", "a@example.org")):
        subprocess.run(["git", "-C", str(place), "config", key, value], check=True)
    sent: list[str] = []

    def send(text: str) -> str:
        """Send a text."""
        sent.append(text)
        (place / "sent").write_text(text)
        return f"sent {len(sent)}"

    gate = Gate.of(send, writes=True)
    commit = call("git_commit", message="One.", paths=["data.txt"])
    cantrip = spell(
        place, "conversation", commit, call("send", text="x"), done("conversation"), gates=["done", "git_commit", gate]
    )
    await cantrip.cast("go")
    (place / "sent").unlink()
    before = state(place)
    told = await replay(cantrip, cantrip.loom, cantrip.loom.leaves()[-1])
    assert state(place) == before
    assert told.divergence is None
    assert sent == ["x"]


async def test_a_home_folder_that_is_kept_is_copied(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    cantrip = spell(place, "bash", {"bash": "echo x >> ~/notes; wc -l < ~/notes"}, done("bash"), bash_home="persistent")
    await cantrip.cast("go")
    (notes,) = (tmp_path / "state").rglob("notes")
    told = await replay(cantrip, cantrip.loom, cantrip.loom.leaves()[-1])
    assert notes.read_text() == "x\n"
    # It began with what is there now.
    assert told.divergence is not None
    assert "printed '2'" in str(told.divergence)


async def test_without_room_for_a_copy_nothing_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cantrip = spell(place, "bash", *WROTE["bash"], done("bash"))
    await cantrip.cast("go")
    fill(place)
    before = state(place)
    monkeypatch.setattr("cantrip_acp.files.scratch_copy.LARGEST_COPY", 1)
    with pytest.raises(SandboxError, match="a replay runs code in a copy"):
        await replay(cantrip, cantrip.loom, cantrip.loom.leaves()[-1])
    assert state(place) == before


async def test_what_a_cancel_cut_off_is_no_difference(place: Path) -> None:
    cantrip = spell(place, "bash", {"bash": "echo begun; sleep 1; echo ended"})
    async with cantrip.invoke() as entity:
        async with entity.stream("Wait.") as stream:
            async for event in stream:
                if isinstance(event, CommandOutput) and "begun" in event.data:
                    entity.cancel()
        last = entity.last_turn
    turn = cantrip.loom.turn(last)
    assert turn.reason == "cancelled"
    assert turn.observation.output is not None
    assert turn.observation.output.error == "the command was stopped by a cancel"
    assert (await replay(cantrip, cantrip.loom, last)).divergence is None
