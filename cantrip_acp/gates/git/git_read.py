"""The gates ``git_status``, ``git_diff``, ``git_log`` and ``git_show``: read a repository without running its programs.

Hooks, monitors, filters, text converters and external diff programs are never run (`cantrip_acp.git`). Files that are
hidden from entities are left out. If the workspace is a part of a repository, only that part is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.gates.confinement import one_line
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files import file_content
from cantrip_acp.types.errors import GateError, GitError

if TYPE_CHECKING:
    from cantrip_acp.gates.git.git_copies import GitWorkspace

MAX_CHARS = 60_000
MAX_COMMITS = 20
MOST_COMMITS = 1_000
_FORMAT = "--format=%h %ad %an: %s"
_PATCH = ("--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--find-renames", "--submodule=short")
_NOTHING = "the working tree is clean"


def _status(args: Mapping[str, Any], work: GitWorkspace) -> str:
    from cantrip_acp.git.repository import SafeGitFolder

    repository = work.repository
    branch, head = repository.branch(), repository.commit()
    where = f"## {branch}" if branch else f"## detached at {head[:10] if head else 'nothing'}"
    lines = [where + ("" if head else " (no commits yet)")]
    scope = ["--", *work.scope] if work.scope else []
    with SafeGitFolder(repository, exact=False) as plain:
        if head is not None:
            # Use a commit id, because the copy has no branches.
            with open(os.path.join(plain.folder, "HEAD"), "w") as file:
                file.write(head + "\n")
        asked = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", *scope)
        index = repository.index if os.path.exists(repository.index) else None
        try:
            out = plain.git(*asked, index=index).out
        except GitError:
            # A split index (two files) cannot be copied. Use an index made from HEAD instead. It shows the same, but not
            # which changes are staged.
            if head is not None:
                plain.git("read-tree", head)
            out = plain.git(*asked).out
    entries = [os.fsdecode(entry) for entry in out.split(b"\0") if entry]
    changes = [f"{e[:2]} {work.shown(e[3:])}" for e in entries if not work.is_hidden(e[3:])]
    lines += changes or [_NOTHING]
    return _shorten("\n".join(lines), "name a path of git_diff to see a part")


def _diff(args: Mapping[str, Any], work: GitWorkspace) -> str:
    from cantrip_acp.gates.git.git_copies import FileCopies
    from cantrip_acp.git.repository import SafeGitFolder

    repository = work.repository
    paths = work.git_paths([args["path"]] if args.get("path") else []) or work.scope or ["."]
    staged, target = bool(args.get("staged", False)), args.get("to")
    base = work.commit(args["base"]) if args.get("base") else repository.commit()
    shape = ["--stat=120"] if args.get("stat") else ["--patch", *_PATCH]
    if target is not None:
        if staged:
            raise GateError("staged compares the index, and to compares another commit", "give only one of them")
        if base is None:
            raise GateError("this repository has no commits yet")
        commits = [base, work.commit(target)]
        names = work.names(repository.git("diff", "--name-only", "--no-renames", "-z", *commits, "--", *paths).out)
        out = repository.git("diff", *shape, *_relative(work), *commits, "--", *names).out if names else b""
        return _output_text(out, "no differences")
    against = [base] if base is not None else [_empty_tree(work)]
    if staged:
        result = repository.git("diff", "--cached", "--name-only", "--no-renames", "-z", *against, "--", *paths)
        names = work.names(result.out)
        asked = ["diff", "--cached", *shape, *_relative(work), *against, "--", *names]
        return _output_text(repository.git(*asked).out if names else b"", "nothing is staged")
    # With the real files, git only lists names.
    with SafeGitFolder(repository, exact=False) as plain:
        if base is not None:
            plain.git("read-tree", base)
        names, fresh = work.changed_files(plain, paths), work.untracked_files(plain, paths)
    out = b""
    if names:
        with FileCopies(work, base, names) as copies:
            out = copies.git("diff", *shape, *_relative(work), *against, "--", *names).out
    note = ""
    if fresh:
        listed = "\n".join(f"?? {work.shown(name)}" for name in fresh[:50])
        more = f"\n… and {len(fresh) - 50} more" if len(fresh) > 50 else ""
        note = f"\n\nnew files, not in the diff (read_file shows them):\n{listed}{more}"
    return _output_text(out, "no changes of tracked files") + note


def _log(args: Mapping[str, Any], work: GitWorkspace) -> str:
    start = work.commit(args.get("revision", "HEAD"))
    paths = work.git_paths([args["path"]]) if args.get("path") else work.scope
    options = [f"--max-count={int(args.get('max_count', MAX_COMMITS))}", "--date=short", "--no-color", "--no-decorate"]
    if args.get("grep"):
        options += ["--fixed-strings", "--regexp-ignore-case", f"--grep={args['grep']}"]
    out = work.repository.git("log", _FORMAT, *options, start, "--", *paths).out
    return _output_text(out, "no commits")


def _show(args: Mapping[str, Any], work: GitWorkspace) -> str:
    commit = work.commit(args.get("revision", "HEAD"))
    repository = work.repository
    if args.get("path"):
        return _file_at(commit, args["path"], work)
    head = repository.git("show", "--no-patch", "--date=iso", "--no-color", "--no-decorate", "--format=medium", commit)
    asked = ("diff-tree", "--root", "-r", "-m", "--first-parent", "--no-commit-id")
    names = work.names(repository.git(*asked, "--no-renames", "--name-only", "-z", commit, "--", *work.scope).out)
    out = head.out.rstrip(b"\n") + b"\n"
    if names:
        out += b"\n" + repository.git(*asked, "--patch-with-stat", *_PATCH, *_relative(work), commit, "--", *names).out
    return _output_text(out, "nothing")


def _file_at(commit: str, path: str, work: GitWorkspace) -> str:
    (name,) = work.git_paths([path])
    repository = work.repository
    if name == ".":
        kind, identity = b"tree", commit
    else:
        entry = repository.git("ls-tree", "-z", commit, "--", name).out.split(b"\0")[0]
        if not entry:
            raise GateError(f"{path!r} is not in commit {commit[:10]}")
        kind, identity = entry.split()[1], entry.split()[2].decode()
    if kind == b"tree":
        out = repository.git("ls-tree", "-z", "--name-only", identity).out
        inside = [n for n in (os.fsdecode(e) for e in out.split(b"\0") if e) if not work.is_hidden(f"{name}/{n}")]
        return "\n".join(map(one_line, inside)) or "an empty folder"
    if kind != b"blob":
        raise GateError(f"{path!r} is a submodule in commit {commit[:10]}")
    size = int(repository.git("cat-file", "-s", identity).text)
    if size > 10_000_000:
        raise GateError(f"{path!r} has {size:,} bytes in commit {commit[:10]}, too many to show")
    data = repository.git("cat-file", "blob", identity).out
    decoded = file_content.decode(data)
    if decoded is None:
        raise GateError(f"{path!r} is a binary file ({size:,} bytes) in commit {commit[:10]}")
    return _shorten(decoded[0].encode("utf-8", "replace").decode(), "read_file reads the present one in parts")


def _relative(work: GitWorkspace) -> list[str]:
    return [f"--relative={work.scope[0]}/"] if work.scope else []


def _empty_tree(work: GitWorkspace) -> str:
    return work.repository.git("hash-object", "-t", "tree", "--stdin").text


def _output_text(out: bytes, nothing: str) -> str:
    said = out.decode("utf-8", "replace").strip("\n")
    return _shorten(said, "name a path, or ask for stat") if said else nothing


def _shorten(said: str, mend: str) -> str:
    if len(said) <= MAX_CHARS:
        return said
    return f"{said[:MAX_CHARS]}\n[cut: {len(said) - MAX_CHARS:,} more characters; {mend}]"


def _handler(
    work_on: Callable[[Mapping[str, Any], GitWorkspace], str],
) -> Callable[[Mapping[str, Any], GateContext], Any]:
    """Make a handler that runs in a thread and converts git errors to gate errors."""

    def work(args: Mapping[str, Any], context: GateContext) -> str:
        # Imported at the first call, so that a session starts fast.
        from cantrip_acp.gates.git.git_copies import GitWorkspace

        try:
            return work_on(args, GitWorkspace(context))
        except GitError as error:
            raise GateError(str(error)) from None

    async def handler(args: Mapping[str, Any], context: GateContext) -> GateReply:
        result = await anyio.to_thread.run_sync(work, args, context, abandon_on_cancel=True)
        return GateReply(result)

    return handler


def _previewer(verb: str) -> Callable[[Mapping[str, Any], GateContext], GateReply]:
    def preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
        words = [str(args[name]) for name in ("base", "to", "revision", "path") if args.get(name)]
        return GateReply(None, title=" ".join([verb, *words])[:200])

    return preview


def _gate(
    name: str, work: Callable[[Mapping[str, Any], GitWorkspace], str], description: str, **properties: Mapping[str, Any]
) -> Gate:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return Gate(
        name=name,
        description=description,
        parameters=parameters,
        handler=_handler(work),
        kind="read",
        preview=_previewer(name.replace("_", " ")),
    )


_PATH = {"type": "string", "minLength": 1, "description": "Only this file or folder of the workspace."}
_REVISION = {"type": "string", "minLength": 1, "maxLength": 1_000, "default": "HEAD"}

GIT_STATUS = _gate(
    "git_status",
    _status,
    "The branch, and the files that differ from the last commit, as git status --short writes them.",
)
GIT_DIFF = _gate(
    "git_diff",
    _diff,
    "What differs: by default all that is not committed, staged or not, as a patch; new files are listed below it.",
    path=_PATH,
    base={**_REVISION, "description": "The commit to compare with. Default: HEAD."},
    to={"type": "string", "minLength": 1, "maxLength": 1_000, "description": "Another commit, in place of the files."},
    staged={"type": "boolean", "default": False, "description": "What is staged, in place of the files."},
    stat={"type": "boolean", "default": False, "description": "Names and numbers of lines, not the patch."},
)
GIT_LOG = _gate(
    "git_log",
    _log,
    "Commits, the newest first, a line each: hash, date, author, subject.",
    path=_PATH,
    revision={**_REVISION, "description": "Where to begin. Default: HEAD."},
    max_count={"type": "integer", "minimum": 1, "maximum": MOST_COMMITS, "default": MAX_COMMITS},
    grep={
        "type": "string",
        "minLength": 1,
        "maxLength": 500,
        "description": "Only commits whose message has this text.",
    },
)
GIT_SHOW = _gate(
    "git_show",
    _show,
    "One commit with its patch; with path, that file as it was in the commit.",
    revision={**_REVISION, "description": "The commit. Default: HEAD."},
    path={**_PATH, "description": "A file (or folder) as it was then, in place of the patch."},
)
