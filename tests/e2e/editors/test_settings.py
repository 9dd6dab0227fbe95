"""What ``editors/`` gives to be copied: every file and every piece in a README is well formed, and what it names exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cantrip_acp.lsp.commands.registry import COMMANDS
from cantrip_acp.lsp.server import document_kinds
from cantrip_acp.version import __version__
from tests.e2e.editors import debian_packages as debian
from tests.e2e.editors.conftest import RECIPE
from tests.e2e.editors.editor_processes import FILES, Emacs, Home, Neovim
from tests.support import processes

# The first one may have to load the editors.
pytestmark = pytest.mark.timeout(400)

ROOT = FILES.parent
READMES = sorted([*FILES.glob("*/README.md"), FILES / "README.md"])
EDITORS = sorted(each.parent for each in FILES.glob("*/README.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ZED = FILES / "zed/extension"
SERVED = ("cantrip.yaml", "cantrip.yml", "loom.jsonl")
# What VS Code's settings may say to the extension.
SETTINGS = frozenset(
    json.loads((ROOT / "vscode-extension/package.json").read_text())["contributes"]["configuration"]["properties"]
)
# What Zed's themes know, as its documentation of extensions lists them.
ZED_CAPTURES = {
    "boolean", "comment", "constant", "keyword", "label", "number", "operator", "property", "punctuation.bracket",
    "punctuation.delimiter", "punctuation.special", "string", "string.escape", "string.special", "type",
}  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(FILES))


def without_comments(text: str) -> str:
    """JSON as Zed and Sublime Text take it, as plain JSON."""
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (name(each), body) for each in READMES for kind, body in BLOCK.findall(each.read_text()) if kind == language
    ]


@pytest.mark.parametrize("folder", EDITORS, ids=name)
def test_each_readme_is_of_one_screen(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert text.startswith("# ")
    assert len(text.splitlines()) <= 50
    assert "## See it work" in text
    assert "cantrip-acp" in text, "how to get the agent"
    if folder.name != "registry":
        assert "## Trouble" in text


def test_every_editor_is_in_the_index() -> None:
    index = (FILES / "README.md").read_text()
    assert {each.name for each in FILES.iterdir() if each.is_dir()} <= set(re.findall(r"\]\((\w+)\)", index))


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_links_lead_somewhere(readme: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", BLOCK.sub("", readme.read_text())):
        assert (readme.parent / target).exists(), f"{name(readme)}: {target}"


def test_pieces_of_readmes_are_well_formed() -> None:
    read = {"json": json.loads, "toml": tomllib.loads, "yaml": YAML(typ="safe").load}
    for kind, parse in read.items():
        for where, body in blocks(kind):
            assert parse(body), where


def test_files_are_well_formed() -> None:
    for each in FILES.rglob("*"):
        if each.suffix in (".json", ".sublime-commands", ".sublime-settings"):
            assert json.loads(without_comments(each.read_text())), name(each)
        elif each.suffix == ".toml":
            assert tomllib.loads(each.read_text()), name(each)
        elif each.suffix == ".sublime-syntax":
            parsed = YAML(typ="safe").load(each.read_text().removeprefix("%YAML 1.2\n"))
            assert parsed["scope"].endswith(".cantrip")


def test_commands_of_the_server_exist() -> None:
    for each in FILES.rglob("*"):
        if each.suffix in (".md", ".lua", ".el", ".kak", ".toml", ".sublime-commands"):
            for command in re.findall(r"[\"' ]cantrip\.([a-z][A-Za-z]+)\b(?![.(/_-])", each.read_text()):
                known = {
                    *COMMANDS,
                    *SETTINGS,
                    "cantrip.schema",
                    "cantrip.acp",
                    "cantrip.kak",
                    "cantrip.yaml",
                    "cantrip.yml",
                }
                assert f"cantrip.{command}" in known, f"{name(each)}: cantrip.{command}"


def test_commands_of_the_shell_exist() -> None:
    said = set()
    for each in READMES:
        for body in re.findall(r"```sh\n(.*?)^```|`([^`\n]+)`", each.read_text(), re.MULTILINE | re.DOTALL):
            said |= set(re.findall(r"\bcantrip ([a-z]+(?: (?:new|view|check|schema|fork)\b)?)", " ".join(body)))
    assert {"lsp", "doctor", "repl", "recipe new", "loom view"} <= said
    for words in sorted(said):
        done = processes.run(
            [sys.executable, "-m", "cantrip_acp.cli.main", *words.split(), "--help"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"cantrip {words}: {done.stderr}"


def test_every_kind_of_file_is_served_everywhere() -> None:
    suffixes = {suffix for kind in document_kinds.KINDS for suffix in kind.suffixes if suffix.count(".") > 1}
    assert suffixes == {f".{each}" for each in SERVED}
    files = ["helix/languages.toml", "jetbrains/lsp4ij/template.json", "neovim/ftdetect/cantrip.lua"]
    files += ["emacs/cantrip-mode.el", "kakoune/cantrip.kak"]
    texts = {each: (FILES / each).read_text() for each in files}
    texts["sublime"] = " ".join(each.read_text() for each in (FILES / "sublime").glob("*.sublime-syntax"))
    texts["zed"] = " ".join(each.read_text() for each in ZED.rglob("config.toml"))
    for where, text in texts.items():
        plain = re.sub(r"%\.|\\\\\.|\[\.\]", ".", text)
        for each in SERVED:
            first, last = each.rsplit(".", 1)
            short = f"{first.partition('.')[0]}.ya?ml"
            met = each in plain or (last in ("yaml", "yml") and short in plain) or where.endswith(".kak")
            assert met, f"{where}: {each}"


def agents() -> dict[str, dict[str, Any]]:
    found = {
        "zed/settings.json": json.loads(without_comments((FILES / "zed/settings.json").read_text())),
        "jetbrains/acp.json": json.loads((FILES / "jetbrains/acp.json").read_text()),
    }
    return found | {where: json.loads(body) for where, body in blocks("json") if "agent_servers" in body}


def test_agents_are_started_by_a_program_that_we_install() -> None:
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for where, settings in agents().items():
        entry = settings["agent_servers"]["Cantrip"]
        assert set(entry) <= {"type", "command", "args", "env"}, where
        assert (entry["command"].rpartition("/")[2], entry["args"]) == ("cantrip-acp", []), where
        assert entry["command"].rpartition("/")[2] in programs
        assert ("type" in entry) is ("zed" in where), where


def test_versions_are_the_package_s() -> None:
    assert tomllib.loads((ZED / "extension.toml").read_text())["version"] == __version__
    assert tomllib.loads((ZED / "Cargo.toml").read_text())["package"]["version"] == __version__
    assert f";; Version: {__version__}\n" in (FILES / "emacs/cantrip-mode.el").read_text()


def test_zed_s_extension_fits_together() -> None:
    extension = tomllib.loads((ZED / "extension.toml").read_text())
    languages = {each.parent.name: tomllib.loads(each.read_text()) for each in ZED.glob("languages/*/config.toml")}
    (server,) = extension["language_servers"].values()
    assert set(server["languages"]) == {each["name"] for each in languages.values()} == set(server["language_ids"])
    assert {each["grammar"] for each in languages.values()} == {"yaml", "json"}
    assert set(server["language_ids"].values()) == set(languages)
    for task in json.loads((ZED / "languages/cantrip/tasks.json").read_text()):
        assert task["command"] == "cantrip"
        assert f"tag {task['tags'][0]}" in (ZED / "languages/cantrip/runnables.scm").read_text()


def captures(query: Path, text: Path) -> dict[str, list[str]]:
    grammar = tomllib.loads((query.parent / "config.toml").read_text())["grammar"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.editors.syntax_queries", grammar, query, text],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert "error" not in found, found
    return found


@pytest.mark.parametrize("query", sorted(ZED.rglob("*.scm")), ids=lambda each: f"{each.parent.name}-{each.stem}")
def test_zed_s_queries_find_what_they_are_for(query: Path, tmp_path: Path) -> None:
    recipe = RECIPE.replace("You count words.", "|\n    # You count\n")
    samples = {"cantrip": recipe, "cantrip-loom": '{"type": "turn", "n": 1, "ok": [true, null]}'}
    text = tmp_path / "text"
    text.write_text(samples[query.parent.name])
    found = captures(query, text)
    match query.parent.name, query.stem:
        case _, "highlights":
            assert set(found) <= ZED_CAPTURES
            assert {"property", "string", "number"} <= set(found)
            if query.parent.name == "cantrip":
                assert {"name", "crystal", "call", "circle"} == set(found["keyword"]) - {"description"}
                assert "max_turns" in found["property"]
        case _, "outline":
            assert set(found) == {"name", "item"}
            assert "circle" in found["name"]
        case _, "runnables":
            assert found["run"] == ["count"]
        case _, "injections":
            assert "# You count" in found["injection.content"][0]
        case _, "brackets":
            assert {"open", "close"} == set(found)
        case _, "indents":
            assert {"indent", "end"} == set(found)
        case other:
            raise AssertionError(f"nobody looks at {other}")


def test_lua_is_lua(neovim: Neovim) -> None:
    pieces = {name(each): each.read_text() for each in FILES.rglob("*.lua")} | dict(blocks("lua"))
    said = neovim.does(f"""
        for where, text in pairs(vim.json.decode({json.dumps(json.dumps(pieces))})) do
          local read, why = load(text, where)
          if not read then report(where, why) end
        end
    """)
    assert said == {"messages": []}


def test_lua_for_agents_gives_what_their_plugins_take(neovim: Neovim) -> None:
    said = neovim.does("""
        report('avante', require('cantrip.acp').avante({ env = { CANTRIP_CRYSTAL = 'human' } }))
        -- CodeCompanion's own function, which puts the second over an adapter of its own
        package.loaded['codecompanion.adapters'] = { extend = function(base, over) return { base, over } end }
        report('codecompanion', require('cantrip.acp').codecompanion({ command = { 'cantrip-acp', '--recipe', 'x' } }))
    """)
    assert said["avante"] == {"command": "cantrip-acp", "args": [], "env": {"CANTRIP_CRYSTAL": "human"}}
    base, over = said["codecompanion"]
    assert base == "goose"
    assert over["commands"] == {"default": ["cantrip-acp", "--recipe", "x"]}


def test_lisp_of_the_readme_works(emacs: Emacs) -> None:
    (first, *_) = [body for _, body in blocks("elisp")]
    body = first.replace("~/src/cantrip-acp/editors/emacs", str(FILES / "emacs"))
    said = emacs.does(f"""
        {body}
        (find-file "count.cantrip.yaml")
        (report "hook" (if (memq 'cantrip-ensure cantrip-mode-hook) 1 0))
        (report "keys" (symbol-name (key-binding (kbd "C-c C-c"))))
    """)
    assert said == {"hook": 1, "keys": "cantrip-cast"}


def test_kakoune_takes_its_file(editors: debian.Root, home: Home, workspace: Path) -> None:
    command, needs = editors.kakoune()
    (workspace / "a.loom.jsonl").write_text("{}\n")
    out = workspace / "said"
    # What the README puts into a kakrc, with a stand-in for kakoune-lsp, which enables itself for a window.
    ((_, kakrc),) = blocks("kak")
    script = f"""
        declare-option str lsp_servers
        declare-option str-list lsp_seen
        define-command lsp-enable-window %{{
            set-option window tabstop 8
            set-option -add global lsp_seen %val{{bufname}}
        }}
        define-command lsp-execute-command -params 2 %{{ echo -to-file {out}.json %arg{{2}} }}
        {kakrc.replace("eval %sh{kak-lsp}", "").replace("%val{config}", f"{FILES}/kakoune")}
        edit a.loom.jsonl
        echo -to-file {out}.loom %opt{{filetype}}
        edit count.cantrip.yaml
        echo -to-file {out}.yaml "%opt{{filetype}} %opt{{lsp_servers}}"
        cantrip-cast Say "it's" %{{a \\ "word".}}
        echo -to-file {out}.seen %opt{{lsp_seen}}
        quit!
    """
    done = subprocess.run(
        [*command, "-ui", "dummy", "-e", script], cwd=workspace, env=home.environment(needs),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert Path(f"{out}.json").exists(), done.stdout + done.stderr
    assert Path(f"{out}.loom").read_text().strip() == "json"
    seen = Path(f"{out}.seen").read_text().split()
    assert seen == ["a.loom.jsonl", "count.cantrip.yaml"]
    filetype, _, server = Path(f"{out}.yaml").read_text().partition(" ")
    assert filetype == "yaml"
    assert tomllib.loads(server)["cantrip"]["args"] == ["lsp"]
    (sent,) = json.loads(Path(f"{out}.json").read_text())
    assert sent == {"uri": str(workspace / "count.cantrip.yaml"), "intent": 'Say it\'s a \\ "word".'}
