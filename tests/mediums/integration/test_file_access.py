"""What cells see and write beside their gates, and the Python that they run in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp import Circle
from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.types.errors import DefinitionError
from tests.sandbox.integration.conftest import both_back_ends

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "out").mkdir()
    (folder / "data" / "a.txt").write_text("visible")
    (folder / "data" / ".env").write_text("NAME=SECRET")
    (folder / "top.txt").write_text("top")
    (folder / "mine.py").write_text("answer = 42\n")
    return folder


async def test_by_default_no_file_is_visible(make, workspace: Path) -> None:
    python = await make(workspace=workspace)
    assert await python.value(f"import os\nos.path.exists({str(workspace)!r})") == "False"
    assert await python.value("os.getcwd()") == "'/tmp'"
    await python(f"os.makedirs({str(workspace / 'new')!r})")
    assert not (workspace / "new").exists()


async def test_readable_paths(make, workspace: Path) -> None:
    python = await make({"code_readable_paths": ["data", "top.txt"]}, workspace=workspace)
    assert (
        await python.value(f"open('{workspace}/data/a.txt').read(), open('{workspace}/top.txt').read()")
        == "('visible', 'top')"
    )
    assert "SECRET" not in (await python(f"print(open('{workspace}/data/.env').read())")).stdout
    assert "No such file" in ((await python(f"open('{workspace}/mine.py')")).error or "")
    assert "Read-only" in ((await python(f"open('{workspace}/data/b.txt', 'w')")).error or "")


@both_back_ends
async def test_what_the_wards_admit_and_nothing_else(make, workspace: Path) -> None:
    wards = {"code_readable_paths": ["data"], "code_writable_paths": ["out"]}
    python = await make(wards, workspace=workspace)
    await python(f"""
from pathlib import Path
import os
work = Path({str(workspace)!r})
def tried(act):
    try:
        return act()
    except OSError:
        return None
