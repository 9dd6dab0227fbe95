"""`cantrip recipe`: writes, checks, converts, lists and shows recipes."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import click

from cantrip_acp.cli.command_table import SuggestingGroup, complete_recipe, examples
from cantrip_acp.cli.errors import with_excerpts
from cantrip_acp.cli.session.setup import project_option, state_option
from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.allowed import Allowed
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.recipes.inspect import Report
    from cantrip_acp.recipes.recipe import Recipe


@click.group("recipe", cls=SuggestingGroup, **examples("cantrip recipe new greeter", "cantrip recipe check .cantrip"))
def recipe() -> None:
    """Write, check and show recipes. A recipe is a file (NAME.cantrip.yaml) that describes a cantrip."""


@recipe.command("new", **examples("cantrip recipe new greeter", "cantrip recipe new - > greeter.cantrip.yaml"))
@click.argument("name")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@project_option
def new(name: str, force: bool, cwd: Path) -> None:
    """Write a new recipe with comments.

    The recipe is written to .cantrip/NAME.cantrip.yaml in the folder. NAME can also be a path (with a slash or a file ending).
    If NAME is -, the recipe is printed.
    """
    from cantrip_acp.loom.output_file import output_file
    from cantrip_acp.recipes.parse.document import SUFFIXES
    from cantrip_acp.recipes.recipe import is_path, stem

    if name == "-":
        sys.stdout.write(_template("greeter"))
        return
    if is_path(name):
        path = Path(name).expanduser()
        if not path.name.endswith(SUFFIXES):
            raise click.UsageError(f"the file name of a recipe ends in {' or '.join(SUFFIXES)}: {name}.cantrip.yaml")
    else:
        if name.startswith((".", "-")):
            raise click.UsageError(f"a recipe's name begins with a letter or a digit: {name!r}")
        path = cwd / ".cantrip" / f"{name}.cantrip.yaml"
    if os.path.lexists(path) and not force:
        raise DefinitionError("exists already; choose another name, or use --force to replace it", where=str(path))
    with output_file(path, overwrite=force, make_folder=True) as file:
        file.write(_template(stem(path)).encode())
    click.echo(f"wrote {path}")
    click.echo(f'try it: cantrip cast {stem(path) if not is_path(name) else path} "Say hello."')


def _template(name: str) -> str:
    from cantrip_acp import recipes

    text = (Path(recipes.__file__).parent / "templates" / "recipe.cantrip.yaml").read_text(encoding="utf-8")
    # A name may contain characters that YAML would read as syntax.
    return (
        text.replace(f"name: {_MARK}", f"name: {json.dumps(name)}")
        .replace(f"Hello from {_MARK}.", "Hello from your recipe.")
        .replace(_MARK, name)
    )


_MARK = "NAME"
_LONGEST = 2_000
"""The maximum length of a printed name or problem, in characters."""


@recipe.command(
    "check",
    **examples(
        "cantrip recipe new greeter", "cantrip recipe check .cantrip", "cantrip recipe check greeter coding --json"
    ),
)
@click.argument("targets", nargs=-1, required=True, metavar="FILE|FOLDER|NAME...", shell_complete=complete_recipe)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each file.")
@project_option
def check(targets: tuple[str, ...], as_json: bool, cwd: Path) -> int:
    """Check recipes, and report every error with file, line, column and key.

    For a folder, all recipes in it and in its .cantrip folder are checked. What `cantrip cast` refuses is refused
    here. What only this machine lacks, such as a key, is reported as a note.

    Exit status: 0 all recipes are valid, 2 at least one is not.
    """
    from cantrip_acp.cli.errors import DONE, USAGE
    from cantrip_acp.cli.render.terminal import shown_error
    from cantrip_acp.recipes import inspect

    reports = [inspect.check(path, file=label, workspace=cwd.resolve()) for path, label in _find_targets(targets, cwd)]
    # Somebody may have written a key in the place of a model's name.
    for report in map(shown_error, reports):
        if as_json:
            click.echo(json.dumps(_as_json(report)))
        else:
            _print_report(report)
    return DONE if all(report.ok for report in reports) else USAGE


def _find_targets(targets: tuple[str, ...], cwd: Path) -> list[tuple[Path, str]]:
    from cantrip_acp.recipes.recipe import is_path, names, recipe_files

    found: list[tuple[Path, str]] = []
    known = names(cwd.resolve())
    for target in targets:
        path = Path(target).expanduser()
        if path.is_dir():
            inside = [*recipe_files(path), *recipe_files(path / ".cantrip")]
            if not inside:
                raise DefinitionError("there is no recipe (*.cantrip.yaml) in this folder", where=target)
            found += [(p, str(p)) for p in inside]
        elif not is_path(target) and target in known and not path.is_file():
            found.append((known[target][1], str(known[target][1])))
        else:
            found.append((path, target))
    return found


def _as_json(report: Report) -> dict[str, Any]:
    return {"file": report.file, "ok": report.ok, "problems": list(report.problems), "notes": list(report.notes)}


def _print_report(report: Report) -> None:
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    for problem in report.problems:
        first, *excerpt = with_excerpts(clean_line(problem, _LONGEST))
        screen.line((first, "red"))
        for line in excerpt:
            screen.line((line, "dim"), whole=True)
    for note in report.notes:
        screen.line((f"{clean_line(note, _LONGEST)} (noted)", "yellow"))
    if report.ok:
        screen.line((f"{screen.marks.done} ", "green"), clean_line(report.file, _LONGEST))


@recipe.command(
    "convert",
    **examples(
        "printf '[circle]\\ngates = [\"done\"]\\nwards = [{max_turns = 3}]\\n' > greeter.cantrip.toml",
        "cantrip recipe convert greeter.cantrip.toml",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing file.")
def convert(file: Path, force: bool) -> None:
    """Convert a recipe from TOML, the format of earlier versions, to YAML.

    The YAML file is written to the same folder, with the comments. The TOML file is not changed.
    """
    from cantrip_acp.loom.output_file import output_file
    from cantrip_acp.recipes.convert import toml_to_yaml

    if file.suffix != ".toml":
        raise click.UsageError(f"this is not a TOML file: {file}")
    try:
        text = toml_to_yaml(file.read_text(encoding="utf-8-sig"), str(file))
    except OSError as error:
        raise DefinitionError(f"cannot be read: {error.strerror or error}", where=str(file)) from None
    except UnicodeDecodeError as error:
        raise DefinitionError(f"cannot be read: {error}", where=str(file)) from None
    path = file.with_suffix(".yaml")
    if os.path.lexists(path) and not force:
        raise DefinitionError("exists already; use --force to replace it", where=str(path))
    with output_file(path, overwrite=force) as out:
        out.write(text.encode())
    click.echo(f"wrote {path}; {file} can be deleted")


@recipe.command(
    "schema",
    **examples("cantrip recipe schema > cantrip.schema.json", "cantrip recipe schema --suite > suite.schema.json"),
)
@click.option("--suite", is_flag=True, help="The schema of the suites of `cantrip eval` instead.")
def schema(suite: bool) -> None:
    """Print the JSON Schema of recipes. The schema accepts exactly the recipes that Cantrip can load."""
    from cantrip_acp.recipes.models.schema import schema_of, text

    if suite:
        from cantrip_acp.evaluation.suite import SuiteModel

        click.echo(json.dumps(schema_of(SuiteModel, "Suite of tasks for cantrip eval"), indent=2, ensure_ascii=False))
        return
    sys.stdout.write(text())


@recipe.command("list", **examples("cantrip recipe list", "cantrip recipe list --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@project_option
def list_recipes(as_json: bool, cwd: Path) -> None:
    """List the recipes that can be used by name in this folder, with their paths."""
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.recipes.recipe import names

    if as_json:
        found = sorted(names(cwd.resolve()).items())
        about = [{"name": name, "source": source, "path": str(path)} for name, (source, path) in found]
        click.echo(json.dumps({"recipes": about}, indent=2))
        return
    screen = Screen()
    for name, (source, path) in sorted(names(cwd.resolve()).items()):
        # The folder may be hostile: a newline in a name or a path must not look like another recipe.
        screen.line((f"{clean_line(name):<20}", "bold"), f" {source:<10} ", (clean_line(str(path), _LONGEST), "dim"))


@recipe.command("install", **examples("cantrip recipe new greeter", "cantrip recipe install greeter"))
@click.argument("name", metavar="FILE|NAME", shell_complete=complete_recipe)
@click.option("--yes", is_flag=True, help="Install without asking (for scripts).")
@project_option
@state_option
def install(name: str, yes: bool, cwd: Path, state_dir: Path | None) -> int:
    """Install the MCP servers of a recipe that npx or uvx download.

    A server runs in the sandbox, without a network. The download of a server may reach the registry of npx or uvx, in a
    sandbox without your files. The command shows each server, and asks you before it installs one. `cantrip cast` and
    `cantrip repl` ask too, in a terminal.

    Exit status: 0 every server of the recipe is installed, 1 you did not allow one.
    """
    from cantrip_acp.cli.session.setup import install_servers, load_trusted
    from cantrip_acp.recipes.build.build import build

    found, workspace, _ = load_trusted(name, cwd, state_dir)
    done, left = install_servers(build(found, workspace=workspace), yes=yes)
    click.echo(f"{done} installed" + (f", {left} not installed" if left else "" if done else ": nothing was missing"))
    return 1 if left else 0


@recipe.command("show", **examples("cantrip recipe show coding", "cantrip recipe show coding --source"))
@click.argument("name", metavar="FILE|NAME", shell_complete=complete_recipe)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--source", is_flag=True, help="Print the file unchanged.")
@project_option
@state_option
def show(name: str, as_json: bool, source: bool, cwd: Path, state_dir: Path | None) -> None:
    """Show what a recipe defines: crystal, call, gates, active wards, and the text that describes the circle to the crystal."""
    from cantrip_acp.files import paths
    from cantrip_acp.recipes import inspect, load

    workspace = cwd.resolve()
    state = paths.state_dir(state_dir)
    found = load(name, workspace, state_dir=state)
    if source:
        sys.stdout.write(found.raw.decode("utf-8-sig"))
        return
    circle = inspect.circle_of(found, workspace)
    table = _allowed(found, circle)
    about = _about(found, circle, inspect.trust_of(found, workspace, state), inspect.crystal_line(found))
    about["allowed"] = table.record()
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    from cantrip_acp.cli.render.terminal import Screen

    _print_recipe(Screen(), about, circle, table)


def _allowed(found: Recipe, circle: Circle) -> Allowed:
    """List what casts of the recipe may do without a question. Its Python files and its servers are not started."""
    from cantrip_acp.acp.permissions.allowed import allowed
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.recipes.inspect import gate_files

    servers = [
        McpServer(name=each["name"], transport="http", url=each["url"])
        if "url" in each
        else McpServer(name=each["name"], command=each["command"], sandboxed=each.get("sandbox", True))
        for each in found.data.get("mcp_servers", ())
    ]
    programs = bool(found.data.get("memory", {}).get("programs"))
    return allowed(circle, servers, stored_programs=programs, gate_files=gate_files(found))


def _about(found: Recipe, circle: Circle, trust: str, crystal: str) -> dict[str, Any]:
    from cantrip_acp.recipes import inspect
    from cantrip_acp.recipes.build.build import _call, result_type
    from cantrip_acp.recipes.inspect import gate_files

    return {
        "name": found.name,
        "description": found.description,
        "file": str(found.path),
        "source": found.source,
        "trust": trust,
        "crystal": crystal,
        "call": _call(found).record(),
        "medium": circle.medium.name,
        **({"code_python": found.data["circle"]["code_python"]} if "code_python" in found.data["circle"] else {}),
        **({"loom_object": True} if found.data["circle"].get("loom") else {}),
        "gates": [
            {"name": gate.name, "signature": gate.signature(), "description": gate.description}
            for gate in circle.gates.values()
        ],
        "gate_files": gate_files(found),
        "mcp_servers": [
            {"name": server["name"], "runs": _runs(server)} for server in found.data.get("mcp_servers", ())
        ],
        **({"score": {"at": "turn", **found.data["circle"]["score"]}} if "score" in found.data["circle"] else {}),
        **({"result_schema": dict(thaw(kind.kind))} if (kind := result_type(found)) else {}),
        "wards": circle.wards.declared(),
        "retry": found.data.get("retry", {}),
        "loom": _loom(found),
        "tools": [{"name": tool.name, "description": tool.description} for tool in circle.tools],
        "presentation": circle.capabilities(text_calls=inspect.writes_calls(found)),
    }


def _runs(server: Mapping[str, Any]) -> str:
    """The command of an MCP server, or its address without a password and a query."""
    from cantrip_acp.cli.render.terminal import shown_error

    if server.get("command"):
        said = shlex.join([server["command"], *server.get("args", ())])
    else:
        parts = urlsplit(server["url"])
        said = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return shown_error(said)


def _loom(found: Recipe) -> dict[str, Any]:
    """The recipe's loom settings, without passwords."""
    from cantrip_acp.loom.stores.address import display_address

    settings = {"store": "jsonl", **found.data.get("loom", {})}
    return {**settings, "store": display_address(settings["store"])}


