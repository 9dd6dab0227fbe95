"""Setup for ``cast`` and ``repl``: loads the recipe that the user named, builds its cantrip, and opens a loom.

`read_context_files` reads the files of ``--context``. Options that several commands have are defined here too.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader

    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.messages import Attachment

CONTEXT_BYTES = 10 * 1024 * 1024
"""Maximum size of a picture, sound or PDF in a prompt, in bytes."""
PROMPT_BYTES = 64 * 1024
"""Maximum size of a text that is put before the intent, in bytes. A longer text is data outside the prompt."""


def _folder_option(text: str) -> Callable[[Any], Any]:
    kind = click.Path(exists=True, file_okay=False, path_type=Path)
    return click.option("--cwd", type=kind, default=Path(), metavar="DIR", help=f"{text}  [default: here]")


cwd_option = _folder_option("The folder to work in.")
project_option = _folder_option("The folder of the project.")
"""``--cwd`` of commands that cast nothing."""
loom_option = click.option(
    "--loom",
    "loom_file",
    metavar="FILE",
    help="Record to this loom, after its present content: a file, sqlite:FILE or postgresql://….  "
    "[default: a new file in the state folder]",
)
state_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder for looms and trust.  [default: $CANTRIP_STATE_DIR, else the platform's state folder]",
)


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the name of a model in the shell."""
    from cantrip_acp.cli.completion import model_names

    return model_names(context, incomplete)


def model_option(*, many: bool = False) -> Callable[[Any], Any]:
    """The option ``-m``: another model than the recipe's own, for one run."""
    return click.option(
        "-m",
        "--model",
        "models" if many else "model",
        multiple=many,
        metavar="MODEL",
        shell_complete=complete_model,
        help="Use this model in place of the recipe's own: PROVIDER:MODEL, a model's name alone if only one provider has it, "
        "embedded, scripted:FILE, or one of the recipe's `crystals`.",
    )


