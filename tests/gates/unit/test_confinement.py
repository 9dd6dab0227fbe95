"""Nothing outside the root is read or written, whatever the path and wherever links lead."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.contract import Gate, GateReply
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.types.errors import GateError
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]

EACH = (
    (READ_FILE, {}),
    (WRITE_FILE, {"content": "x"}),
    (EDIT_FILE, {"old_text": "o", "new_text": "x"}),
    (LIST_DIR, {}),
    (SEARCH, {"pattern": "secret"}),
)
each_gate = pytest.mark.parametrize(("gate", "args"), EACH, ids=[gate.name for gate, _ in EACH])


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@each_gate
@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "..",
        "sub/../../outside/secret.txt",
        "./sub/.././../outside",
        "/etc/passwd",
        "//etc//passwd",
        "/",
        "{outside}/secret.txt",
        "{workspace}/../outside/secret.txt",
        "{workspace}extra/file",
        "out/secret.txt",
        "out",
        "absolute/secret.txt",
        "file",
        "chain",
        "sub/up/outside/secret.txt",
        "/proc/self/root/etc/passwd",
        "proc/self/environ",
        "descriptor",
    ],
)
def test_ways_out_are_refused(workspace: Path, gate: Gate, args: dict[str, str], path: str) -> None:
    outside = workspace.parent / "outside"
    (workspace / "sub").mkdir()
    (workspace / "out").symlink_to("../outside")
    (workspace / "absolute").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret.txt")
    (workspace / "chain").symlink_to("file")
    (workspace / "proc").symlink_to("/proc")
    (workspace / "sub" / "up").symlink_to("../..")
    opened = os.open(outside / "secret.txt", os.O_RDONLY)
    (workspace / "descriptor").symlink_to(f"/proc/self/fd/{opened}")
    before = snapshot(outside)
    try:
        with pytest.raises(GateError, match="outside the folder"):
            call_in(context_of(workspace), gate, path=path.format(workspace=workspace, outside=outside), **args)
    finally:
        os.close(opened)
    assert snapshot(outside) == before


@each_gate
@pytest.mark.parametrize("path", ["round/and/round", "self", "a", "one/x"])
def test_links_in_circles_end(call: Call, workspace: Path, gate: Gate, args: dict[str, str], path: str) -> None:
    (workspace / "round").symlink_to("round")
    (workspace / "self").symlink_to("./self")
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    (workspace / "one").symlink_to("two/x")
    (workspace / "two").symlink_to("one/x")
    with pytest.raises(GateError, match="too many symbolic links"):
        call(gate, path=path, **args)


@each_gate
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "no file name can have"),
        ("n" * 300, "too long"),
        ("n/" * 3000, "too long"),
        ("n/" * 2047 + "f", "no such|too long"),
        ("file.txt/below", "not a folder"),
    ],
)
def test_paths_that_are_none(
    call: Call, workspace: Path, gate: Gate, args: dict[str, str], path: str, says: str
) -> None:
    (workspace / "file.txt").write_text("one\n")
    with pytest.raises(GateError, match=says):
        call(gate, path=path, **args)


def test_links_that_stay_inside_are_followed(call: Call, workspace: Path) -> None:
    (workspace / "real" / "deep").mkdir(parents=True)
    (workspace / "real" / "deep" / "a.txt").write_text("here\n")
    (workspace / "near").symlink_to("real/deep/../deep")
    (workspace / "far").symlink_to(workspace / "real")
    (workspace / "alias.txt").symlink_to("near/a.txt")
    for path in ("near/a.txt", "far/deep/a.txt", "alias.txt", "far/../real/deep/a.txt", f"{workspace}/near/a.txt"):
        assert call(READ_FILE, path=path).result == "here\n"
    reply = call(WRITE_FILE, path="alias.txt", content="there\n")
    assert reply.locations[0].path == str(workspace / "real/deep/a.txt")
    assert (workspace / "alias.txt").is_symlink()
    assert (workspace / "real" / "deep" / "a.txt").read_text() == "there\n"


def test_a_link_to_nothing_makes_what_it_names(call: Call, workspace: Path) -> None:
    (workspace / "dangling").symlink_to("new/file.txt")
    with pytest.raises(GateError, match="no such folder: 'new'"):
        call(READ_FILE, path="dangling")
    call(WRITE_FILE, path="dangling", content="made")
    assert (workspace / "new" / "file.txt").read_text() == "made"


def test_a_workspace_reached_by_a_link_has_two_spellings(workspace: Path) -> None:
    alias = workspace.parent / "alias"
    alias.symlink_to(workspace)
    (workspace / "a.txt").write_text("a")
    for path in ("a.txt", f"{alias}/a.txt", f"{workspace}/a.txt"):
        assert call_in(context_of(alias), READ_FILE, path=path).result == "a"
    assert call_in(context_of(alias), READ_FILE, path="a.txt").locations[0].path == f"{alias}/a.txt"


def test_roots(workspace: Path) -> None:
    data = workspace / "data"
    data.mkdir()
    (data / "a.txt").write_text("a")
    (workspace / "b.txt").write_text("b")
    for root in ("data", data, str(data)):
        context = context_of(workspace, root=root)
        assert call_in(context, READ_FILE, path="a.txt").result == "a"
        with pytest.raises(GateError, match="outside"):
            call_in(context, READ_FILE, path="../b.txt")
        with pytest.raises(GateError, match="outside"):
            call_in(context, READ_FILE, path=str(workspace / "b.txt"))
    assert call_in(context_of(None, root=data), READ_FILE, path="a.txt").result == "a"
    with pytest.raises(GateError, match="no folder to work in"):
        call_in(context_of(None), READ_FILE, path="a.txt")
    with pytest.raises(GateError, match="relative"):
        call_in(context_of(None, root="data"), READ_FILE, path="a.txt")
    for missing in ("nowhere", "b.txt"):
        with pytest.raises(GateError, match="cannot be used"):
            call_in(context_of(workspace, root=missing), READ_FILE, path="a.txt")


def test_absolute_paths_may_start_at_the_root(workspace: Path) -> None:
    (workspace / "data").mkdir()
    (workspace / "data" / "a.txt").write_text("a")
    (workspace / "link").symlink_to("/data/a.txt")
    context = context_of(None, root=workspace, absolute_is_root=True)
    assert call_in(context, READ_FILE, path="/data/a.txt").result == "a"
    assert call_in(context, READ_FILE, path="/link").result == "a"
    with pytest.raises(GateError, match="outside"):
        call_in(context, READ_FILE, path="/../data/a.txt")
    with pytest.raises(GateError, match="outside"):
        call_in(context_of(None, root=workspace), READ_FILE, path="/data/a.txt")


@pytest.mark.parametrize("wards", [[], [{"bash_writable_paths": ["{shared}"]}]])
def test_a_root_that_commands_can_exchange_leads_nowhere_else(
    workspace: Path, wards: list[dict[str, list[str]]]
) -> None:
    """The root is a folder in which commands write: it was swapped for a link before the call."""
    shared = workspace if not wards else workspace.parent / "shared"
    shared.mkdir(exist_ok=True)
    (shared / "data").symlink_to("../outside")
    filled = [{name: [p.format(shared=shared) for p in paths] for name, paths in ward.items()} for ward in wards]
    context = context_of(workspace, filled, root=shared / "data")
    for gate, args in EACH:
        with pytest.raises(GateError, match="symbolic link"):
            call_in(context, gate, path="." if gate in (LIST_DIR, SEARCH) else "secret.txt", **args)


def test_the_whole_file_system_as_a_root_leaves_out_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "env").symlink_to("/proc/self/environ")
    context = context_of(None, root="/")
    assert call_in(context, READ_FILE, path=str(tmp_path / "a.txt")).result == "a"
    for path in ("/proc/self/environ", "/dev/zero", "sys/power/state", str(tmp_path / "env")):
        with pytest.raises(GateError, match="kernel"):
            call_in(context, READ_FILE, path=path)


@each_gate
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_special_files_are_refused_at_once(
    call: Call, workspace: Path, gate: Gate, args: dict[str, str], kind: str
) -> None:
    path = workspace / "special"
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            here = os.getcwd()
            os.chdir(workspace)
            try:
                server.bind("special")
            finally:
                os.chdir(here)
        else:
            try:
                os.mknod(path, 0o020666, os.makedev(1, 5))
            except PermissionError:
                pytest.skip("making a device takes root")
        began = time.monotonic()
        with pytest.raises(GateError, match=f"{kind}, not a f"):
            call(gate, path="special", **args)
        assert time.monotonic() - began < 30


def test_a_hard_link_is_replaced_not_written_through(call: Call, workspace: Path) -> None:
    outside = workspace.parent / "outside" / "secret.txt"
    os.link(outside, workspace / "linked.txt")
    call(WRITE_FILE, path="linked.txt", content="new")
    assert outside.read_text() == "the outside secret\n"


NAMES = st.sampled_from(
    [
        "..",
        ".",
        "",
        "sub",
        "out",
        "abs",
        "up",
        "file.txt",
        "secret.txt",
        "new",
        "deep",
        "loop",
        "etc",
        "outside",
        "root",
    ]
)
PATHS = st.builds(
    lambda start, names, end: start + "/".join(names) + end,
    st.sampled_from(["", "/", "//", "./", "{workspace}/", "{outside}/", "{workspace}/../"]),
    st.lists(NAMES, max_size=8),
    st.sampled_from(["", "/", "/."]),
)


@settings(max_examples=300, deadline=None)
@given(path=PATHS | st.text(max_size=20), gate_args=st.sampled_from(EACH[:4]))
def test_no_path_leads_out(tmp_path: Path, path: str, gate_args: tuple[Gate, dict[str, str]]) -> None:
    """Property: outside stays as it was, and nothing of it is in any result, whatever the path."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    if not outside.exists():
        (workspace / "sub" / "deep").mkdir(parents=True)
        outside.mkdir()
        (outside / "secret.txt").write_text("the outside secret, or so\n")
        (outside / "only-outside").write_text("")
        (workspace / "file.txt").write_text("so inside\n")
        (workspace / "out").symlink_to("../outside")
        (workspace / "abs").symlink_to(outside)
        (workspace / "sub" / "up").symlink_to("../../outside")
        (workspace / "root").symlink_to("/")
        (workspace / "loop").symlink_to("sub/../loop")
        (workspace / "sub" / "back").symlink_to("..")
    gate, args = gate_args
    before = snapshot(outside)
    path = path.replace("{workspace}", str(workspace)).replace("{outside}", str(outside))
    try:
        reply = call_in(context_of(workspace), gate, path=path, **args)
    except GateError:
        pass
    else:
        assert "outside secret" not in str(reply.result)
        assert "only-outside" not in str(reply.result)
        for location in reply.locations:
            assert location.path == str(workspace) or location.path.startswith(f"{workspace}/")
    assert snapshot(outside) == before
    assert set(os.listdir(tmp_path)) == {"workspace", "outside"}


def test_a_long_way_of_parents_is_bounded(call: Call, workspace: Path) -> None:
    deep = workspace
    for _ in range(100):
        deep = deep / "d"
    deep.mkdir(parents=True)
    path = "d/" * 100 + "../d/" * 700
    began = time.process_time()
    with pytest.raises(GateError, match="too many folders and links"):
        call(READ_FILE, path=path[:4000] + "x")
    (workspace / "s").symlink_to("d/" * 100 + "../d/" * 700)
    with pytest.raises(GateError, match="too many folders and links"):
        call(READ_FILE, path="s")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("root", ["/", "//", "/./", "/tmp/.."])
def test_every_spelling_of_the_whole_file_system(root: str) -> None:
    with pytest.raises(GateError, match="kernel"):
        call_in(context_of(None, root=root), READ_FILE, path="/proc/self/environ")
