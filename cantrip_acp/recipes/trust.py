"""Trust: checks which features a recipe from a workspace may use, and stores the folders and commands that a user trusts.

A repository may contain hostile recipes. Until the user runs ``cantrip trust DIR``, its recipes may use only harmless
features. Trust applies to the current content of the folder's recipes and of the files that they name. After a change
the user must trust the folder again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from cantrip_acp.files import guarded
from cantrip_acp.files.paths import private
from cantrip_acp.files.protected_paths import is_git_config
from cantrip_acp.gates.confinement import Root
from cantrip_acp.recipes.build import crystal_factory
from cantrip_acp.recipes.build.python_files import Files, imported
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.recipes.recipe import Recipe, load, read, recipe_files
from cantrip_acp.types.errors import CantripError, DefinitionError, GateError, RecipeError, UntrustedRecipe
from cantrip_acp.types.records import now

FOLDER = ".cantrip"
FILE = "trust.json"

_PATH_WARDS = ("bash_writable_paths", "code_readable_paths", "code_writable_paths")
_REFUSED_GATES = {
    "client_terminal": "its commands run on this machine, outside the sandbox",
    "compile_and_load": "it compiles and loads code",
    "fetch": "it reaches the network",
}

State = Literal["trusted", "changed", "untrusted"]


def require(recipe: Recipe, workspace: Path, state_dir: Path) -> None:
    """Accept a recipe that is harmless, the user's own, built in, or trusted. Raises `UntrustedRecipe`."""
    if recipe.source in ("user", "built-in"):
        return
    asked = list(demands(recipe.data, recipe.path.parent, workspace))
    if not asked:
        return
    ours = lies_in(workspace, recipe)
    if ours and Ledger(state_dir).state(workspace, recipe.files) == "trusted":
        return
    places = [
        str(recipe.problem(path, f"not allowed, because the recipe is not trusted: {why}")) for path, why in asked
    ]
    if ours:
        raise UntrustedRecipe(places, folder=str(workspace))
    how = "to allow this, name the file on the command line (cantrip repl FILE, cantrip-acp --recipe FILE)"
    raise RecipeError([*places, f"{recipe.file}: {how}"])


