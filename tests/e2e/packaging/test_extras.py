"""`pip install cantrip-acp` without extras: how many packages that is, that it works, and what it says of a missing extra.

The environment is a real one. Its libraries are links to those of this environment, but only to what the package requires
without extras.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cantrip_acp.files.installation import requirements

ROOT = Path(__file__).resolve().parents[3]
MOST_PACKAGES = 40
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def required(name: str) -> dict[str, Distribution]:
    """The distributions that pip installs for this one without extras, and itself."""
    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        each, extras = item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        found[each] = distribution(each)
        for text in found[each].requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for each in required("cantrip-acp").values():
        home = Path(str(each.locate_file("")))
        for top in {Path(str(file)).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            # A namespace (ruamel, opentelemetry) is shared, so its parts are linked one by one.
            if (home / top).is_dir() and not (home / top / "__init__.py").exists() and not top.endswith("-info"):
                for file in each.files or ():
                    if file.parts[0] == top and "__pycache__" not in file.parts:
                        (site / file).parent.mkdir(parents=True, exist_ok=True)
                        (site / file).symlink_to(home / file)
            elif not (site / top).exists() and (home / top).exists():
                (site / top).symlink_to(home / top)
    if not (site / "cantrip_acp").exists():
        (site / "cantrip_acp").symlink_to(ROOT / "cantrip_acp")
    return folder / "bin" / "python"


def hint(extra: str) -> str:
    """The end of the command that adds an extra. The environment has no pip, so the command is uv's."""
    return " ".join(f"'{each}'" for each in requirements(extra))


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    def call(*argv: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        kept |= {"CANTRIP_STATE_DIR": str(tmp_path / "state"), "PYTHONDONTWRITEBYTECODE": "1"} | env
        return subprocess.run(
            [python, *argv], input=stdin, capture_output=True, text=True, cwd=tmp_path, env=kept, timeout=60
        )

    return call


def recipe(folder: Path, **more: Any) -> str:
    script = {"responses": [{"tool_calls": [{"gate": "done", "args": {"answer": "well"}}]}]}
    (folder / "script.json").write_text(json.dumps(script))
    data = {"name": "r", "crystal": f"scripted:{folder}/script.json"}
    (folder / "r.cantrip.yaml").write_text(
        json.dumps(data | {"circle": {"gates": ["done"], "wards": [{"max_turns": 2}]}} | more)
    )
    return "./r.cantrip.yaml"


def test_it_is_few_packages() -> None:
    found = sorted(required("cantrip-acp"))
    assert len(found) <= MOST_PACKAGES, found
    assert not {"mcp", "pygls", "google-genai", "cryptography", "rich", "prompt-toolkit", "torch"} & set(found)


def test_a_cast_works_without_extras(run: Run, tmp_path: Path) -> None:
    done = run("-m", "cantrip_acp.cli.main", "cast", recipe(tmp_path), "Do it.")
    assert done.returncode == 0, done.stderr
    assert "well" in done.stdout


def test_usual_arguments_are_checked_without_jsonschema(run: Run) -> None:
    program = """if 1:
        import sys
        from cantrip_acp.text.json_schema import Schema
        path = {"type": "string", "description": "a file", "minLength": 1}
        limit = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
        schema = Schema({"type": "object", "properties": {"path": path, "limit": limit}, "required": ["path"],
                         "additionalProperties": False})
        assert schema.is_valid({"path": "a", "limit": 3})
        assert "jsonschema" not in sys.modules, "it was imported for a value that fits"
        assert schema.problems({"path": 5}, 3) == ["path: 5 is not of type 'string'"]
    """
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("lsp", "lsp"),
        ("mcp --lane a", "mcp"),
        ("train word", "train"),
        ("worker --metrics 127.0.0.1:0 --lane a ./r.cantrip.yaml", "metrics"),
        ("loom thread postgresql://localhost/x#y", "postgres"),
    ],
)
def test_a_command_names_the_extra(run: Run, tmp_path: Path, command: str, extra: str) -> None:
    recipe(tmp_path)
    done = run("-m", "cantrip_acp.cli.main", *command.split())
    assert done.returncode in (1, 2), done.stdout
    assert hint(extra) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_repl_on_a_terminal_names_the_extra(python: Path, tmp_path: Path) -> None:
    named = recipe(tmp_path)
    controller, terminal = os.openpty()
    os.write(controller, b"Do it.\n\x04")
    with open(controller, "rb", buffering=0), open(terminal, "r+b", buffering=0) as both:
        done = subprocess.run(
            [python, "-m", "cantrip_acp.cli.main", "repl", named],
            stdin=both,
            stdout=both,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "CANTRIP_STATE_DIR": str(tmp_path / "state"), "TERM": "xterm"},
            timeout=60,
        )
        shown = os.read(controller, 100_000).decode()
    assert hint("terminal") in done.stderr
    # It works all the same, in plain text.
    assert done.returncode == 0, done.stderr
    assert "well" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("crystal", "extra"), [("google:gemini-3-pro", "google"), ("embedded", "embedded")])
