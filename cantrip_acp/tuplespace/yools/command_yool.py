"""A yool that runs a shell command in the sandbox, in the folder of the project.

``{name}`` in the command stands for the step's argument with this name, as one word, or as one word for each value of a list.
The values reach the shell as variables, never as its text, so nothing in a value is read as shell code. A value that begins with
``-`` is refused where a program could take it for an option, unless ``--`` stands before it in the command. A command in which
the shell would compute with a value is refused, too. ``{{name}}`` is the text ``{name}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from cantrip_acp.files import disk_limit
from cantrip_acp.files.digests import FileDigests
from cantrip_acp.files.disk_limit import DiskLimit
from cantrip_acp.files.hidden_paths import matcher, may_be_above
from cantrip_acp.text.redaction import looks_secret, shared
from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.canonical_json import content_id
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.yools.step import StepCall, StepFailed, StepResult, YoolBase, is_of_the_machine
from cantrip_acp.types.errors import SandboxError, SandboxMissing

if TYPE_CHECKING:
    from cantrip_acp.sandbox import Outcome, Sandbox

_LONGEST_S = 3600.0
"""How long a command may run if its tuple has no deadline."""
_MOST_FILES = 1_000_000
_LARGEST_VALUE = 100_000
"""Bytes. The kernel takes 128 KiB in one variable."""
_SHOWN = 500
"""The most characters of output in an error."""
_PIECE = re.compile(r"\{\{|\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}|\\.|['\"]|#|.", re.DOTALL)
_BEGINS_WORD = re.compile(r"(?:^|[\s;|&(<>])\Z")
_MAY_BE_EMPTY = re.compile(r"(?:^|[\s;|&(<>`])(?:\$\w+|\$\{[^}]*\})*\Z")
"""The text before a value that may be the beginning of a word, because earlier values, quotes and variables can be empty."""
_COMPUTED = re.compile(r"\$\[[^\]]*\Z|(?:\$\{|\w\[)[^\]}\s]*\Z|(?:^|\s)\[\[\s(?:(?!\s\]\]).)*\Z", re.DOTALL)
"""Where the shell computes with a value. It then runs commands that stand in an index, as in ``a[$(command)]``."""
_COMPUTES = re.compile(
    r"(?:^|[;|&(`\n!{]|\b(?:then|do|else|if|while|until|builtin|command)\s)\s*"
    r"(?:let|eval|declare|typeset|local|readonly|trap|read|unset|"
    r"(?:test|\[|printf)\s(?:[^;|&\n]*\s)?-v)\s[^;|&\n]*\Z"
)
"""Commands of the shell that do the same with their arguments."""
_OPTIONS_END = re.compile(r"(?:^|\s)--\s(?:[^;|&\n(]*)\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GIVEN = {"CI": "1", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}
"""With CI, programs do not wait for input. Files that Python writes beside its sources would change the inputs."""
_RESERVED = frozenset({"project"})
"""Arguments that say for which worker a step is."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The command that a yool runs, and the inputs of its result."""

    run: str
    inputs: tuple[str, ...] | None = None
    """Patterns of the files that it reads. None: nobody said, so that no result is used again."""
    env: tuple[str, ...] = ()
    """Variables of the worker's environment that it gets."""
    network: tuple[str, ...] = ()
    """Hosts that it can reach."""

    @property
    def version(self) -> str:
        """The parts of the command itself that its result depends on."""
        return content_id({"kind": "command/1", **msgspec.to_builtins(self)})


class _Slot(msgspec.Struct, frozen=True):
    """A placeholder for an argument."""

    name: str
    may_be_option: bool
    """Whether a value here that begins with ``-`` could be taken for an option."""


