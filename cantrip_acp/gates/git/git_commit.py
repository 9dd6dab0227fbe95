"""The gate ``git_commit``: commits the named files of the workspace and changes nothing else.

No hook, filter, monitor or signing program is run. Other staged files stay staged. Files that the repository stores through
a filter (large files, encryption) are refused, because without the filter the wrong content would be stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.gates.confinement import one_line, quoted
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import GateError, GitError
from cantrip_acp.types.records import Diff, Location

if TYPE_CHECKING:
    from cantrip_acp.gates.git.git_copies import GitWorkspace

_OPERATIONS = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
}
LONGEST_MESSAGE = 50_000


async def _git_commit(args: Mapping[str, Any], context: GateContext) -> GateReply:
    # Wait for the thread even after a cancel, so that a commit is never half done.
    return await anyio.to_thread.run_sync(_commit, args, context)


def _commit(args: Mapping[str, Any], context: GateContext) -> GateReply:
    # Imported at the first call, so that a session starts fast.
    from cantrip_acp.gates.git.git_copies import GitWorkspace

    try:
        return _commit_files(args, GitWorkspace(context))
    except GitError as error:
        raise GateError(str(error)) from None


def _commit_files(args: Mapping[str, Any], work: GitWorkspace) -> GateReply:
    from cantrip_acp.gates.git.git_copies import FileCopies
    from cantrip_acp.git.repository import SafeGitFolder

    message, repository = _check_message(args, work), work.repository
    identity = _identity(work)
    head = repository.commit()
    paths = work.git_paths(args["paths"])
    with SafeGitFolder(repository, exact=False) as plain:
        if head is not None:
            plain.git("read-tree", head)
        names = sorted({*work.changed_files(plain, paths), *work.untracked_files(plain, paths)})
    if not names:
        listed = ", ".join(args["paths"])[:300]
        raise GateError(f"there is nothing to commit in {listed}: unchanged since the last commit, ignored, or missing")
    _check_filters(work, names)
    with FileCopies(work, head, names) as copies:
        # Remove files first: a new file may replace a folder.
        gone = [name for name in names if not os.path.lexists(os.path.join(copies.files, name))]
        copies.git("update-index", "-z", "--force-remove", "--stdin", stdin=_nul_separated(gone))
        copies.git("update-index", "-z", "--add", "--stdin", stdin=_nul_separated([n for n in names if n not in gone]))
        tree = copies.git("write-tree").text
        entries = copies.git("ls-files", "-z", "--stage", "--", *names).out
    parents = ["-p", head] if head is not None else []
    if head is not None and tree == repository.git("rev-parse", "--verify", f"{head}^{{tree}}").text:
        raise GateError("there is nothing to commit: the files are the same as in the last commit")
    made = repository.git("commit-tree", tree, *parents, stdin=message.encode() + b"\n", env=identity).text
    subject = message.split("\n", 1)[0]
    old = head or "0" * len(made)
    moved = repository.git(
        "update-ref", "-m", f"commit: {subject[:200]}", "HEAD", made, old, env=identity, statuses=(0, 1, 128)
    )
    if moved.status:
        raise GateError(
            f"another git process moved the branch, so nothing was committed: {' '.join(moved.err.split())[:300]}"
        )
    note = _update_index(work, names, entries, len(made))
    branch = repository.branch() or "detached HEAD"
    shown = [work.shown(name) for name in names]
    listed = ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
    places = tuple(Location(os.path.join(work.folder, name)) for name in shown[:20])
    return GateReply(
        f"committed {made[:10]} on {branch}: {one_line(subject)} ({listed}){note}",
        locations=places,
        title=f"Commit {made[:10]} {quoted(subject[:100])}",
    )


def _check_message(args: Mapping[str, Any], work: GitWorkspace) -> str:
    """Return the message of the commit. Raises `GateError` if it is empty, and during a merge, rebase or cherry-pick."""
    message: str = args["message"].strip()
    if not message or "\0" in message:
        raise GateError("the message is empty, or has a NUL character", "say what was changed and why")
    for name, what in _OPERATIONS.items():
        if os.path.lexists(os.path.join(work.repository.git_dir, name)):
            raise GateError(f"{what} is in progress in this repository", "finish or abort it in a shell first")
    return message


def _nul_separated(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _identity(work: GitWorkspace) -> dict[str, str]:
    """Environment variables for author and committer, from the user's git settings."""
    values: dict[str, str] = {}
    for what, key in (("NAME", "user.name"), ("EMAIL", "user.email")):
        value = work.repository.setting(key)
        if not value:
            raise GateError(f"git has no {key} for the commit", f"set it with `git config --global {key} …`")
        values |= {f"GIT_AUTHOR_{what}": value, f"GIT_COMMITTER_{what}": value}
    return values


def _check_filters(work: GitWorkspace, names: list[str]) -> None:
    """Raise `GateError` for files that the repository stores in a converted form."""
    asked = ("check-attr", "-z", "--stdin", "filter", "working-tree-encoding")
    told = [os.fsdecode(word) for word in work.repository.git(*asked, stdin=_nul_separated(names)).out.split(b"\0")]
    for name, attribute, value in zip(told[0::3], told[1::3], told[2::3], strict=False):
        if value not in ("unspecified", "unset"):
            raise GateError(
                f"git stores {work.shown(name)} through {attribute} {value!r}, which this gate does not run; the user "
                "can commit it in a shell"
            )


def _update_index(work: GitWorkspace, names: list[str], entries: bytes, width: int) -> str:
    """Update the user's index for the committed files. Returns a note if that fails."""
    there = {entry.split(b"\t", 1)[1] for entry in entries.split(b"\0") if entry}
    gone = [os.fsencode(name) for name in names if os.fsencode(name) not in there]
    lines = b"".join(b"0 " + b"0" * width + b"\t" + name + b"\0" for name in gone) + entries
    for _ in range(3):
        with suppress(GitError):
            work.repository.git("update-index", "-z", "--index-info", stdin=lines)
            return ""
    return "; cannot update git's index (another git process locks it), so git status is wrong until `git reset -q -- PATHS`"


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    """Return no file changes, because only the history changes. Raises `GateError` if no commit can be made."""
    from cantrip_acp.gates.git.git_copies import GitWorkspace

    try:
        work = GitWorkspace(context)
        _check_message(args, work)
        work.git_paths(args["paths"])
    except GitError as error:
        raise GateError(str(error)) from None
    return ()


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    # No locations: a permission to edit these files is not a permission to commit them.
    subject = args["message"].strip().split("\n", 1)[0][:100]
    return GateReply(None, title=f"Commit {', '.join(map(one_line, args['paths']))[:150]} {quoted(subject)}")


GIT_COMMIT = Gate(
    name="git_commit",
    description=(
        "Commit these files or folders of the workspace as they are now, and nothing else; removed files are committed as "
        "removed. Hooks are not run and the commit is not signed."
    ),
    parameters={
        "type": "object",
        "properties": {
            "paths": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "maxItems": 1_000,
                "description": "The files or folders, from the workspace; ['.'] is all that changed.",
            },
            "message": {"type": "string", "minLength": 1, "maxLength": LONGEST_MESSAGE, "description": "What and why."},
        },
        "required": ["paths", "message"],
        "additionalProperties": False,
    },
    handler=_git_commit,
    writes=True,
    kind="edit",
    main_text="message",
    preview=_preview,
    proposes=_proposes,
)