def test_a_crystal_names_the_extra(run: Run, tmp_path: Path, crystal: str, extra: str) -> None:
    named = recipe(tmp_path, crystal=crystal)
    done = run("-m", "cantrip_acp.cli.main", "cast", named, "x", GEMINI_API_KEY="none")
    assert done.returncode in (1, 2), done.stdout
    assert hint(extra) in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_recipe_names_the_extra_at_its_line(run: Run, tmp_path: Path) -> None:
    named = recipe(tmp_path, mcp_servers=[{"name": "files", "command": "true"}])
    done = run("-m", "cantrip_acp.cli.main", "cast", named, "x")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("./r.cantrip.yaml:1:")
    assert hint("mcp") in done.stderr


def test_the_repl_works_on_a_terminal_and_names_the_extra(python: Path, tmp_path: Path) -> None:
    named, (ours, theirs) = recipe(tmp_path), pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "FORCE_COLOR")}
    command = [str(python), "-m", "cantrip_acp.cli.main", "repl", named]
    env = kept | {"CANTRIP_STATE_DIR": str(tmp_path / "state"), "TERM": "xterm"}
    repl = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=env)
    os.close(theirs)
    os.write(ours, b"Do it.\n/quit\n")
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the program closed the terminal
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert repl.wait(60) == 0, shown
    assert b"well" in shown
    assert hint("terminal").encode() in shown.replace(b"\r\n", b"")


def test_an_error_shows_its_line_without_extras(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.cantrip.yaml").write_text("name: wrong\ncircles: {}\n")
    done = run("-m", "cantrip_acp.cli.main", "cast", "./wrong.cantrip.yaml", "x")
    assert done.returncode == 2
    assert "^" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_as_text_names_the_extra(run: Run) -> None:
    program = "from cantrip_acp.gates.web.html_text import markdown\nmarkdown('<p>a', 'https://example.org')"
    assert hint("web") in run("-c", program).stderr


def test_a_session_with_an_mcp_server_works_and_names_the_extra(run: Run, tmp_path: Path) -> None:
    server = {"name": "files", "command": "/bin/true", "args": [], "env": []}
    (tmp_path / "script.yaml").write_text("responses: [{content: hello, repeat: true}]")
    lines = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": 1}},
        {"id": 1, "method": "session/new", "params": {"cwd": str(tmp_path), "mcpServers": [server]}},
    ]
    first = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
    program = """if 1:
        import json, subprocess, sys
        agent = subprocess.Popen([sys.executable, "-m", "cantrip_acp.acp.start"], stdin=-1, stdout=-1, text=True)
        def send(text): agent.stdin.write(text); agent.stdin.flush()
        def until(number):
            for line in agent.stdout:
                print(line, end="")
                answer = json.loads(line)
                if answer.get("id") == number and "method" not in answer:
                    return answer
        send(sys.stdin.read())
        session = until(1)["result"]["sessionId"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]}
        send(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt}) + "\\n")
        until(2)
        agent.stdin.close()
        sys.exit(agent.wait())
    """
    done = run("-c", program, stdin=first, CANTRIP_CRYSTAL=f"scripted:{tmp_path}/script.yaml")
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert hint("mcp") in done.stdout


def test_every_extra_that_is_named_exists() -> None:
    known = set(distribution("cantrip-acp").metadata.get_all("Provides-Extra") or ())
    named = {
        extra
        for file in ROOT.glob("cantrip_acp/**/*.py")
        for extra in re.findall(r"install_command\([\"'](\w+)[\"']\)", file.read_text())
    }
    assert named >= {"mcp", "terminal", "embedded"}
    assert named <= known
    page = (ROOT / "docs" / "extras.md").read_text()
    assert known == set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