def demands(data: Mapping[str, Any], folder: Path, workspace: Path) -> Iterator[tuple[KeyPath, str]]:
    """Everything in a recipe's canonical data that needs trust: key and reason.

    ``folder`` is the folder of the recipe, ``workspace`` the folder of the session.
    """

    def why_unread(path: str, base: Path) -> str | None:
        """Why a recipe without trust may not read this file."""
        if outside(path, base):
            return "it reads a file outside the workspace"
        return _why_hidden(path, base, workspace)

    def outside(path: str, base: Path) -> bool:
        inside = os.path.realpath(workspace)
        found = os.path.realpath(base / ("." if path == "workspace" and base == workspace else Path(path).expanduser()))
        return not (found == inside or found.startswith(inside.rstrip(os.sep) + os.sep))

    for path, crystal in _crystals(data):
        options = crystal_factory.options_of(crystal)
        provider = options.pop("provider")
        if provider in names.added_crystals():
            for key in options.keys() - {"model"}:
                yield (*path, key), "it sets up another package's crystal"
        for key, why in (
            ("base_url", "prompts and keys would go to that address"),
            ("headers", "it adds to what is sent to the provider"),
            ("api_key_env", "it sends the content of that variable to the provider"),
        ):
            if key in options:
                yield (*path, key), why
        script = options.get("script")
        if script is not None and (unread := why_unread(script, folder)):
            yield (path if isinstance(crystal, str) else (*path, "script")), unread
    prompt = data.get("call", {}).get("system_prompt_file")
    if prompt is not None and (unread := why_unread(prompt, folder)):
        yield ("call", "system_prompt_file"), unread
    schema = data.get("result_schema")
    if isinstance(schema, str) and (unread := why_unread(schema, folder)):
        yield ("result_schema",), unread
    store = data.get("loom", {}).get("store", "jsonl")
    if store not in ("memory", "jsonl"):
        yield ("loom", "store"), "it decides where the loom is written"
    python = data["circle"].get("code_python")
    # The interpreter runs only in the sandbox, so an interpreter in the workspace needs no trust. With an interpreter
    # elsewhere, cells could read its folder. A single word is the workspace's environment or a program on PATH. For
    # trusted recipes too, `sandbox.policy.interpreter` checks the targets of links in the workspace.
    if python is not None and ("/" in python or python[:1] in ("~", ".")):
        folder_of = python if os.path.isdir(workspace / Path(python).expanduser()) else os.path.dirname(python)
        if outside(folder_of or ".", workspace):
            yield ("circle", "code_python"), "the interpreter is outside the workspace"
    for index, gate in enumerate(data["circle"]["gates"]):
        at: KeyPath = ("circle", "gates", index)
        options = gate if isinstance(gate, dict) else {"name": gate}
        if "python" in options:
            yield (*at, "python"), "its code would run on this machine, outside the sandbox"
        elif options["name"] in _REFUSED_GATES:
            yield at, _REFUSED_GATES[options["name"]]
        elif options["name"] in names.added_gates():
            for key in options.keys() - {"name"}:
                yield (*at, key), "it sets up another package's gate"
        elif "root" in options and outside(options["root"], workspace):
            yield (*at, "root"), "the folder is outside the workspace"
    yield from _servers(data, outside, workspace)
    if "score" in data["circle"]:
        yield ("circle", "score", "python"), "its code would run on this machine, outside the sandbox"
    for index, ward in enumerate(data["circle"]["wards"]):
        for name, value in ward.items():
            at = ("circle", "wards", index, name)
            if name == "bash_network" and value not in (False, []):
                yield at, "it allows the network"
            elif name == "bash_home" and value != "private":
                yield at, "it keeps a home folder outside the workspace"
            elif name == "allow_protected" and value:
                yield (
                    at,
                    f"it lets commands and gates write files that other programs execute: {', '.join(map(str, value))}",
                )
            elif name.startswith("allow_compile"):
                yield at, "it lets the entity load code"
            elif name in _PATH_WARDS:
                for item in value:
                    if outside(item, workspace):
                        yield at, f"{item} is outside the workspace"


def _why_hidden(path: str, base: Path, workspace: Path) -> str | None:
    """Why a gate could not read a file of the workspace, for example because it holds credentials. None if it can."""
    place = os.path.join(base, Path(path).expanduser())
    try:
        with Root(str(workspace)).find(os.path.relpath(place, workspace)) as found:
            if is_git_config(found.parts):
                return "it reads the settings of git, which may hold credentials"
    except GateError as error:
        return f"it reads a file that gates cannot read: {error}"
    return None


def _servers(
    data: Mapping[str, Any], outside: Callable[[str, Path], bool], workspace: Path
) -> Iterator[tuple[KeyPath, str]]:
    for index, server in enumerate(data.get("mcp_servers", ())):
        at: KeyPath = ("mcp_servers", index)
        if "url" in server:
            yield (*at, "url"), "it is reached over the network"
        if not server.get("sandbox", True):
            yield (*at, "sandbox"), "its program would run on this machine, outside the sandbox"
        for key in ("env_names", "header_env"):
            if server.get(key):
                yield (*at, key), "it gets the content of your variables"
        if server.get("trusted"):
            yield (*at, "trusted"), "what it says of its own tools would be believed"
        command = server.get("command", "")
        if ("/" in command or command[:1] in ("~", ".")) and outside(command, workspace):
            yield (*at, "command"), "the program is outside the workspace"


