"""What is written for users is true: links lead somewhere, commands and options exist, examples are taken and run."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from cantrip_acp.cli.command_table import cantrip
from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.recipes.parse import validation
from cantrip_acp.recipes.parse.document import parse
from tests.support import page_examples, processes
from tests.support.fixtures import embedded
from tests.support.page_examples import EXAMPLE
from tools import pictures, reference

ROOT = Path(__file__).resolve().parents[2]
USERS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [
    *USERS,
    *sorted((ROOT / "editors").rglob("*.md")),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md")),
    *(
        ROOT / name
        for name in (
            "cantrip_acp/lsp/README.md",
            "cantrip_acp/sandbox/README.md",
            "deploy/README.md",
            "vscode-extension/README.md",
        )
    ),
]
BLOCK = re.compile(r"^(?P<fence>```+)(\w*)\n(.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
RECIPE: dict[str, Any] = {
    "crystal": "human",
    "circle": {"medium": "code", "gates": ["done"], "wards": [{"max_turns": 3}]},
}
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in USERS:
        for _, kind, body in BLOCK.findall(page.read_text()):
            if kind == language:
                yield name(page), body


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}: no such heading"


def test_every_page_and_picture_is_led_to() -> None:
    index = (ROOT / "docs/README.md").read_text()
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(
        re.findall(r"\(([\w-]+\.md)\)", index)
    )
    texts = " ".join(page.read_text() for page in PAGES)
    found = [each for each in (ROOT / "docs").rglob("*") if each.suffix in (".png", ".svg")]
    assert [picture.name for picture in found if picture.name not in texts] == []
    # tools/training_curve.py draws the other one, of runs that take half an hour.
    drawn = {f"{each.name}.svg" for each in pictures.PICTURES} | {"training-larger.svg"}
    assert drawn == {each.name for each in found if each.suffix == ".svg"}


def test_a_picture_shows_its_commands_and_loads_nothing() -> None:
    for each in pictures.PICTURES:
        svg = (pictures.FOLDER / f"{each.name}.svg").read_text()
        shown = unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).replace("\xa0", " ")
        assert [command for command in each.commands if command[:60] not in shown] == [], each.name
        loaded = set(re.findall(r"https?://[^\s\"')<]+", re.sub(r"<text.*?</text>|<!--.*?-->", "", svg)))
        assert loaded <= {"http://www.w3.org/2000/svg"}, each.name


@needs_sandbox
@pytest.mark.slow
@pytest.mark.sandbox
def test_a_picture_is_drawn_of_a_real_terminal(tmp_path: Path) -> None:
    (gate,) = (each for each in pictures.PICTURES if each.name == "gate")
    svg = unescape(pictures.draw(gate, tmp_path / "home")).replace("\xa0", " ")
    assert "count_words" in svg
    assert "The letter has four words." in svg


def command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that a line names, and what stands behind it."""
    found: click.Command = cantrip
    words = words[1:]
    if words and words[0].startswith(('"', "'")):  # an intent alone is a cast of the default recipe
        words = ["cast", *words]
    while isinstance(found, click.Group) and words:
        within = found.get_command(click.Context(found), words[0])
        assert within is not None, f"no command {words[0]!r}"
        found, words = within, words[1:]
    return found, words


def test_commands_that_are_named_exist() -> None:
    seen = 0
    for page in USERS:
        text = page.read_text()
        lines = [line for _, kind, body in BLOCK.findall(text) if kind == "sh" for line in body.splitlines()]
        lines += re.findall(r"`(cantrip [^`\n]+)`", BLOCK.sub("", text))
        for line in lines:
            if not line.startswith("cantrip ") or line.startswith(("cantrip acp", "cantrip lsp")):
                continue
            # What belongs to a program behind `--`, to a shell or to a comment is not ours to judge.
            ours = re.split(r" -- | [|>#] |  +#", line.replace("\\|", "|"))[0].split()
            for last in ours[2].split("|") if len(ours) > 2 and "|" in ours[2] else [None]:
                words = ours if last is None else [*ours[:2], last, *ours[3:]]
                found, rest = command(words)
                options = {spelling for each in found.params for spelling in (*each.opts, *each.secondary_opts)} | {
                    "--help"
                }
                for option in re.findall(r"(?<![\w-])--[a-z-]+", " ".join(rest)):
                    assert option in options, f"{name(page)}: {line}: no option {option}"
                seen += 1
    assert seen > 40


def test_nothing_is_installed_from_an_index_without_a_release() -> None:
    """A package of our name on the public index would be a stranger's, as long as README says that there is no release."""
    assert "It has no release yet" in (ROOT / "README.md").read_text(), "there is a release: remove this test"
    texts = [
        *(page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "reference"),
        *sorted((ROOT / "cantrip_acp").rglob("*.py")),
        *sorted((ROOT / "vscode-extension/src").rglob("*.ts")),
        *(page for kind in ("el", "lua", "rs", "md") for page in sorted((ROOT / "editors").rglob(f"*.{kind}"))),
        *sorted((ROOT / "examples").rglob("*.*")),
        *sorted((ROOT / ".github").rglob("*.yml")),
    ]
    install = re.compile(
        r"\b(?:pip|pipx|uv|tool) (?:install|add)\b[^\n`]*[\s'\"]cantrip-acp\b|\buvx (?!--from dist/)[^\n`]*cantrip-acp\b"
    )
    assert install.search("pip install --upgrade cantrip-acp")
    assert install.search("pip install 'cantrip-acp[otel]'")
    assert not install.search("pip install ./.cantrip-acp")
    found = [
        f"{name(each)}: {hit[0]}"
        for each in texts
        if each.is_file()
        for hit in install.finditer(each.read_text(errors="replace"))
    ]
    assert found == []


