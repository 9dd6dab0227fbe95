"""The ward `hidden_paths`: what it names is not seen by commands, by cells and by gates, whatever other wards say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp.sessions.prompt.prompt_content import Link, read_links
from cantrip_acp.files.hidden_paths import existing, hides
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate.view import SessionView
from tests.support.fixtures.core import done
from tests.support.recipe_writer import write

pytestmark = pytest.mark.sandbox
TOKEN = "kept-from-entities"
HIDDEN = ["private", "secrets/*.json", "later", "*.token", "door"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    for name in ("private/deep/a.txt", "secrets/key.json", "top.token", "behind/a.txt"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(TOKEN)
    (work / "secrets/plain.txt").write_text("open")
    (work / "private/out").mkdir()
    (work / "link").symlink_to("private/deep")
    (work / "file.txt").symlink_to("secrets/key.json")
    (work / "door").symlink_to("behind")
    return work


def outputs(folder: Path, medium: str, programs: list[str], gates: Any = (), **wards: Any) -> list[str]:
    """What an entity reads of each of these programs."""
    script = [*({"bash" if medium == "bash" else "code": text} for text in programs), done()]
    circle = Circle(
        medium,
        ["done", *gates],
        [{"max_turns": len(script)}, {"hidden_paths": HIDDEN}, *({k: v} for k, v in wards.items())],
        workspace=folder,
    )
    cantrip = Cantrip(ScriptedCrystal(script), circle=circle)
    cantrip.cast_sync("Look.")
    turns = cantrip.loom.threads()[0].acted
    return [
        f"{turn.observation.output.stdout} {turn.observation.output.stderr} {turn.observation.output.error or ''}"
        for turn in turns
        if turn.observation.output is not None
    ]


READING = [
    "grep -r . . 2>&1",
    "cat private/deep/a.txt link/a.txt file.txt secrets/key.json top.token door/a.txt behind/a.txt 2>&1",
    "cat secrets/../private/deep/a.txt ./private/./deep/a.txt $PWD/private/deep/a.txt 2>&1",
    "cat /proc/self/cwd/private/deep/a.txt /proc/self/root$PWD/private/deep/a.txt /proc/1/cwd/top.token 2>&1",
    "cd private 2>/dev/null && cat deep/a.txt; ls -laR . 2>&1",
    "ln private/deep/a.txt own 2>&1; ln secrets/key.json own 2>&1; cp -r private copied 2>&1; cat own copied/deep/a.txt 2>&1",
    "mv private moved 2>&1; mv secrets moved2 2>&1; cat moved/deep/a.txt moved2/key.json 2>&1",
    "unshare -rm sh -c 'umount private; umount secrets/key.json; cat private/deep/a.txt secrets/key.json' 2>&1",
    "python3 -c \"import os; print(open(os.open('private', os.O_PATH)).read())\" 2>&1; tar c . 2>/dev/null | grep -a kept",
]


@pytest.mark.parametrize("writable", [[], ["workspace"], ["workspace", "private/out", "private"], ["private/deep"]])
def test_no_command_reads_it(folder: Path, writable: list[str]) -> None:
    found = outputs(folder, "bash", READING, bash_writable_paths=writable)
    assert len(found) == len(READING)
    assert TOKEN not in "".join(found)
    assert "open" in found[0], "what is not hidden is still there"
    assert (folder / "private/deep/a.txt").read_text() == TOKEN


@pytest.mark.parametrize("readable", [["workspace"], ["workspace", "private/deep"], ["secrets", "private"]])
def test_no_cell_reads_it(folder: Path, readable: list[str]) -> None:
    cell = (
        "import os, glob\n"
        "for name in glob.glob('**/*', recursive=True, include_hidden=True) + ['private/deep/a.txt', 'door/a.txt', 'top.token']:\n"
        "    try:\n        print(name, open(name).read())\n    except OSError as error:\n        print(name, error)\n"
    )
    (found,) = outputs(folder, "code", [cell], code_readable_paths=readable)
    assert TOKEN not in found
    assert "private/deep/a.txt" in found


def test_what_appears_later_is_hidden_from_the_next_program_on(folder: Path) -> None:
    make = "from pathlib import Path\nPath('later').mkdir()\nPath('later/a.txt').write_text('kept-' + 'from-entities')\nx = 1"
    cells = [make, "print(open('later/a.txt').read())", "print('x' in globals())"]
    _, read, state = outputs(folder, "code", cells, code_writable_paths=["workspace"])
    assert TOKEN not in read
    assert "hidden_paths" in read, "the entity reads why its variables are gone"
    assert "False" in state
    (folder / "later/a.txt").unlink()
    (folder / "later").rmdir()
    commands = ["mkdir later; echo kept-'from-entities' > later/a.txt", "cat later/a.txt 2>&1; ls -A later"]
    assert TOKEN not in outputs(folder, "bash", commands, bash_writable_paths=["workspace"])[1]


def test_a_file_that_replaces_a_hidden_one_is_hidden_too(folder: Path) -> None:
    def replace() -> str:
        """Save the file as editors do: write another one and rename it."""
        (folder / "secrets/new").write_text(TOKEN)
        os.replace(folder / "secrets/new", folder / "secrets/key.json")
        return "saved"

    cells = ["print(open('secrets/key.json').read())", "replace()", "print(open('secrets/key.json').read())"]
    found = outputs(folder, "code", cells, gates=[replace], code_readable_paths=["workspace"])
    assert TOKEN not in "".join(found)


@pytest.mark.parametrize(
    ("gate", "args"),
    [
        ("read_file", {"path": path})
        for path in ("private/deep/a.txt", "link/a.txt", "file.txt", "top.token", "door/a.txt", "behind/a.txt")
    ]
    + [
        ("list_dir", {"path": ".", "depth": 3}),
        ("search", {"pattern": "kept"}),
        ("search", {"pattern": "kept", "path": "secrets"}),
        ("git_show", {"path": "private/deep/a.txt"}),
        ("git_diff", {}),
        ("git_status", {}),
        ("write_file", {"path": "private/new.txt", "content": "x"}),
        ("write_file", {"path": "later/new.txt", "content": "x"}),
        ("edit_file", {"path": "top.token", "old_text": "kept", "new_text": "x"}),
    ],
)
def test_no_gate_reads_or_writes_it(folder: Path, gate: str, args: dict[str, Any]) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (folder / "private/deep/a.txt").write_text(TOKEN + " again")
    from cantrip_acp.gates import registry

    if gate not in registry.names():
        pytest.skip(f"there is no gate {gate}")
    circle = Circle("conversation", ["done", gate], [{"max_turns": 2}, {"hidden_paths": HIDDEN}], workspace=folder)
    cantrip = Cantrip(ScriptedCrystal([{"tool_calls": [{"gate": gate, "args": args}]}, done()]), circle=circle)
    cantrip.cast_sync("Look.")
    record = cantrip.loom.threads()[0].acted[0].observation.results[0]
    text = str(record.result)
    assert TOKEN not in text
    if gate in ("read_file", "write_file", "edit_file"):
        assert record.is_error
        assert "hidden_paths" in text
    if gate in ("list_dir", "git_status"):
        assert "private" not in text
        assert "top.token" not in text
    assert not (folder / "private/new.txt").exists()
    assert not (folder / "later").exists()


def test_a_child_sees_no_more(folder: Path) -> None:
    script = {
        "responses": [
            {
                "code": "print(call_agent('look', medium='bash', gates=['done'], wards={'hidden_paths': ['secrets/plain.txt']}))"
            },
            done(),
        ],
        "children": [
            [{"bash": 'cat private/deep/a.txt secrets/* top.token; cantrip_done "$(cat private/deep/a.txt secrets/*)"'}]
        ],
    }
    circle = Circle(
        "code",
        ["done", "call_agent"],
        [{"max_turns": 3}, {"hidden_paths": HIDDEN}, {"bash_writable_paths": ["workspace"]}],
        workspace=folder,
    )
    cantrip = Cantrip(ScriptedCrystal(**script), circle=circle)
    cantrip.cast_sync("Look.")
    text = str([turn.observation for turn in cantrip.loom.turns()])
    assert TOKEN not in text
    assert "'open" not in text


def test_no_document_of_it_is_given_to_an_entity(folder: Path) -> None:
    (folder / "AGENTS.md").write_text("read by all")
    (folder / "private" / "AGENTS.md").write_text(TOKEN)
    text = (
        "crystal: {provider: scripted, responses: [{content: ok}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 2}, {hidden_paths: [private]}]}\nmemory: {culture: true}\n"
    )
    cantrip = build(load(write(folder, text)), workspace=folder)
    cantrip.cast_sync("Look.")
    (view,) = [each for each in cantrip.contributors if isinstance(each, SessionView)]
    view.bring_files()
    found = [
        str(placed.chunk.body)
        for scope in (*view.project.pinned, view.project.nested)
        for placed in view.substrate.scope(scope).placed
    ]
    assert "read by all" in str(found)
    assert TOKEN not in str(found)


@pytest.mark.anyio
async def test_a_mention_of_it_is_not_read(folder: Path) -> None:
    circle = Circle("bash", ["done"], [{"max_turns": 2}, {"hidden_paths": HIDDEN}], workspace=folder)
    cantrip = Cantrip(ScriptedCrystal([done()]), circle=circle)
    links = [Link("a", (folder / "private/deep/a.txt").as_uri()), Link("b", (folder / "secrets/plain.txt").as_uri())]
    why: list[str] = []
    async with cantrip.invoke() as entity:
        blocks = await read_links(entity, None, links, lambda link, reason: why.append(f"{link.name}: {reason}"))
    assert TOKEN not in str(blocks)
    assert "open" in str(blocks)
    assert len(why) == 1
    assert "hidden_paths" in why[0]


def test_the_workspace_itself_cannot_be_hidden(folder: Path) -> None:
    circle = Circle("bash", ["done"], [{"max_turns": 2}, {"hidden_paths": ["workspace"]}], workspace=folder)
    with pytest.raises(Exception, match=r"hidden_paths: .*is the workspace itself"):
        Cantrip(ScriptedCrystal([{"bash": "ls"}, done()]), circle=circle).cast_sync("Look.")


def test_patterns(tmp_path: Path) -> None:
    for name in ("a/b/c.key", "a/c.key", "d/e", "[x]/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def named(pattern: str) -> set[str]:
        return {os.path.relpath(path, tmp_path) for path in existing([str(tmp_path / pattern)])}

    assert named("**/*.key") == {"a/b/c.key", "a/c.key"}
    assert named("*/c.key") == {"a/c.key"}
    assert named("?") == {"a", "d"}
    assert named("[x]") == {"[x]"}
    for pattern, path, hidden in (
        ("a", "a/b/new", True),
        ("a", "ab", False),
        ("*/c.key", "a/b/c.key", False),
        ("**/*.key", "new/deep/x.key", True),
        ("[x]", "x", False),
    ):
        assert hides([str(tmp_path / pattern)], str(tmp_path / path)) is hidden, (pattern, path)