def _print_recipe(screen: Screen, about: dict[str, Any], circle: Circle, table: Allowed) -> None:
    def part(title: str) -> None:
        screen.blank()
        screen.line((title, "bold cyan"))

    screen.line((clean_line(about["name"]), "bold"), ("  " + clean_line(about["description"], _LONGEST), "dim"))
    for key in ("file", "trust", "crystal"):
        screen.line((f"{key:<9}", "dim"), clean_line(about[key], _LONGEST))
    part("call")
    call = about["call"] or {"(empty)": ""}
    for key, value in call.items():
        lines = str(value).rstrip("\n").splitlines() or [""]
        screen.line((f"{key}  ", "dim"), lines[0] if len(lines) == 1 else "", indent=2)
        for line in lines if len(lines) > 1 else ():
            screen.line(line, indent=4)
    part(f"circle: {about['medium']}")
    if "code_python" in about:
        screen.line(("cells run in ", "dim"), about["code_python"], indent=2)
    if about.get("loom_object"):
        screen.line(("the entity sees its own history as ", "dim"), "loom", indent=2)
    for gate in circle.gates.values():
        screen.line((gate.signature(), "bold"), ("  " + gate.description.split("\n")[0], "dim"), indent=2)
    for file in about["gate_files"]:
        screen.line(
            ("and the gates of ", "dim"), (file, "bold"), ("  which is not run to show a recipe", "dim"), indent=2
        )
    for server in about["mcp_servers"]:
        screen.line(
            ("and the tools of the MCP server ", "dim"),
            (server["name"], "bold"),
            (f"  {clean_line(server['runs'], _LONGEST)}, which is not started to show a recipe", "dim"),
            indent=2,
        )
    if "score" in about:
        asked = "each turn" if about["score"]["at"] == "turn" else "each cast, at its end,"
        screen.line(
            (f"{asked} is scored by ", "dim"),
            (about["score"]["python"], "bold"),
            ("  which is not run to show a recipe", "dim"),
            indent=2,
        )
    if "result_schema" in about:
        screen.line(("the answer must fit ", "dim"), json.dumps(about["result_schema"], ensure_ascii=False), indent=2)
    part("allowed without asking")
    for title, text in table.rows():
        screen.line((f"{title:<10}", "dim"), clean_line(text, _LONGEST), indent=2)
    part("wards")
    for key, value in about["wards"].items():
        screen.line((f"{key}  ", "dim"), json.dumps(value, ensure_ascii=False), indent=2)
    part("description of the circle for the crystal")
    if about["presentation"]:
        for line in about["presentation"].splitlines():
            screen.line(line, indent=2)
    for tool in circle.tools:
        screen.line(("tool ", "dim"), (tool.name, "bold"), ("  " + tool.description.split("\n")[0], "dim"), indent=2)