def test_pieces_of_recipes_are_taken() -> None:
    seen = 0
    for where, body in blocks("yaml"):
        # Lines with the same key are choices.
        pieces = body.splitlines() if len(re.findall(r"^(crystal):", body, re.MULTILINE)) > 1 else [body]
        for piece in pieces:
            data = YAML(typ="safe").load(piece)
            if data is None or "responses" in data or "steps" in data or "agent_terms" in data:
                continue
            text = json.dumps(RECIPE | data)
            assert not validation.problems(parse(text.encode(), Path("a.cantrip.yaml"))), f"{where}: {piece}"
            seen += 1
    assert seen > 10


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has nothing of ours yet."""
    folders = {each: str(tmp_path / each) for each in ("state", "config", "home")}
    (tmp_path / "home").mkdir()
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("CANTRIP_")},
        "HOME": folders["home"],
        "CANTRIP_STATE_DIR": folders["state"],
        "CANTRIP_CONFIG_DIR": folders["config"],
    }


def run(arguments: list[str], folder: Path, environment: dict[str, str], typed: str = "") -> str:
    done = processes.run(
        [sys.executable, "-m", "cantrip_acp.cli.main", *arguments],
        cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


OWN_TESTS = ("docs/python.md", "docs/releasing.md")
"""Pages whose examples other tests run. `docs/reference/` has help texts and signatures."""


def test_each_example_is_run_or_says_why_not() -> None:
    for page in USERS:
        if reference.FOLDER in page.parents or name(page) in OWN_TESTS:
            continue
        for found in EXAMPLE.finditer(page.read_text()):
            is_doctest = found["language"] == "python" and ">>>" in found["body"]
            if found["language"] in ("sh", "bash", "console", "python") and not is_doctest:
                known = found["word"] in ("run", "file") or (found["word"] == "not run" and found["value"])
                assert known, f"{name(page)}: {found['body']}"


RUNNABLE = [page for page in USERS if "<!-- run" in page.read_text()]


@needs_sandbox
@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, user: dict[str, str]
) -> None:
    text = page.read_text()
    if "models pull" in text and importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the extra embedded is not installed")
    project = tmp_path / "project"
    project.mkdir()
    sockets = tmp_path_factory.mktemp("s")
    environment = user | {
        "PATH": os.pathsep.join([str(processes.programs()), str(Path(sys.executable).parent), user["PATH"]]),
        "CANTRIP_CACHE_DIR": os.environ["CANTRIP_CACHE_DIR"],
        "XDG_RUNTIME_DIR": str(sockets),
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }
    with embedded.ended(sockets):
        page_examples.run_page(text, project, environment)


@needs_sandbox
def test_the_first_script_runs_as_it_says(tmp_path: Path, user: dict[str, str]) -> None:
    (body,) = (body for where, body in blocks("yaml") if where == "docs/install.md" and body.startswith("responses:"))
    (tmp_path / "hello.yaml").write_text(body)
    project = tmp_path / "project"
    project.mkdir()
    (project / "README.md").write_text("# Mine\n")
    crystal = {"CANTRIP_CRYSTAL": f"scripted:{tmp_path}/hello.yaml"}
    said = run(["repl"], project, user | crystal, "What is here?\n")
    assert "README.md" in said
    assert "# Mine" in said
    assert "That is what this project says of itself." in said
    assert "✗" not in said


def test_every_key_of_a_scripted_crystal_that_is_shown_is_known() -> None:
    shown = [YAML(typ="safe").load(body) for _, body in blocks("yaml") if re.search("^responses:", body, re.MULTILINE)]
    assert len(shown) == 3
    for each in shown:
        ScriptedCrystal(each["responses"])


def test_every_environment_variable_is_documented() -> None:
    """Each name in the package that looks like a variable of Cantrip, of a provider or of OpenTelemetry is in the table."""
    table = (ROOT / "docs/reference/environment.md").read_text()
    shape = re.compile(r"(CANTRIP|OTEL|XDG|ANTHROPIC|OPENAI|GEMINI|GOOGLE|OPENROUTER|OLLAMA)_[A-Z_]+")
    # Set by us: for the doctor's check that no variable of the host reaches a sandbox, and for each cell inside one.
    own = {"CANTRIP_CANARY", "CANTRIP_CELL"}
    named = {
        node.value
        for path in (ROOT / "cantrip_acp").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and shape.fullmatch(node.value)
    }
    assert {"CANTRIP_CRYSTAL", "OPENAI_BASE_URL"} <= named, "the search finds what it is to find"
    named |= {preset.key for preset in PRESETS.values()}
    written = set(re.findall(r"`([A-Z][A-Z_]{3,})`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    source = " ".join(path.read_text() for path in (ROOT / "cantrip_acp").rglob("*") if path.suffix in (".py", ".json"))
    # Read by the libraries: the SDKs of the providers, OpenTelemetry's exporter, httpx.
    libraries = re.compile(
        r"OPENAI_ORG_ID|OPENAI_PROJECT_ID|OTEL_\w+|TRACESTATE|ANTHROPIC_CUSTOM_HEADERS|OPENAI_CUSTOM_HEADERS|ALL_PROXY"
    )
    assert [name for name in sorted(written) if name not in source and not libraries.fullmatch(name)] == []
    assert [name for name in sorted(named - own) if f"`{name}`" not in table] == []


def test_the_reference_is_what_the_code_makes() -> None:
    """In a process of its own, because what other tests import and define in this one would be on the pages too."""
    program = [sys.executable, "tools/reference.py", "--check"]
    done = processes.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
