"""File commands: undo, restore and review the files that an entity changed, by slash command or by method.

The methods ``_cantrip/changes``, ``_cantrip/undo``, ``_cantrip/redo``, ``_cantrip/restore`` and ``_cantrip/keep`` are
extensions of ACP (docs/sessions.md describes them); the slash commands do the same for people. Text that the user has not
saved in the editor is read from the client first, and a file with such text is written through the client. Of files that the
user changed too, and that cannot be merged, the client asks the user.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread

from cantrip_acp.acp.errors import session_busy
from cantrip_acp.acp.wire.jsonrpc import invalid_params
from cantrip_acp.types.errors import CantripError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.client_services.editor_files import EditorFiles
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.checkpoints.history import FileHistory, FileReview, Hunk, Target
    from cantrip_acp.checkpoints.restore import Outcome, Plan, Step
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints

_MOST_BUFFERS = 200
"""The most files whose text in the editor is asked for."""
_MOST_NAMED = 30
_MOST_DIFFS = 10
_LONGEST_DIFF = 200_000
"""The most files, and the most bytes of each, that a question shows."""
_KEEP, _OVERWRITE, _CANCEL = "keep", "overwrite", "cancel"
"""The answers to the question about conflicts."""


def _checkpoints(session: OpenSession) -> Checkpoints:
    found = session.entity.checkpoints
    if found is None:
        raise CheckpointError("this session keeps no files: its recipe says loom: {files: false}, or it has no folder")
    return found


async def run_restore(
    session: OpenSession,
    target: Target,
    *,
    turn_id: str = "",
    force: bool = False,
    dry_run: bool = False,
    ask: bool = True,
) -> dict[str, Any]:
    """Restore files, but keep unsaved text. Returns a report as data (`docs/sessions.md`).

    With ``ask`` the user decides about conflicts, if the client can ask.
    """
    checkpoints = _checkpoints(session)
    editor = _editor(session)

    async def make_plan() -> Plan:
        unsaved = await _unsaved(session, editor, target.undone) if editor is not None else {}
        return await checkpoints.plan(target, unsaved=unsaved, force=force)

    plan = await make_plan()
    if dry_run:
        return _result(plan, plan.steps, {})
    answer = None
    if plan.conflicts and ask:
        running, last_turn = session.prompts.running, session.entity.last_turn
        answer = await _ask_about_conflicts(session, plan)
        if answer == _CANCEL:
            return _result(plan, {}, {}, answer)
        if (session.prompts.running, session.entity.last_turn) != (running, last_turn):
            raise CheckpointError("a prompt was sent while you were asked, so nothing was restored; try again")
        # Files may have changed meanwhile.
        asked, plan = plan, await make_plan()
        if answer == _OVERWRITE:
            plan = plan.overwriting(asked.over)
    write = None
    if editor is not None and editor.writes:

        def write(path: str, text: bytes) -> bool:
            try:
                return anyio.from_thread.run(editor.write, path, path, text.decode())
            except (CantripError, UnicodeDecodeError):
                return False

    outcome: Outcome = await checkpoints.restore(plan, turn_id=turn_id, write=write)
    if outcome.done:
        names = ", ".join(list(outcome.done)[:_MOST_NAMED])
        session.notes.entity.append(
            f"The user restored earlier contents of {len(outcome.done)} files of the workspace: {names}. Read them again "
            "before you rely on what you knew of them."
        )
    return _result(plan, outcome.done, outcome.skipped, answer)


async def _ask_about_conflicts(session: OpenSession, plan: Plan) -> str | None:
    """Ask whether files are restored over the user's changes. Returns `_KEEP`, `_OVERWRITE` or `_CANCEL`; None if the client
    cannot ask."""
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.render.formatting import text_content
    from cantrip_acp.checkpoints.restore import UNSURE

    workspace = session.entity.circle.workspace
    rows = [f"- `{_shown(path)}`: {why}" for path, why in plan.conflicts.items()]
    more = [f"- and {len(rows) - _MOST_NAMED} more"] if len(rows) > _MOST_NAMED else []
    content: list[acp.ToolContent] = [text_content("\n".join(rows[:_MOST_NAMED] + more))]
    for path, step in list(plan.over.items())[:_MOST_DIFFS]:
        texts = await _checkpoints(session).contents(step)
        if not any(b"\0" in each or len(each) > _LONGEST_DIFF for each in texts):
            old, new = (each.decode("utf-8", "replace") for each in texts)
            content.append(acp.Diff(os.path.join(str(workspace), _readable(path)), old, new))
    count, unsure = len(rows), all(why == UNSURE for why in plan.conflicts.values())
    these = "this file" if count == 1 else f"these {count} files"
    title = f"You changed {these} too. Restore over your changes?"
    if unsure:
        title = f"{these.capitalize()} changed while a command ran, perhaps by you. Restore {'it' if count == 1 else 'them'} too?"
    # The first option is the harmless one, for clients that answer by themselves.
    options = [
        acp.PermissionOption(
            _KEEP,
            "Leave them, restore the other files" if unsure else "Keep mine, restore the other files",
            "allow_once",
        ),
        acp.PermissionOption(_OVERWRITE, "Restore them too" if unsure else "Restore over my changes", "allow_once"),
        acp.PermissionOption(_CANCEL, "Restore nothing", "reject_once"),
    ]
    answer = await _ask(session, title, content, options)
    if answer == "unasked" and not session.closing:
        return None
    return answer if answer in (_KEEP, _OVERWRITE) else _CANCEL


async def _ask(
    session: OpenSession, title: str, content: list[acp.ToolContent], options: list[acp.PermissionOption]
) -> str | None:
    """Ask the user about files, shown as a call that ends with the answer. Returns the id of the option, ``unasked`` if the
    client cannot ask, or None if the prompt was cancelled."""
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.permissions.request import choose
    from cantrip_acp.types.records import new_id

    call = acp.PermissionToolCall(
        tool_call_id=new_id("restore"), title=title, kind="edit", name="restore", status="pending", content=content
    )
    session.send_now(
        acp.ToolCall(tool_call_id=call.tool_call_id, title=title, kind=call.kind, status="pending", content=content)
    )
    answer: str | None = None
    try:
        request = acp.RequestPermission(session.id, call, options)
        answer = await session.prompts.until_cancelled(lambda: choose(session.connection, request))
    finally:
        allowed = any(each.option_id == answer and each.kind == "allow_once" for each in options)
        # A call that was shown has an end.
        status: acp.ToolStatus = "completed" if allowed else "failed"
        session.send_now(acp.ToolCallUpdate(tool_call_id=call.tool_call_id, status=status))
    return answer


def _result(
    plan: Plan, done: Mapping[str, Step], skipped: Mapping[str, str], answer: str | None = None
) -> dict[str, Any]:
    def kind(step: Step) -> str:
        return "deleted" if step.then is None else "merged" if step.merged else "written"

    return {
        "restored": [{"path": _readable(path), "action": kind(step)} for path, step in sorted(done.items())],
        "conflicts": [{"path": _readable(path), "reason": why} for path, why in plan.conflicts.items()],
        "left": [{"path": _readable(path), "reason": why} for path, why in (*plan.left.items(), *skipped.items())],
        **({} if answer is None else {"answer": answer}),
    }


def _editor(session: OpenSession) -> EditorFiles | None:
    client = session.client
    if not client.reads_files:
        return None
    from cantrip_acp.acp.client_services.editor_files import EditorFiles

    return EditorFiles(session.connection, session.id, reads=True, writes=client.writes_files)


async def _unsaved(session: OpenSession, editor: EditorFiles, paths: Iterable[str]) -> dict[str, bytes]:
    """The texts in the editor that differ from the disk, by path."""
    workspace = str(session.entity.circle.workspace)
    found: dict[str, bytes] = {}
    for path in list(paths)[:_MOST_BUFFERS]:
        full = os.path.join(workspace, path)
        disk = await anyio.to_thread.run_sync(_read_text, full)
        if disk is None or not editor.reads:
            continue
        try:
            text = await editor.read(full, path)
        except CantripError:
            # It is not open there, or the client cannot read it. The disk counts.
            continue
        if text is not None and text != disk.removeprefix("\ufeff"):
            # The editor gives a text without its byte order mark.
            mark = "\ufeff" if disk.startswith("\ufeff") else ""
            found[path] = (mark + text).encode("utf-8", "surrogatepass")
    return found


def _read_text(path: str) -> str | None:
    """The text of a file; None if it is not a file with text that an editor would open."""
    try:
        if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > 10 * 1024 * 1024:
            return None
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


async def _history(session: OpenSession) -> FileHistory:
    return await _checkpoints(session).history(running=session.entity.busy)


async def _turn_target(session: OpenSession, history: FileHistory, turn_id: str) -> Target:
    from cantrip_acp.core.lifecycle.checkpoints import target_of_turn

    entity = session.entity
    async with session.loom_read:
        return await anyio.to_thread.run_sync(target_of_turn, history, entity.loom, entity.last_turn, turn_id)


async def restore_to_turn(
    session: OpenSession, turn_id: str, *, dry_run: bool = False, ask: bool = True
) -> dict[str, Any]:
    """Restore the files of a turn, for a fork that starts there. With ``dry_run`` only report the effect."""
    history = await _history(session)
    target = await _turn_target(session, history, turn_id)
    if dry_run and not target.undone:
        return {"restored": [], "conflicts": [], "left": []}
    return await run_restore(session, target, turn_id=turn_id, dry_run=dry_run, ask=ask)


async def _undo_part(
    session: OpenSession, review: FileReview, hunk: int | None, *, force: bool, ask: bool = True
) -> dict[str, Any]:
    from cantrip_acp.checkpoints.history import Target

    if hunk is None:
        undone = review.undo()
    else:
        undone = [await anyio.to_thread.run_sync(review.undo_hunk, hunk)]
    return await run_restore(session, Target({review.path: undone}, ""), force=force, ask=ask)


# --- methods


async def changes_data(session: OpenSession, params: acp.FileRequest) -> dict[str, Any]:
    """``_cantrip/changes``: the files that the entity changed and the user has not kept yet."""
    history = await _history(session)
    reviews = await _reviews(session, history, params.since)

    def data() -> dict[str, Any]:
        listed = _listed(reviews)
        files = [_review_data(history, each, texts=params.texts) for each in listed]
        return {"files": files, "generated": len(reviews) - len(listed)}

    return {**await anyio.to_thread.run_sync(data), "prompts": await _prompts(session, history)}


def _listed(reviews: Iterable[FileReview]) -> list[FileReview]:
    """The files that people review. Undo and keep also apply to generated files."""
    return [each for each in reviews if not each.generated]


async def undo_data(session: OpenSession, params: acp.FileRequest) -> dict[str, Any]:
    """``_cantrip/undo``: undo the last prompt, or one file, or one hunk of it; with ``since`` all that `changes_data` lists."""
    from cantrip_acp.checkpoints.history import Target

    _require_idle(session)
    history = await _history(session)
    if params.path is None and params.since is not None:
        listed = await _reviews(session, history, params.since)
        # One restore, so that one redo takes it back.
        unsure = frozenset(each.path for each in listed if each.unsure)
        undone = {each.path: each.undo() for each in listed}
        return await _restore_as_asked(session, Target(undone, "", unsure=unsure), params)
    if params.path is None:
        return await _restore_as_asked(session, history.undo(), params)
    review = await _find_review(session, history, params)
    return await _undo_part(session, review, params.hunk, force=params.force, ask=params.ask)


async def _restore_as_asked(
    session: OpenSession, target: Target, params: acp.FileRequest, turn_id: str = ""
) -> dict[str, Any]:
    return await run_restore(
        session, target, turn_id=turn_id, force=params.force, dry_run=params.dry_run, ask=params.ask
    )


async def redo_data(session: OpenSession, params: acp.FileRequest) -> dict[str, Any]:
    """``_cantrip/redo``: take the last restore back."""
    _require_idle(session)
    return await _restore_as_asked(session, (await _history(session)).redo(), params)


async def restore_data(session: OpenSession, params: acp.FileRequest) -> dict[str, Any]:
    """``_cantrip/restore``: restore the files of a turn, by id or number."""
    from cantrip_acp.loom.query.history import named_turn

    _require_idle(session)
    async with session.loom_read:
        turn_id = await anyio.to_thread.run_sync(named_turn, session.entity.loom, session.entity.last_turn, params.turn)
    if turn_id is None:
        raise invalid_params(f"the session has no turn {str(params.turn)[:100]!r}", "turn")
    history = await _history(session)
    target = await _turn_target(session, history, turn_id)
    return await _restore_as_asked(session, target, params, turn_id)


async def keep_data(session: OpenSession, params: acp.FileRequest) -> dict[str, Any]:
    """``_cantrip/keep``: keep all changes, or those of one file, or one hunk of it. They are not shown again."""
    _require_idle(session)
    history = await _history(session)
    if params.path is None:
        reviews = await _reviews(session, history, None)
        await anyio.to_thread.run_sync(history.keep, [each.path for each in reviews])
        return {"kept": [each.path for each in reviews]}
    review = await _find_review(session, history, params)
    if params.hunk is None:
        await anyio.to_thread.run_sync(history.keep, [review.path])
    else:
        await anyio.to_thread.run_sync(history.keep_hunk, review, params.hunk)
    return {"kept": [review.path]}


def _require_idle(session: OpenSession) -> None:
    if session.prompts.running:
        raise session_busy(session.id)


async def _reviews(session: OpenSession, history: FileHistory, since: str | int | None) -> list[FileReview]:
    if since in (None, "", "start"):
        return await anyio.to_thread.run_sync(history.review)
    if since == "all":
        return await anyio.to_thread.run_sync(lambda: history.review(everything=True))
    casts = [each["id"] for each in await _prompts(session, history)]
    cast = str(since)
    if cast.isdecimal():
        if not 1 <= int(cast) <= len(casts):
            raise CheckpointError(f"there is no prompt {cast}: {len(casts)} prompts changed files")
        cast = casts[int(cast) - 1]
    return await anyio.to_thread.run_sync(lambda: history.review(cast))


async def _prompts(session: OpenSession, history: FileHistory) -> list[dict[str, Any]]:
    """The prompts that changed files, in order."""
    casts = await anyio.to_thread.run_sync(history.casts)
    starts = session.entity.loom.cast_starts()
    return [{"id": cast, "text": (starts[cast].intent or "")[:200] if cast in starts else ""} for cast in casts]


async def _find_review(session: OpenSession, history: FileHistory, params: acp.FileRequest) -> FileReview:
    reviews = await _reviews(session, history, params.since)
    found = next((each for each in reviews if each.path == params.path), None)
    if found is None:
        raise invalid_params(
            f"the agent changed nothing in {str(params.path)[:300]!r} that you can still keep or undo", "path"
        )
    if params.version is not None and params.version != found.version:
        raise invalid_params("the file was changed since it was shown; ask for the changes again", "version")
    return found


def _review_data(history: FileHistory, review: FileReview, *, texts: bool) -> dict[str, Any]:
    added, removed = review.lines()
    data: dict[str, Any] = {
        "path": review.path,
        "uri": _uri(os.path.join(history.store.workspace, review.path)),
        "status": review.status,
        "added": added,
        "removed": removed,
        "version": review.version,
        "turn": review.turn,
        "perhapsYours": review.unsure,
        "hunks": [{"number": n, "header": h.header, "lines": list(h.lines)} for n, h in enumerate(review.hunks(), 1)],
    }
    if texts:
        for name, entry, text in (
            ("before", review.before, review.old_text),
            ("after", review.after, review.text(review.after)),
        ):
            data[name] = None if text is None or entry is None else text.decode("utf-8", "replace")
    return _without_surrogates(data)


def _uri(path: str) -> str:
    from urllib.parse import quote

    return "file://" + quote(os.fsencode(path))


def _without_surrogates(data: dict[str, Any]) -> dict[str, Any]:
    """Replace bytes that are not text, because JSON cannot hold them. Such a file name can be shown, but not used to choose
    the file."""
    return {**data, "path": _readable(data["path"])}


# --- slash commands


async def undo_command(session: OpenSession, rest: str) -> str:
    force, words = _force(rest)
    if words:
        return await _undo_named(session, words, force=force)
    history = await _history(session)
    return report(await run_restore(session, history.undo(), force=force), "/undo")


async def redo_command(session: OpenSession, rest: str) -> str:
    force, _ = _force(rest)
    history = await _history(session)
    target = history.redo()
    back = "/undo" if history.undo_takes_back(target) else ""
    return report(await run_restore(session, target, force=force), "/redo", back=back)


async def restore_command(session: OpenSession, rest: str, turn_id: str, *, force: bool) -> str:
    history = await _history(session)
    target = await _turn_target(session, history, turn_id)
    return report(await run_restore(session, target, turn_id=turn_id, force=force), f"/restore {rest}".rstrip())


async def changes_command(session: OpenSession, rest: str) -> str:
    words = _words(rest)
    history = await _history(session)
    if words[:1] == ["keep"]:
        if len(words) == 1:
            reviews = await _reviews(session, history, None)
            await anyio.to_thread.run_sync(history.keep, [each.path for each in reviews])
            return f"Kept the changes of {len(reviews)} files."
        review, hunk = await _named_review(session, history, words[1:])
        if hunk is None:
            await anyio.to_thread.run_sync(history.keep, [review.path])
        else:
            await anyio.to_thread.run_sync(history.keep_hunk, review, hunk)
        return f"Kept {_of(review, hunk)}."
    if words[:1] == ["undo"]:
        return await _undo_named(session, words[1:], force=False)
    if words == ["-p"]:
        return await _go_through(session, history)
    if words[:1] == ["diff"]:
        reviews = await _reviews(session, history, None)
        chosen = [each for each in reviews if (len(words) == 1 and not each.generated) or each.path in words[1:]]
        text = "\n".join(await anyio.to_thread.run_sync(lambda: [each.diff() for each in chosen]))
        return f"```diff\n{text}```" if text else "There is no change to show."
    since = words[0] if words else None
    if since is not None and since != "all" and not since.isdecimal():
        raise CheckpointError(
            f"`/changes {since[:100]}` is not known; `/changes` takes -p, diff, keep, undo or the number of a prompt"
        )
    reviews = _listed(await _reviews(session, history, since))
    if not reviews:
        return "No file was changed" + (" that you have not kept." if since is None else ".")
    reviews.sort(key=lambda each: each.unsure)
    rows = await anyio.to_thread.run_sync(lambda: [_row(each) for each in reviews])
    unsure = sum(each.unsure for each in reviews)
    if unsure:
        rows.insert(len(rows) - unsure, "| *changed while a command ran, perhaps by you:* | | | |")
    prompts = await _prompts(session, history)
    return "\n".join(
        (
            f"{len(reviews)} file{'' if len(reviews) == 1 else 's'} changed"
            + (f" since prompt {since}:" if since and since != "all" else ":"),
            "",
            "| file | | lines | hunks |",
            "|---|---|---|---|",
            *rows,
            "",
            "`/changes diff FILE` shows a change, `/changes undo FILE [HUNK]` undoes it, `/changes keep [FILE [HUNK]]` keeps it."
            + (
                f" `/changes N` shows what changed since one of the {len(prompts)} prompts." if len(prompts) > 1 else ""
            ),
        )
    )


async def _go_through(session: OpenSession, history: FileHistory) -> str:
    """Show each hunk and ask what to do with it, like `git add -p`."""
    for path in [each.path for each in await _reviews(session, history, None)]:
        number = 1
        while (review := next((r for r in await _reviews(session, history, None) if r.path == path), None)) is not None:
            hunks = await anyio.to_thread.run_sync(review.hunks)
            if number > max(1, len(hunks)):
                break
            hunk = number if len(hunks) > 1 else None
            answer = await _ask_about_hunk(session, review, number, hunks)
            if answer == "keep" and hunk is not None:
                await anyio.to_thread.run_sync(history.keep_hunk, review, hunk)
            elif answer in ("keep", "keep_file"):
                await anyio.to_thread.run_sync(history.keep, [path])
            elif answer in ("undo", "undo_file"):
                await _undo_part(session, review, hunk if answer == "undo" else None, force=False)
                history = await _history(session)
            elif answer == "skip":
                number += 1
            else:
                return "The other changes stay as they are; `/changes` lists them."
    return "These are all changes."


async def _ask_about_hunk(session: OpenSession, review: FileReview, number: int, hunks: Sequence[Hunk]) -> str | None:
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.render.formatting import code_block, text_content

    many = len(hunks) > 1
    text = "\n".join((hunks[number - 1].header, *hunks[number - 1].lines)) if hunks else ""
    content: list[acp.ToolContent] = [text_content(code_block(text, "diff"))] if text else []
    options = [
        acp.PermissionOption("skip", "Skip", "allow_once"),
        acp.PermissionOption("keep", "Keep", "allow_once"),
        acp.PermissionOption("undo", "Undo", "allow_once"),
        *([acp.PermissionOption("keep_file", "Keep the whole file", "allow_once")] if many else []),
        *([acp.PermissionOption("undo_file", "Undo the whole file", "allow_once")] if many else []),
        acp.PermissionOption("quit", "Quit", "reject_once"),
    ]
    place = f" ({number}/{len(hunks)})" if many else ""
    return await _ask(session, f"{review.status} {_shown(review.path)}{place}", content, options)


def _row(review: FileReview) -> str:
    added, removed = review.lines()
    name = _shown(review.path)
    return f"| `{name}` | {review.status} | +{added} -{removed} | {len(review.hunks())} |"


async def _undo_named(session: OpenSession, words: list[str], *, force: bool) -> str:
    history = await _history(session)
    review, hunk = await _named_review(session, history, words)
    return report(await _undo_part(session, review, hunk, force=force), f"/undo {shlex.join(words)}")


async def _named_review(session: OpenSession, history: FileHistory, words: list[str]) -> tuple[FileReview, int | None]:
    if not words or len(words) > 2 or (len(words) == 2 and not words[1].isdecimal()):
        raise CheckpointError("name a file, and perhaps the number of a hunk, such as /changes undo src/app.py 2")
    reviews = await _reviews(session, history, None)
    found = next((each for each in reviews if words[0] in (each.path, _shown(each.path))), None)
    if found is None:
        raise CheckpointError(
            f"the agent changed nothing in {words[0]!r} that you can still keep or undo; /changes lists its changes"
        )
    return found, int(words[1]) if len(words) == 2 else None


def _of(review: FileReview, hunk: int | None) -> str:
    return f"`{_shown(review.path)}`" if hunk is None else f"hunk {hunk} of `{_shown(review.path)}`"


def report(done: dict[str, Any], again: str, *, back: str = "/redo") -> str:
    """Describe a finished restore for people. ``back`` is the command that reverses it, if there is one."""
    from cantrip_acp.checkpoints.restore import UNSURE

    restored, conflicts, left = done["restored"], done["conflicts"], done["left"]
    answer = done.get("answer")
    if answer == _CANCEL:
        return "Nothing was restored."
    if not (restored or conflicts or left):
        return "The files are already like that; nothing was changed."
    lines = []
    if restored:
        lines.append(f"Restored {len(restored)} file{'' if len(restored) == 1 else 's'}:")
        words = {"written": "", "deleted": " (deleted)", "merged": " (merged with your own changes)"}
        lines += [f"- `{_shown(each['path'])}`{words[each['action']]}" for each in restored[:_MOST_NAMED]]
        if len(restored) > _MOST_NAMED:
            lines.append(f"- and {len(restored) - _MOST_NAMED} more")
    if conflicts:
        force = "" if answer else f" `{again} --force` restores them all the same"
        unsure = all(each["reason"] == UNSURE for each in conflicts)
        why = "because they may be yours" if unsure else "because you changed them too"
        lines.append(f"\nLeft as they are, {why}{'.' if force else ''}{force}:")
        lines += [f"- `{_shown(each['path'])}`: {each['reason']}" for each in conflicts[:_MOST_NAMED]]
    if left:
        lines.append("\nNot restored:")
        lines += [f"- `{_shown(each['path'])}`: {each['reason']}" for each in left[:_MOST_NAMED]]
    if restored and back:
        lines.append(f"\n`{back}` takes this back.")
    return "\n".join(lines)


def _force(rest: str) -> tuple[bool, list[str]]:
    words = _words(rest)
    return "--force" in words, [each for each in words if each != "--force"]


def _words(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:
        return rest.split()


def _readable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(path: str) -> str:
    text = _readable(path)
    text = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return text.replace("`", "'").replace("|", "\\|")
