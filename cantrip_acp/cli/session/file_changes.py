"""The commands of `cantrip repl` on the files that the entity changed: ``/changes``, ``/undo``, ``/redo`` and ``/restore``."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import CantripError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cantrip_acp.checkpoints.history import FileHistory, FileReview, Target
    from cantrip_acp.checkpoints.restore import Plan
    from cantrip_acp.cli.session.loop_thread import EntityThread
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints

COMMANDS = ("/changes", "/undo", "/redo", "/restore")

HELP = """\
/changes [-p]          list the files that the entity changed; -p goes through the hunks, to keep or undo each
/changes diff [FILE]   show the changes; `/changes keep [FILE [HUNK]]` keeps them, `/changes undo FILE [HUNK]` undoes them
/undo [FILE [HUNK]]    undo the file changes of the last intent, or of one file
/redo                  take the last undo or restore back
/restore TURN          restore the files as they were after a turn (a number from 1; 0 is the start); --force where you
                       changed the same lines"""


def run(words: str, thread: EntityThread, show: Callable[[str, str], None], ask: Callable[[str], str] | None) -> None:
    """Run one command. ``ask`` reads an answer of the user; None if there is no terminal."""
    try:
        command, *rest = shlex.split(words)
    except ValueError:
        command, *rest = words.split()
    force = "--force" in rest
    rest = [each for each in rest if each != "--force"]
    try:
        _Files(thread, show, ask).run(command, rest, force)
    except CantripError as problem:
        show(str(problem), "yellow")


def decide_conflicts(plan: Plan, show: Callable[[str, str], None], ask: Callable[[str], str]) -> Plan | None:
    """Ask the user whether the conflicts of a plan are restored all the same. Returns the plan to carry out; None if nothing
    is to be restored."""
    if not plan.conflicts:
        return plan
    from cantrip_acp.checkpoints.restore import UNSURE

    if plan.steps:
        names = [clean_line(path) for path in plan.steps]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        show(f"restores {', '.join(names[:5])}{more}", "dim")
    for path, why in plan.conflicts.items():
        show(f"{'unsure  ' if why == UNSURE else 'conflict'} {clean_line(path)}: {why}", "yellow")
    these = "it" if len(plan.conflicts) == 1 else "them"
    question = (
        f"keep {these} as {'it is' if these == 'it' else 'they are'} (k), overwrite {these} (o), restore nothing (c)? "
    )
    answer = _choice(ask, question, "koc", "c")
    return None if answer == "c" else plan.overwriting(plan.over) if answer == "o" else plan


def _choice(ask: Callable[[str], str], question: str, letters: str, default: str) -> str:
    """Ask until the answer is one of the letters. The end of input and Ctrl-C are the default."""
    while True:
        try:
            answer = ask(question).strip()
        except (EOFError, KeyboardInterrupt):
            return default
        if len(answer) == 1 and answer in letters:
            return answer


class _Files:
    def __init__(
        self, thread: EntityThread, show: Callable[[str, str], None], ask: Callable[[str], str] | None
    ) -> None:
        found = thread.entity.checkpoints
        if found is None:
            raise CheckpointError(
                "no files are kept: the recipe says loom: {files: false}, or the entity has no folder"
            )
        self._checkpoints: Checkpoints = found
        self._thread, self._show, self._ask = thread, show, ask

    def run(self, command: str, words: list[str], force: bool) -> None:
        history = self._thread.call(self._checkpoints.history)
        if command == "/changes":
            self._changes(history, words, force)
        elif command == "/undo" and words:
            self._undo(*self._named(history, words), force)
        elif command == "/undo":
            self._restore(history.undo(), force)
        elif command == "/redo":
            target = history.redo()
            self._restore(target, force, back="/undo takes this back" if history.undo_takes_back(target) else "")
        else:
            self._restore_turn(history, words, force)

    def _changes(self, history: FileHistory, words: list[str], force: bool) -> None:
        match words:
            case []:
                self._list(history.review())
            case ["-p"]:
                self._go_through(history)
            case ["diff"] | ["diff", _]:
                for review in [self._named(history, words[1:])[0]] if len(words) == 2 else history.review():
                    self._show_lines(review.diff().splitlines())
            case ["keep"]:
                history.keep([each.path for each in history.review()])
                self._show("kept all changes", "dim")
            case ["keep", *named]:
                review, hunk = self._named(history, named)
                if hunk is None:
                    history.keep([review.path])
                else:
                    history.keep_hunk(review, hunk)
                self._show(f"kept     {clean_line(review.path)}{'' if hunk is None else f' hunk {hunk}'}", "")
            case ["undo", *named]:
                self._undo(*self._named(history, named), force)
            case _:
                raise CheckpointError(f"/changes does not know {' '.join(words)!r}; it knows -p, diff, keep and undo")

    def _show_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            self._show(clean_line(line, 2_000), style)

    def _restore_turn(self, history: FileHistory, words: list[str], force: bool) -> None:
        from cantrip_acp.core.lifecycle.checkpoints import target_of_turn
        from cantrip_acp.loom.query.history import casts_of, crystal_turns

        entity = self._thread.entity
        turns = [turn.id for _, turn in crystal_turns(casts_of(entity.loom, entity.last_turn))]
        numbered = {"0": entity.loom.own_path(entity.last_turn)[0], **{str(n): t for n, t in enumerate(turns, 1)}}
        turn_id = numbered.get(words[0], words[0]) if len(words) == 1 else ""
        if turn_id not in entity.loom.own_path(entity.last_turn):
            raise CheckpointError(f"give a turn by its number from 0 to {len(turns)}, or by its id")
        self._restore(target_of_turn(history, entity.loom, entity.last_turn, turn_id), force, turn_id)

    def _restore(self, target: Target, force: bool, turn_id: str = "", *, back: str = "/redo takes this back") -> None:
        plan = self._thread.call(partial(self._checkpoints.plan, target, force=force))
        if self._ask is not None:
            decided = decide_conflicts(plan, self._show, self._ask)
            if decided is None:
                self._show("nothing was restored", "dim")
                return
            plan = decided
        outcome = self._thread.call(partial(self._checkpoints.restore, plan, turn_id=turn_id))
        for path, step in sorted(outcome.done.items()):
            what = "deleted" if step.then is None else "merged  " if step.merged else "restored"
            self._show(f"{what} {clean_line(path)}", "")
        for path, why in plan.conflicts.items():
            hint = f"; /undo {clean_line(path)} takes back this file, --force every file" if self._ask is None else ""
            self._show(f"left     {clean_line(path)}: {why}{hint}", "yellow")
        for path, why in {**plan.left, **outcome.skipped}.items():
            self._show(f"left     {clean_line(path)}: {why}", "yellow")
        if plan.empty:
            self._show("the files are already like that", "dim")
        elif outcome.done and back:
            self._show(back, "dim")

    def _list(self, reviews: list[FileReview]) -> None:
        reviews = sorted((each for each in reviews if not each.generated), key=lambda each: each.unsure)
        named = False
        for each in reviews:
            if each.unsure and not named:
                self._show("changed while a command ran, perhaps by you:", "bold")
                named = True
            added, removed = each.lines()
            indent = "  " if each.unsure else ""
            self._show(f"{indent}{each.status:<8} {clean_line(each.path)}  +{added} -{removed}", "")
        self._show("/changes -p goes through them" if reviews else "no file was changed that you have not kept", "dim")

    def _named(self, history: FileHistory, words: list[str]) -> tuple[FileReview, int | None]:
        if not words or len(words) > 2 or (len(words) == 2 and not words[1].isdecimal()):
            raise CheckpointError("name a file, and perhaps the number of a hunk, such as /changes undo src/app.py 2")
        path = words[0]
        found = next((each for each in history.review() if path in (each.path, clean_line(each.path))), None)
        if found is None:
            raise CheckpointError(
                f"the agent changed nothing in {path!r} that you can still keep or undo; /changes lists its changes"
            )
        return found, int(words[1]) if len(words) == 2 else None

    def _undo(self, review: FileReview, hunk: int | None, force: bool = False) -> None:
        from cantrip_acp.checkpoints.history import Target

        undone = review.undo() if hunk is None else [review.undo_hunk(hunk)]
        self._restore(Target({review.path: undone}, ""), force)

    def _go_through(self, history: FileHistory) -> None:
        """Show each hunk and ask what to do with it, like `git add -p`. Without a terminal, only show them."""
        for path in [each.path for each in history.review()]:
            number = 1
            while (review := next((each for each in history.review() if each.path == path), None)) is not None:
                hunks = review.hunks()
                if number > max(1, len(hunks)):
                    break
                self._show(f"{review.status} {clean_line(path)}", "bold")
                self._show_lines((hunks[number - 1].header, *hunks[number - 1].lines) if hunks else ())
                if self._ask is None:
                    number += 1
                    continue
                answer = self._answer(number, len(hunks))
                hunk = number if len(hunks) > 1 else None
                if answer == "q":
                    return
                if answer in ("k", "K"):
                    if answer == "K" or hunk is None:
                        history.keep([path])
                    else:
                        history.keep_hunk(review, hunk)
                elif answer in ("u", "U"):
                    self._undo(review, hunk if answer == "u" else None)
                    history = self._thread.call(self._checkpoints.history)
                else:
                    number += 1
        if self._ask is not None:
            self._show("these are all changes", "dim")

    def _answer(self, number: int, count: int) -> str:
        assert self._ask is not None, "there is a terminal"
        place = f"({number}/{count}) " if count > 1 else ""
        question = f"{place}keep (k), undo (u), skip (s), whole file (K, U), quit (q)? "
        return _choice(self._ask, question, "kusKUq", "q")
