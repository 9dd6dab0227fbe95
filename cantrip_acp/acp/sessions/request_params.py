"""What requests that open a session say: its folders, its system prompt and its trace. Raises `RpcError` -32602 for what
cannot be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.sessions.session_store import ClientPrompt
from cantrip_acp.acp.wire.jsonrpc import RpcError, invalid_params, meta_of
from cantrip_acp.files.paths import own
from cantrip_acp.telemetry import tracing

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_store import SessionMetadata

_UNNAMED = tracing.Trace("")


def read_system_prompt(params: acp.NewSession | acp.LoadSession) -> ClientPrompt | None:
    """The client's system prompt: ``systemPrompt`` of the request, or ``_meta.systemPrompt`` (a text, which replaces the
    recipe's, or ``{append: TEXT}``). Raises `RpcError` -32602 for anything that cannot be applied."""
    given, place = params.system_prompt, "systemPrompt"
    if given is not None:
        mode, texts = given.mode, [block.text if isinstance(block, acp.Text) else None for block in given.content]
    else:
        place, found = "_meta.systemPrompt", meta_of(params.meta, acp.SessionMeta).system_prompt
        if found is None:
            return None
        mode, texts = ("override", [found]) if isinstance(found, str) else ("append", [found.append])
    if mode not in ("append", "override"):
        raise invalid_params(f"must be append or override, not {mode[:100]!r}", f"{place}.mode")
    if not all(isinstance(text, str) for text in texts):
        raise invalid_params("must be text", place)
    text = "\n\n".join(map(str, texts))
    if not text.strip():
        raise invalid_params("must not be empty", place)
    return ClientPrompt("append" if mode == "append" else "override", text)


def requested_trace(meta: Any) -> tracing.Trace | None:
    """The trace that a request names in ``_meta``, or None."""
    trace = tracing.trace_from(meta, default=_UNNAMED)
    return trace if trace is not _UNNAMED else None


def check_same_prompt(params: acp.LoadSession, metadata: SessionMetadata) -> None:
    """Check that a request does not change the system prompt of an existing session. Raises `RpcError` -32602."""
    prompt = read_system_prompt(params)
    if prompt is not None and prompt != metadata.system_prompt:
        raise invalid_params(
            "differs from the system prompt of this session, which never changes; fork the session with the new one",
            "systemPrompt",
        )


def session_folders(cwd: str, additional: Sequence[str] | None) -> tuple[Path, list[Path]]:
    return check_folder(cwd), list(
        dict.fromkeys(
            check_additional_folder(path, f"additionalDirectories[{index}]")
            for index, path in enumerate(additional or ())
        )
    )


_SYSTEM = ("/proc", "/sys", "/dev")


def check_additional_folder(path: str, place: str) -> Path:
    """Check an additional folder of a session. Raises `RpcError` -32602 if it is missing or must not be shared.

    A folder above this program's own folders is allowed, because gates and commands cannot reach those.
    """
    folder = check_folder(path, place)
    real = os.path.realpath(folder)
    states, config = own()
    if real == "/":
        raise invalid_params("is the whole file system; give the folders that the session needs", place)
    if any(real == system or real.startswith(f"{system}/") for system in _SYSTEM):
        raise invalid_params(f"is a folder of the kernel, not of files: {path[:200]}", place)
    if any(real == ours or real.startswith(f"{ours}/") for ours in (*states, config)):
        raise invalid_params(
            f"contains this agent's own settings or sessions, which an agent must not change: {path[:200]}. If you want to work "
            "on it, open it as the folder of a session",
            place,
        )
    return folder


def check_folder(cwd: str, place: str = "cwd") -> Path:
    """Check a folder of a session. Raises `RpcError` -32602 if it is not an accessible folder."""

    def refuse(problem: str) -> RpcError:
        return invalid_params(problem, place)

    if not os.path.isabs(cwd):
        raise refuse(f"must be an absolute path, not {cwd[:200]!r}")
    try:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise refuse(f"is a file, not a folder: {cwd}")
        # Mode bits do not show everything (access lists, mounts, namespaces), so try to list the folder.
        with os.scandir(cwd):
            pass
    except FileNotFoundError:
        raise refuse(f"no such folder: {cwd}") from None
    except NotADirectoryError:
        raise refuse(f"a part of the path is not a folder: {cwd}") from None
    except PermissionError:
        raise refuse(f"not readable for this user: {cwd}") from None
    except (OSError, ValueError) as problem:
        raise refuse(f"cannot be used ({problem}): {cwd[:200]!r}") from None
    if not os.access(cwd, os.X_OK):
        raise refuse(f"not searchable for this user: {cwd}")
    return Path(cwd)