seen = [tried((work / name).read_text) for name in ("data/a.txt", "top.txt", "data/.env")]
made = [tried(lambda: (work / name).write_text("made")) for name in ("out/x", "data/x", "top.txt", "new", "out/.git/config")]
places = [Path(os.environ[name]) for name in ("HOME", "TMPDIR")]
kept = [tried(lambda: (place / "x").write_text("kept")) for place in places]
""")
    assert await python.value("seen[:2], 'SECRET' in str(seen[2])") == "(['visible', None], False)"
    assert await python.value("made[0], made[1], made[4]") == "(4, None, None)"
    # Beside the folders of the wards there may be private ones, but never those of the host.
    assert [(workspace / name).read_text() for name in ("out/x", "top.txt")] == ["made", "top"]
    assert not (workspace / "new").exists()
    assert await python.value("kept, [(place / 'x').read_text() for place in places]") == "([4, 4], ['kept', 'kept'])"
    # Another process of the same session begins with empty folders.
    await python("os._exit(0)")
    left = await python.value(
        "import os\n[name for n in ('HOME', 'TMPDIR') for name in os.listdir(os.environ[n]) if name == 'x']"
    )
    assert left == "[]"


@both_back_ends
async def test_no_network_and_no_secret_of_the_host(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-the-sandbox")
    python = await make()
    assert await python.value("import os\n'OPENAI_API_KEY' in os.environ, 'PATH' in os.environ") == "(False, True)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        output = await python(f"import socket\nsocket.create_connection({server.getsockname()!r}, 5)")
        assert "Error" in (output.error or "")
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_a_readable_workspace_is_where_cells_are(make, workspace: Path) -> None:
    python = await make({"code_readable_paths": ["workspace"]}, workspace=workspace)
    assert await python.value("import os, mine\nos.getcwd(), mine.answer") == repr((str(workspace), 42))


async def test_writable_paths(make, workspace: Path) -> None:
    (workspace / "made").mkdir()
    python = await make({"code_writable_paths": ["out", "made"]}, workspace=workspace)
    await python(f"open('{workspace}/out/x', 'w').write('kept')\nopen('{workspace}/made/y', 'w').write('kept')")
    assert (workspace / "out" / "x").read_text() == "kept"
    assert (workspace / "made" / "y").read_text() == "kept"
    made = await python(f"import os\nos.makedirs('{workspace}/out/.vscode/x')")
    assert "cantrip: moved away .vscode" in made.stderr
    hooks = (
        f"os.makedirs('{workspace}/out/.git/hooks')\nopen('{workspace}/out/.git/hooks/post-commit', 'w').write('evil')"
    )
    assert "cantrip: moved away .git" in (await python(hooks)).stderr
    await python.session.close()
    assert sorted(os.listdir(workspace / "out")) == ["x"]


@pytest.mark.parametrize(
    ("wards", "words"),
    [
        ({"code_readable_paths": ["nowhere"]}, "does not exist"),
        ({"code_readable_paths": ["data/.env"]}, "its name is one that secrets have"),
        ({"code_readable_paths": ["link"]}, "leads out of the workspace"),
        ({"code_writable_paths": ["link"]}, "leads out of the workspace"),
        ({"code_writable_paths": ["top.txt"]}, "is not a folder"),
        ({"code_readable_paths": ["/"]}, "never shown"),
        ({"code_readable_paths": ["~"]}, "never shown"),
        ({"code_readable_paths": ["/etc"]}, "never shown"),
    ],
)
async def test_paths_that_cannot_be(workspace: Path, wards: dict, words: str) -> None:
    (workspace / "link").symlink_to("/usr/share")
    circle = Circle("code", ["done"], {"max_turns": 1, **wards}, workspace=workspace)
    with pytest.raises(DefinitionError, match=words):
        await circle.medium.open(circle, "e")


async def test_the_environment_is_clean(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-the-sandbox")
    python = await make()
    code = "import os\ntext = str(dict(os.environ))\nfor p in os.listdir('/proc'):\n    if p.isdigit():\n"
    code += "        text += open(f'/proc/{p}/environ').read() + open(f'/proc/{p}/cmdline').read()\ntext"
    seen = (await python(code + "\nprint(text)")).stdout
    assert "sk-not-for" not in seen
    assert "TRACEPARENT" in seen
    assert str(Path.home() / ".config") not in seen


async def test_there_is_no_network(python) -> None:
    output = await python("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)")
    assert "Error" in (output.error or "")
    assert (await python("socket.socketpair()[0].family.name")).value == "'AF_UNIX'"
    # Datagrams carry addresses that nobody could check. Other Unix sockets reach what cells opened, and nothing of the host.
    assert "PermissionError" in ((await python("socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)")).error or "")


async def test_packages_of_the_runtime_are_there(python) -> None:
    assert await python.value("import sys, msgspec\nmsgspec.json.encode([1])") == "b'[1]'"
    assert await python.value("sys.executable") == repr(sys.executable)
    assert await python.value("sys.prefix") == repr(sys.prefix)
    code = "import subprocess as s\ns.run(['python', '-c', 'import sys; print(sys.prefix)'], capture_output=True, text=True).stdout"
    assert await python.value(code) == repr(sys.prefix + "\n")


async def test_another_interpreter(make, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "only_here.py").write_text("x = 'from the venv'\n")
    (tmp_path / "editable").mkdir()
    (tmp_path / "editable" / "linked.py").write_text("x = 'linked'\n")
    (site / "e.pth").write_text(f"{folder}/extra\n")
    (folder / "extra").mkdir()
    (folder / "extra" / "by_path_file.py").write_text("x = 'by a path file'\n")
    for chosen in (str(folder), str(folder / "bin" / "python")):
        python = await make(medium=CodeMedium(python=chosen))
        assert (
            await python.value("import only_here, by_path_file\nonly_here.x, by_path_file.x")
            == "('from the venv', 'by a path file')"
        )
        assert "ModuleNotFoundError" in ((await python("import msgspec")).error or "")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [("/nowhere/python", "does not exist"), ("no-such-python", "on PATH"), ("/tmp", "not a virtual")],
)
async def test_an_interpreter_that_is_none(chosen: str, words: str) -> None:
    circle = Circle(CodeMedium(python=chosen), ["done"], {"max_turns": 1})
    with pytest.raises(DefinitionError, match=words):
        await circle.medium.open(circle, "e")


async def test_a_program_that_is_no_python_is_said(make) -> None:
    python = await make(medium=CodeMedium(python="/bin/true"))
    output = await python("1")
    assert "/bin/true could not be started in the sandbox as the Python of code cells" in (output.error or "")