def _crystals(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    if data.get("crystal") is not None:
        yield ("crystal",), data["crystal"]
    for name, crystal in data.get("crystals", {}).items():
        yield ("crystals", name), crystal


def powers(recipe: Recipe) -> Iterator[str]:
    """What a trusted recipe could do, as texts that follow "it could". Names in them come from the recipe."""
    data, circle = recipe.data, recipe.data["circle"]
    medium = circle.get("medium", "conversation")
    for _, crystal in _crystals(data):
        options = crystal_factory.options_of(crystal)
        where = f" at {options['base_url']}" if "base_url" in options else ""
        key = options.get("api_key_env")
        yield f"send prompts to {options['provider']}:{options.get('model', 'its own model')}{where}" + (
            f", with the content of ${key}"
            if key
            else ", with your key for it"
            if options["provider"] != "scripted"
            else ""
        )
    if medium == "bash":
        yield "run shell commands in the sandbox, which see the folder"
    elif medium in ("code", "monty"):
        yield "run Python in the sandbox"
    for gate in circle["gates"]:
        options = gate if isinstance(gate, dict) else {"name": gate}
        if "python" in options:
            yield f"run the Python file {options['python']} on this machine, outside the sandbox, as you"
            continue
        root = f" below {options['root']}" if "root" in options else ""
        does = _GATE_POWERS.get(options["name"])
        if does is not None:
            yield f"{does}{root} (gate {options['name']})"
    if "score" in circle:
        yield f"run the Python file {circle['score']['python']} on this machine, outside the sandbox, as you"
    for ward in circle["wards"]:
        for name, value in ward.items():
            power = _WARD_POWERS.get(name)
            if power is not None and value not in (False, [], (), "private"):
                listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else ""
                yield f"{power}{': ' + listed if listed else ''} ({name})"
    for server in data.get("mcp_servers", ()):
        name = server.get("name", "a server")
        if "url" in server:
            yield f"reach the MCP server {name} over the network at {server['url']}"
        else:
            where = "in the sandbox" if server.get("sandbox", True) else "on this machine, outside the sandbox, as you"
            words = [str(server.get("command", "")), *map(str, server.get("args", ()))]
            yield f"run the MCP server {name} {where}: {' '.join(words)}"
        for key in ("env_names", "header_env"):
            if server.get(key):
                names_of = server[key].values() if isinstance(server[key], dict) else server[key]
                yield f"give the MCP server {name} the content of {', '.join(f'${each}' for each in names_of)}"
    store = data.get("loom", {}).get("store", "jsonl")
    if store not in ("memory", "jsonl"):
        # The address may contain a password.
        yield f"choose the {str(store).partition(':')[0]} store to which the loom with the whole conversation is written"


_GATE_POWERS = {
    "client_terminal": "run commands in your editor's terminal, outside the sandbox, as you",
    "compile_and_load": "load Python that it wrote, in the sandbox",
    "fetch": "send requests to public hosts of the internet",
    "write_file": "write files",
    "edit_file": "change files",
    "read_file": "read files",
    "list_dir": "list folders",
    "search": "search in files",
    "git_commit": "make commits",
    "shell": "run commands in the sandbox",
    "run_tests": "run the folder's tests in the sandbox",
    "start": "run commands in the sandbox that go on beside it",
    "call_agent": "start child agents that have no more rights than it has",
}
_WARD_POWERS = {
    "bash_network": "use the network from the sandbox",
    "bash_writable_paths": "let commands write",
    "code_writable_paths": "let Python write",
    "code_readable_paths": "let Python read",
    "git_writes": "let commands change branches, commits and the index of git",
    "bash_home": "keep a home folder between runs",
    "allow_protected": "write files that other programs execute",
    "allow_compile_modules": "load modules of these names",
    "allow_compile_paths": "load modules from these folders",
    "allow_compile_sha256": "load modules with these hashes",
    "allow_compile_signers": "load modules that these keys signed",
}


def lies_in(workspace: Path, recipe: Recipe) -> bool:
    """Whether the recipe is in the workspace's recipe folder, which `digest` covers."""
    return os.path.realpath(recipe.path.parent) == os.path.realpath(workspace / FOLDER)


class Content(Struct, frozen=True):
    """The content that is trusted: each file with its hash, and one hash over all of them."""

    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()


def content(workspace: Path, files: Files) -> Content:
    """The current recipes of a workspace and the files that they name."""
    found: dict[str, str] = {}
    for path in recipe_files(workspace / FOLDER):
        try:
            found[path.name] = hashlib.sha256(files.read(path)).hexdigest()
            recipe = load(path, files=files)
        except CantripError:
            # An invalid or unreadable recipe cannot run. When it is corrected, the content of the folder changes.
            found.setdefault(path.name, "")
            continue
        for named in named_by(recipe):
            key = os.path.relpath(named, workspace / FOLDER)
            try:
                found[key] = hashlib.sha256(files.read(named)).hexdigest()
            except DefinitionError:
                found[key] = ""
        for program in programs(recipe, workspace):
            found.setdefault(os.path.relpath(program, workspace / FOLDER), program_digest(program))
    return Content(found)


def guard(workspace: Path, recipe: Recipe | None = None) -> None:
    """Protect the files that the workspace's recipes and this one name from the gates and sandboxes of this process."""
    named: dict[str, str] = {}
    recipes = [recipe] if recipe is not None else []
    for path in recipe_files(workspace / FOLDER):
        with suppress(CantripError):
            if recipe is None or path != recipe.path:
                files, state = (Files(), None) if recipe is None else (recipe.files, recipe.state_dir)
                recipes.append(read(path, "workspace", files, state_dir=state))
    for each in recipes:
        if each.source == "path":
            # Nobody asks again when it has changed: the user names it on the command line.
            named[str(each.path.absolute())] = f"the recipe {each.path.name}"
        for file in (*named_by(each), *programs(each, workspace)):
            named.setdefault(os.path.abspath(file), f"the recipe {each.path.name}")
    guarded.name_files(f"{os.path.realpath(workspace)}\0{recipe.path if recipe is not None else ''}", named)


def programs(recipe: Recipe, workspace: Path) -> Iterator[Path]:
    """The files of the workspace that MCP servers outside the sandbox run: the program, and arguments that are files, with the
    modules beside them that Python files import."""
    from cantrip_acp.gates.mcp.declaration import program_files

    for server in recipe.data.get("mcp_servers", ()):
        if "url" not in server and not server.get("sandbox", True):
            args = [str(each) for each in server.get("args", ())]
            for path in program_files(str(server["command"]), args, workspace):
                yield from _with_imports(path, recipe.files)


def _with_imports(path: Path, files: Files) -> Iterator[Path]:
    yield path
    if path.suffix == ".py" or not path.suffix:
        yield from (file for _, file in imported(path, files))


def program_digest(path: Path) -> str:
    """The hash of a program of any size; empty if it is no file that can be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        pass
    return ""


def named_by(recipe: Recipe) -> Iterator[Path]:
    """The files that a recipe names, and those that its Python files import from their folder."""
    for _, crystal in _crystals(recipe.data):
        script = crystal_factory.options_of(crystal).get("script")
        if script is not None:
            yield recipe.path_of(script)
    prompt = recipe.data.get("call", {}).get("system_prompt_file")
    if prompt is not None:
        yield recipe.path_of(prompt)
    if isinstance(recipe.data.get("result_schema"), str):
        yield recipe.path_of(recipe.data["result_schema"])
    for gate in recipe.data["circle"]["gates"]:
        if isinstance(gate, dict) and "python" in gate:
            yield from _python(recipe, gate["python"])
    if "score" in recipe.data["circle"]:
        yield from _python(recipe, recipe.data["circle"]["score"]["python"])


def _python(recipe: Recipe, name: str) -> Iterator[Path]:
    """A Python file of a recipe, and the files beside it that it imports."""
    path = recipe.path_of(name)
    yield path
    yield from (file for _, file in imported(path, recipe.files))


_PARTS = ("folders", "commands", "hosts")


class Ledger:
    """The folders and commands that the user trusts, and the hosts of projects, stored in the state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE

    def state(self, workspace: Path, files: Files | None = None) -> State:
        """Whether a workspace is trusted with its current content, was trusted before a change, or never."""
        entry = self.folders().get(os.path.realpath(workspace))
        if entry is None:
            return "untrusted"
        same = entry.get("digest") == content(workspace, files or Files()).digest
        return "trusted" if same else "changed"

    def folders(self) -> dict[str, dict[str, Any]]:
        """Every trusted folder with its entry: digest, files, time."""
        return self._read()["folders"]

    def commands(self) -> dict[str, dict[str, Any]]:
        """Every trusted command of an MCP server, as the JSON list of its words, with its entry: time."""
        return self._read()["commands"]

    def trusts_command(self, argv: Sequence[str]) -> bool:
        """Whether the user allowed exactly this command line outside the sandbox."""
        return _words(argv) in self.commands()

    def hosts(self, workspace: Path) -> frozenset[str]:
        """The patterns of the hosts that commands in a folder may reach, by answers of the user for this project."""
        return frozenset(self.all_hosts().get(os.path.realpath(workspace), {}).get("patterns", ()))

    def all_hosts(self) -> dict[str, dict[str, Any]]:
        """Every folder with such answers, with its entry: patterns, time."""
        return self._read()["hosts"]

    def allow_hosts(self, workspace: Path, patterns: Sequence[str]) -> None:
        """Let commands in a folder reach these hosts too, in every session."""
        known = self.hosts(workspace)
        self._change("hosts", os.path.realpath(workspace), {"patterns": sorted({*known, *patterns}), "when": now()})

    def forget_hosts(self, workspace: Path) -> bool:
        """Remove these answers. Returns False if there were none."""
        return self._change("hosts", os.path.realpath(workspace), None)

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {part: {} for part in _PARTS}
        except (OSError, ValueError) as error:
            # If the file cannot be read, nothing is trusted, and the file is not overwritten.
            raise DefinitionError(
                f"cannot be read ({error}); correct or remove the file", where=str(self.path)
            ) from None
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for part in _PARTS:
            entries = data.get(part, None if part == "folders" else {}) if isinstance(data, dict) else None
            if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
                raise DefinitionError(
                    f"is not a list of trusted {part}; correct or remove the file", where=str(self.path)
                )
            found[part] = entries
        return found

    def grant_seen(self, workspace: Path, seen: Content) -> bool:
        """Trust the content that was shown to the user. Returns False, and grants nothing, if a file has changed since."""
        if content(workspace, Files()).digest != seen.digest:
            return False
        entry = {"digest": seen.digest, "files": dict(seen.files), "when": now()}
        self._change("folders", os.path.realpath(workspace), entry)
        return True

    def grant(self, workspace: Path) -> Content:
        """Trust the current recipes of a workspace."""
        what = content(workspace, Files())
        entry = {"digest": what.digest, "files": dict(what.files), "when": now()}
        self._change("folders", os.path.realpath(workspace), entry)
        return what

    def revoke(self, workspace: Path) -> bool:
        """Remove the trust in a folder. Returns False if the folder was not trusted."""
        return self._change("folders", os.path.realpath(workspace), None)

    def grant_command(self, argv: Sequence[str]) -> None:
        """Allow an MCP server to run outside the sandbox, if its command line is exactly this one."""
        self._change("commands", _words(argv), {"when": now()})

    def revoke_command(self, argv: Sequence[str]) -> bool:
        """Remove the trust in a command. Returns False if the command was not trusted."""
        return self._change("commands", _words(argv), None)

    def _change(self, part: str, name: str, entry: dict[str, Any] | None) -> bool:
        import fcntl

        private(self.path.parent)
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self._read()
            had = data[part].pop(name, None) is not None
            if entry is not None:
                data[part][name] = entry
            new = self.path.with_suffix(".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                # A file name may contain bytes that are not UTF-8.
                json.dump({"version": 1, **data}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        return had


def _words(argv: Sequence[str]) -> str:
    return json.dumps(list(argv), ensure_ascii=False)