class Template:
    """A command with its placeholders. Raises `TupleError` for one that cannot be filled safely."""

    def __init__(self, text: str) -> None:
        self._parts: list[str | _Slot] = []
        before, quote, comment = "", "", False
        # What stands before, with x for each character in quotes; the brackets that are open, where A computes.
        words, brackets = "", ""
        if not text.strip() or "\0" in text:
            raise TupleError("a command must have a text without NUL characters")
        for piece in _PIECE.finditer(text):
            said, name = piece[0], piece[1]
            if name is not None:
                if quote:
                    raise TupleError(
                        f"{{{name}}} stands between quotes; write it without them: a value is always one word. For the text "
                        f"itself write {{{{{name}}}}}"
                    )
                if name in _RESERVED:
                    raise TupleError(f"{{{name}}} cannot be used: {name} says for which project a step is")
                if not comment and ("A" in brackets or _COMPUTED.search(words) or _COMPUTES.search(words)):
                    raise TupleError(
                        f"the shell computes with {{{name}}} there, and so could run what stands in its value. Give the value to "
                        "a program, such as expr or [ (not [[ or (( )))"
                    )
                # An earlier value, quotes and variables can be empty.
                option = bool(_MAY_BE_EMPTY.search(words)) and not _OPTIONS_END.search(words)
                self._parts.append(_Slot(name, option))
                before += "x"
                continue
            quoted = quote
            if comment:
                comment = said != "\n"
            elif quote == "'":
                quote = "" if said == "'" else quote
            elif quote == '"':
                quote = "" if said == '"' else quote
            elif said in ("'", '"'):
                quote = said
            else:
                comment = said == "#" and bool(_BEGINS_WORD.search(before))
            literal = {"{{": "{", "}}": "}"}.get(said, said)
            if quote == "'" and said.startswith("\\") and said.endswith("'"):
                # In single quotes a backslash is a backslash.
                quote = ""
            self._parts.append(literal)
            plain = _without_quotes(said, literal, quoted)
            if plain == "(" and not comment:
                # ((…)) and $((…)) compute.
                brackets = f"{brackets[:-1]}AA" if brackets and words.endswith("(") else f"{brackets}("
            elif plain == ")":
                brackets = brackets[:-1]
            words += plain
            before += literal
        if quote:
            raise TupleError(f"a quote ({quote}) is not closed")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(dict.fromkeys(each.name for each in self._parts if isinstance(each, _Slot)))

    @property
    def schema(self) -> dict[str, Any]:
        value = {"type": ["string", "number", "boolean"]}
        either = {"anyOf": [value, {"type": "array", "items": value}]}
        return {
            "type": "object",
            "properties": {**dict.fromkeys(self.names, either), **{name: {"type": "string"} for name in _RESERVED}},
            "required": [*self.names],
            "additionalProperties": False,
        }

    def fill(self, args: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Fill in the arguments. Returns the command and the environment variables. Raises `TupleError` for wrong arguments."""
        names = self.names
        takes = f"it takes {', '.join(names)}" if names else "it takes none"
        unknown = sorted(args.keys() - {*names, *_RESERVED})
        if unknown:
            raise TupleError(f"the step's args have {', '.join(unknown)}, which the command does not take; {takes}")
        missing = [each for each in names if args.get(each) is None]
        if missing:
            raise TupleError(f"the step's args have no {', '.join(missing)}; the command takes {', '.join(names)}")
        values = {name: _words(name, args[name]) for name in names}
        text = ""
        variables: dict[str, str] = {}
        for part in self._parts:
            if isinstance(part, str):
                text += part
                continue
            words = values[part.name]
            if part.may_be_option and (option := next((word for word in words if word.startswith("-")), None)):
                raise TupleError(
                    f"the value of {part.name} begins with -, and could be taken for an option: {option[:100]!r}. To allow it, "
                    f"write -- before {{{part.name}}} in the command"
                )
            variables |= {f"YOOL_{part.name}_{number}": word for number, word in enumerate(words)}
            text += " ".join(f'"${{YOOL_{part.name}_{number}}}"' for number in range(len(words)))
        return text, variables


def _without_quotes(said: str, literal: str, quote: str) -> str:
    """A piece of a command without its quotes, with x for each quoted or escaped character in ``quote``."""
    if said == "\\\n" and quote != "'":
        return ""
    if quote:
        return "" if said == quote else "x"
    if said in ("'", '"'):
        return ""
    return "x" if said.startswith("\\") else literal


def _words(name: str, value: Any) -> list[str]:
    """The values of an argument as separate words."""
    words = []
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, bool):
            word = "true" if each else "false"
        elif isinstance(each, str | int | float):
            word = str(each)
        else:
            raise TupleError(f"the value of {name} must be a text, a number or a list of these")
        try:
            size = len(word.encode())
        except UnicodeError:
            raise TupleError(f"the value of {name} is not valid Unicode") from None
        if size > _LARGEST_VALUE or "\0" in word:
            raise TupleError(
                f"the value of {name} has a NUL character"
                if "\0" in word
                else f"the value of {name} has {size:,} bytes; at most {_LARGEST_VALUE:,} are allowed. Put it into a file"
            )
        words.append(word)
    return words


def check_variables(names: Sequence[str]) -> None:
    """Raise `TupleError` for environment variables that hold secrets, because no command may get them."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise TupleError(f"{name!r} cannot be the name of a variable")
        if looks_secret(name) or name.startswith("YOOL_"):
            why = "it is a secret, and no secret enters a sandbox" if looks_secret(name) else "this name is in use"
            raise TupleError(f"the variable {name} cannot be given to a command: {why}")


def check_hosts(names: Sequence[str]) -> None:
    """Raise `CantripError` for names that are not hosts a sandbox can reach."""
    from cantrip_acp.sandbox import AllowedHosts

    AllowedHosts.of(tuple(names))


class CommandYool(YoolBase):
    """Runs one command for each step. Only for steps of its project, if they say one.

    ``folder`` is the project, which the command may read and write; ``state`` is the state folder, which it never sees.
    ``authority`` says who may order it (`authority`).
    Raises `TupleError` for a command that cannot be filled safely, or for a variable that is a secret.
    """

    def __init__(
        self,
        command: Command,
        folder: Path,
        state: Path,
        *,
        full_name: str,
        project: str = "",
        authority: tuple[str, ...] = (),
    ) -> None:
        check_variables(command.env)
        self.full_name = full_name
        self.needs = {"project": project} if project else {}
        self.version = command.version
        self.authority = authority
        self._command = command
        self._template = Template(command.run)
        self._folder = folder
        self._private = (os.path.realpath(state),)
        self._inputs = [each.removeprefix("./") for each in command.inputs or ()]
        self._patterns = [matcher(each) for each in self._inputs]
        kept = state / "file-digests" / content_id(["command", os.fspath(folder), list(command.inputs or ())])[7:23]
        self._digests = FileDigests(kept)

    async def input_digest(self, call: StepCall) -> str | None:
        """The digest of the files and variables that the command reads. None if it does not declare them."""
        if self._command.inputs is None:
            return None
        files = await anyio.to_thread.run_sync(self._files) if self._patterns else ""
        if files is None:
            return None
        variables = {name: os.environ.get(name) for name in self._command.env}
        return content_id({"files": files, "env": variables})

    def _files(self) -> str | None:
        elsewhere = False

        def is_input(name: str) -> bool:
            return not name.startswith(".catalog/") and any(each.fullmatch(f"/{name}") for each in self._patterns)

        def counts(name: str) -> bool:
            nonlocal elsewhere
            found, place = is_input(name), self._folder / name
            if (found or may_be_above(self._inputs, name)) and place.is_symlink():
                # The digest has the path that a link leads to, not the content there.
                target = os.path.relpath(os.path.realpath(place), os.path.realpath(self._folder))
                elsewhere |= not (found and place.is_file() and not target.startswith("..") and is_input(target))
            return found

        digest = self._digests.folder(self._folder, counts, most=_MOST_FILES, strict=False)
        return None if elsewhere else digest

    async def __call__(self, call: StepCall) -> StepResult:
        from cantrip_acp.sandbox import ensure_checked

        try:
            text, variables = self._template.fill(call.args)
            for name in self._command.env:
                if (value := os.environ.get(name)) is not None:
                    if shared().holds(value):
                        raise TupleError(
                            f"the value of the variable {name} is a secret, and no secret enters a sandbox"
                        )
                    variables[name] = value
        except TupleError as error:
            return StepResult(exit=64, error=str(error))
        try:
            await ensure_checked()
            sandbox = await anyio.to_thread.run_sync(self._sandbox, call)
            limit = None if call.disk_mb is None else DiskLimit(round(call.disk_mb * 1_000_000))
            with disk_limit.in_force(limit):
                outcome = await sandbox.run(text, environment={**_GIVEN, **variables})
        except SandboxMissing as error:
            # A full disk ends, but a machine without a sandbox stays one.
            told, passes = str(error), is_of_the_machine(error)
            raise StepFailed(told, outage=True, mistake=not passes) from error
        except SandboxError as error:
            if is_of_the_machine(error):
                raise StepFailed(str(error), outage=True) from None
            return StepResult(exit=1, error=str(error))
        return _result(outcome)

    def _sandbox(self, call: StepCall) -> Sandbox:
        from cantrip_acp.files.paths import private_folders
        from cantrip_acp.sandbox import Sandbox, SandboxOptions

        seconds = _LONGEST_S if call.left_s is None else min(_LONGEST_S, call.left_s)
        options = SandboxOptions(
            bash_writable_paths=(str(self._folder),),
            bash_network=self._command.network or (),
            bash_timeout_ms=max(1, round(seconds * 1000)),
            sandbox_cpu_percent=call.cpu_percent,
        )
        return Sandbox(options, self._folder, private=(*private_folders(), *self._private))


def _result(outcome: Outcome) -> StepResult:
    """The output of the command, and for a failure its last lines."""
    # Before lines are left out, which could be the beginning of a key.
    said = storable({"stdout": outcome.stdout, "stderr": outcome.stderr}, shapes=True)
    result: dict[str, Any] = {"exit_code": outcome.exit_code, **said}
    if outcome.truncated:
        result["truncated"] = True
    if outcome.exit_code == 0:
        return StepResult(result=result)
    last = _last_lines(said["stderr"]) or _last_lines(said["stdout"])
    if outcome.exit_code is None:
        limit = "it ran too long" if outcome.timed_out else outcome.ended_because
        return StepResult(
            exit=75, result=result, error=f"the command was stopped: {limit}" + (f"; {last}" if last else "")
        )
    error = f"exit status {outcome.exit_code}" + (f": {last}" if last else "")
    return StepResult(exit=outcome.exit_code, result=result, error=error)


def _last_lines(text: str) -> str:
    lines = [line for line in text.rstrip().splitlines() if line.strip()][-5:]
    kept = "\n".join(lines)
    return kept if len(kept) <= _SHOWN else f"…{kept[-_SHOWN:]}"