def _switch_cache_off(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        os.environ["CANTRIP_NO_CACHE"] = "1"


cache_option = click.option(
    "--no-cache",
    is_flag=True,
    envvar="CANTRIP_NO_CACHE",
    expose_value=False,
    callback=_switch_cache_off,
    help="Run every call of a gate and every step of a tuple, also one whose inputs have not changed ($CANTRIP_NO_CACHE).",
)
context_option = click.option(
    "--context",
    "context_files",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Give this file (text, a picture, sound or PDF; - is stdin) to the entity, together with the intent. May be repeated. A "
    "text of more than 64 KiB is not put into the prompt: the entity reads it from the variable `context` (code), from the file "
    "$CANTRIP_CONTEXT (bash) or with read_context (conversation).",
)


@dataclass(frozen=True)
class BuiltRecipe:
    """A recipe with its cantrip and folder. ``model`` is the model that replaces the recipe's own, as ``PROVIDER:MODEL``, or
    ""."""

    recipe: Recipe
    cantrip: Cantrip
    workspace: Path
    state_dir: Path
    model: str


@dataclass(frozen=True)
class OpenedRecipe(BuiltRecipe):
    """A recipe with its loom, ready for a cast. The caller must call `leave`."""

    loom: Loom

    def leave(self) -> None:
        self.loom.close()

    def record_model(self, entity: Entity) -> None:
        """Record in the loom that another model than the recipe's own answers. Call it once for an entity, before its cast."""
        if self.model:
            record_model(entity, self.model)


def record_model(entity: Entity, model: str) -> None:
    """Record in the loom that an entity has another model from now on, as a session of an editor does."""
    from cantrip_acp.types.records import ConfigRecord, new_id, now

    entity.loom.append(ConfigRecord(new_id("g"), entity.id, {"crystal": model}, now()))


def open_recipe(
    name_or_path: str,
    cwd: Path,
    loom_file: Path | str | None,
    state_dir: Path | None,
    model: str | None = None,
    *,
    many: bool = False,
    named_here: bool = True,
) -> OpenedRecipe:
    """Build a recipe (`build_recipe`) and open its loom."""
    from cantrip_acp.recipes.build.build import open_loom

    built = build_recipe(name_or_path, cwd, state_dir, model, many=many, named_here=named_here)
    loom = open_loom(built.cantrip.loom_settings, loom_file, built.state_dir)
    return OpenedRecipe(**vars(built), loom=loom)


def build_recipe(
    name_or_path: str,
    cwd: Path,
    state_dir: Path | None,
    model: str | None = None,
    *,
    many: bool = False,
    named_here: bool = True,
) -> BuiltRecipe:
    """Load a recipe and build its cantrip. ``model`` takes the place of the recipe's own model.

    ``many``: for casts that have nothing to do with each other, so they have no memory of sessions, unless the recipe wants it.

    A recipe that is named by its path is trusted for this run. A recipe of the workspace that is named without a path is not.
    """
    from cantrip_acp.recipes.build.build import build

    recipe, workspace, state = load_trusted(name_or_path, cwd, state_dir, named_here=named_here)
    if many and not recipe.data.get("memory", {}).get("batches"):
        recipe = recipe.independent()
    from cantrip_acp.tuplespace.reuse.gate_results import with_gate_cache

    crystal, named = model_for_run(recipe, model)
    cantrip = with_gate_cache(build(recipe, workspace=workspace, crystal=crystal), state)
    if sys.stdin.isatty() and sys.stderr.isatty():
        install_servers(cantrip)
    return BuiltRecipe(recipe, cantrip, workspace, state, named)


def model_for_run(recipe: Recipe, model: str | None) -> tuple[Crystal | None, str]:
    """The crystal of ``--model`` and its ``PROVIDER:MODEL``; None without the option. Warns on stderr about settings of the
    recipe that the model does not accept."""
    if model is None:
        return None, ""
    from cantrip_acp.recipes.build.crystal_choices import crystal_for_run, name_for_run

    crystal, notes = crystal_for_run(recipe, model, "--model")
    for note in notes:
        click.echo(clean_line(f"cantrip: {note}", 1000), err=True)
    return crystal, name_for_run(recipe, model, "--model")


def install_servers(cantrip: Cantrip, *, yes: bool = False) -> tuple[int, int]:
    """Ask about each MCP server that must be installed, and install it. Returns the numbers of installed and of skipped
    servers. With ``yes`` it does not ask. Raises `McpError` if one cannot be installed."""
    from cantrip_acp.gates.mcp.servers import to_install

    missing = to_install(cantrip.sources, cantrip.circle)
    if not missing:
        return 0, 0
    import anyio

    from cantrip_acp.gates.mcp import install

    done = left = 0
    for server in missing:
        click.echo(clean_line(f"cantrip: {install.describe(server)}", 1000), err=True)
        if yes or click.confirm("Install it now?", err=True):
            from cantrip_acp.gates.mcp.connection import install_server

            anyio.run(install_server, server, cantrip.circle, lambda line: click.echo(f"cantrip: {line}", err=True))
            done += 1
        else:
            left += 1
    return done, left


def trusted_cantrip(name_or_path: str, cwd: Path, state_dir: Path | None, crystal: Crystal) -> Cantrip:
    """Build the cantrip of a recipe with another crystal and without a loom. Checks the trust like `open_recipe`."""
    from cantrip_acp.recipes.build.build import build

    recipe, workspace, _ = load_trusted(name_or_path, cwd, state_dir)
    return build(recipe, workspace=workspace, crystal=crystal)


def load_trusted(
    name_or_path: str, cwd: Path, state_dir: Path | None, *, named_here: bool = True
) -> tuple[Recipe, Path, Path]:
    """Load the recipe and check its trust. Returns the recipe, its workspace and the state folder.

    A recipe that the user has not ``named_here``, but a file of the project, needs trust also if it is named by its path.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.recipes import load, trust
    from cantrip_acp.recipes.recipe import is_path

    state, workspace = paths.state_dir(state_dir), cwd.resolve()
    recipe = load(name_or_path, workspace, state_dir=state)
    if not (named_here and is_path(name_or_path)):
        trust.require(recipe, workspace, state)
    return recipe, workspace, state


@dataclass(frozen=True)
class ContextFiles:
    """The content of the ``--context`` files: blocks before the intent, and data that is not in a prompt."""

    blocks: tuple[ContextBlock, ...] = ()
    data: Any = None

    def to(self, cantrip: Cantrip) -> Cantrip:
        """The cantrip with the data of these files in its circle."""
        return cantrip if self.data is None else cantrip.replace(circle=cantrip.circle.replace(data=self.data))


def read_context_files(files: tuple[Path, ...]) -> ContextFiles:
    """Read the files of ``--context``: text, or a picture, sound or PDF as an attachment.

    A text longer than `PROMPT_BYTES` becomes data. Several such texts become a mapping of file name to text. Raises
    DefinitionError for other binary data, and for files that are too large.
    """
    from cantrip_acp.core.definition.circle import LARGEST_DATA
    from cantrip_acp.types.context_block import ContextBlock

    blocks = []
    texts: dict[str, str] = {}
    left = LARGEST_DATA
    for file in files:
        raw = _read(file, left + 1)
        left -= len(raw)
        if left < 0:
            mend = "let the entity read the file in the folder, or use a part of it"
            raise DefinitionError(
                f"--context accepts at most {LARGEST_DATA:,} bytes of text in total; {mend}", where=str(file)
            )
        attachment = _attachment(file, raw)
        if attachment is not None:
            if len(raw) > CONTEXT_BYTES:
                raise DefinitionError(f"too large for a prompt: more than {CONTEXT_BYTES:,} bytes", where=str(file))
            blocks.append(ContextBlock(title=_title(file), uri=attachment.uri, attachment=attachment))
            continue
        if b"\0" in raw:
            mend = "--context accepts text files, pictures, sound and PDF"
            raise DefinitionError(f"contains binary data; {mend}", where=str(file))
        text = raw.decode("utf-8-sig", "replace")
        if len(raw) > PROMPT_BYTES:
            texts[_title(file) if _title(file) not in texts else str(file)] = text
            continue
        uri = None if file == _STDIN else file.resolve().as_uri()
        blocks.append(ContextBlock(text, title=_title(file), source="user", uri=uri))
    return ContextFiles(tuple(blocks), None if not texts else texts if len(texts) > 1 else next(iter(texts.values())))


_STDIN = Path("-")
_FIRST_BYTE_S = 2.0
"""How long a pipe may stay silent. Some programs leave stdin open and never write to it."""


def _title(file: Path) -> str:
    return "stdin" if file == _STDIN else file.name


def _read(file: Path, most: int) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read(most)
    with open(file, "rb") as opened:
        return opened.read(most)


def piped_input() -> bool:
    """Whether something is piped into this command: stdin is a file with content, or a pipe to which something is written."""
    import stat

    from cantrip_acp.files.descriptors import is_ready

    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return os.fstat(0).st_size > os.lseek(0, 0, os.SEEK_CUR)
    if not stat.S_ISFIFO(mode):
        return False
    if is_ready(0, _FIRST_BYTE_S):
        # At its end it is ready too.
        return bool(cast("BufferedReader", sys.stdin.buffer).peek(1))
    click.echo("cantrip: stdin is a pipe to which nothing was written, so it is not read", err=True)
    return False


_ATTACHED = {
    b"\x89PNG\r\n\x1a\n": ("image", "image/png"),
    b"\xff\xd8\xff": ("image", "image/jpeg"),
    b"GIF8": ("image", "image/gif"),
    b"%PDF-": ("document", "application/pdf"),
    b"ID3": ("audio", "audio/mpeg"),
    b"\xff\xfb": ("audio", "audio/mpeg"),
    b"OggS": ("audio", "audio/ogg"),
    b"fLaC": ("audio", "audio/flac"),
}
"""The first bytes of files that are attached instead of read as text."""


def _attachment(file: Path, raw: bytes) -> Attachment | None:
    import base64

    from cantrip_acp.types.messages import Attachment

    found = next((kind for magic, kind in _ATTACHED.items() if raw.startswith(magic)), None)
    if raw[:4] == b"RIFF":
        found = {b"WEBP": ("image", "image/webp"), b"WAVE": ("audio", "audio/wav")}.get(raw[8:12])
    if found is None:
        return None
    uri = None if file == _STDIN else file.resolve().as_uri()
    return Attachment(found[0], found[1], base64.b64encode(raw).decode(), uri, _title(file))  # type: ignore[arg-type]
