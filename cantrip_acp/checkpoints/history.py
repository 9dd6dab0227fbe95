"""The history of an entity's files: where a restore to a turn begins, what ``/undo`` undoes, and what is to be reviewed.

The chain of checkpoints has the changes of the user (``user``), of the entity (``turn``), of one or the other (``unsure``,
see `ownership`) and of restores (``restore``). To restore the files of a turn, everything later that is not the user's is
undone, newest first. So what the user changed meanwhile stays, and a restore is undone like any other change. Files with
unsure changes are undone only if the user says so.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher

from cantrip_acp.checkpoints.merge import without
from cantrip_acp.checkpoints.restore import combine, look_at
from cantrip_acp.checkpoints.store import IGNORED, Change, Checkpoint, Entry, Store
from cantrip_acp.types.errors import CheckpointError

_CONTEXT = 3
"""Unchanged lines around a hunk; changes with fewer lines between them are one hunk."""
_MOST_LINES = 20_000
"""A longer file is reviewed as a whole."""
_GENERATED_FILES = (".pyc", ".pyo", ".class", ".o", ".obj", ".tsbuildinfo", ".DS_Store")
_GENERATED_FOLDERS = (
    "__pycache__",
    "node_modules",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".egg-info",
    ".tox",
    ".nox",
    ".gradle",
    ".parcel-cache",
    ".turbo",
)
"""The endings of names of generated files and of folders with generated files, used also without a ``.gitignore``."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a restore undoes: the changes of each path, newest first, and the checkpoint whose files result. For a redo also
    the restore that it takes back. ``unsure``: the paths that perhaps the user changed."""

    undone: Mapping[str, Sequence[Change]]
    to: str
    takes_back: str = ""
    unsure: frozenset[str] = frozenset()


_OF_TURNS = ("turn", "unsure")
_NOT_THE_USERS = ("turn", "unsure", "restore")


class FileHistory:
    """The checkpoints of one entity, as they are now. ``store`` must stay open. ``lost`` says why earlier ones are not there
    any more; None if all are."""

    def __init__(self, store: Store, loom: str, entity: str, *, lost: Callable[[], str | None] = lambda: None) -> None:
        self.store = store
        self._lost = lost
        self.loom = loom
        self.entity = entity
        last = store.last(loom, entity)
        self.chain: list[Checkpoint] = store.chain(last) if last is not None else []
        self._place = {each.id: number for number, each in enumerate(self.chain)}

    # --- restores

    def to_turn(self, index_of: Callable[[str], int | None], index: int) -> Target:
        """The target "as the files were after the turn with this index". ``index_of`` gives the index of a turn on the
        thread; None for a turn of another thread, which counts as earlier.

        Raises `CheckpointError` if the checkpoints of that time are lost.
        """
        place = 0
        for number, each in enumerate(self.chain):
            if each.by in _OF_TURNS:
                at = index_of(each.turn)
                if at is None or at <= index:
                    place = number
        if not place and (lost := self._lost()) is not None:
            raise CheckpointError(lost)
        return self._target(place)

    def undo(self) -> Target:
        """The target "as before the last prompt that changed files", of those whose changes are in effect.

        Raises `CheckpointError` if there is none.
        """
        place = self._before_last_prompt(len(self.chain) - 1)
        if place is None:
            changed = any(each.by in _OF_TURNS and each.changes for each in self.chain)
            why = (
                "what its prompts changed is undone already"
                if changed
                else "no prompt of this session has changed a file, apart from what git ignores"
            )
            raise CheckpointError(self._lost() or f"there is nothing to undo: {why}")
        return self._target(place)

    def _before_last_prompt(self, last: int) -> int | None:
        """The place before the last prompt whose changes are in effect at the place ``last``."""
        effective = self.effective(last)
        if not effective:
            return None
        cast = self.chain[effective[-1]].cast
        first = effective[-1]
        for number in reversed(effective):
            if self.chain[number].cast != cast:
                break
            first = number
        return max(first - 1, 0)

    def redo(self) -> Target:
        """The target "as before the last undo or restore that was not taken back", if nothing but the user has changed files
        since.

        Raises `CheckpointError` if the entity changed files after it, or if there is none.
        """
        redone: dict[str, set[str]] = {}
        for number in range(len(self.chain) - 1, -1, -1):
            each = self.chain[number]
            if each.by in _OF_TURNS:
                break
            if each.by != "restore":
                continue
            if each.takes_back:
                redone.setdefault(each.takes_back, set()).update(each.changes)
            elif not each.changes.keys() <= redone.get(each.id, set()):
                # A redo that left files as the user had changed them can be repeated for these.
                return Target(combine([each.changes]), self.chain[number - 1].id if each.to else "", each.id)
        raise CheckpointError("there is nothing to redo: the last change of files was not an undo or a restore")

    def undo_takes_back(self, target: Target) -> bool:
        """Whether `undo` reverses a redo: after that redo, the last prompt is the one that the reversed restore had undone."""
        number = self._place[target.takes_back]
        place = self._before_last_prompt(number - 1)
        return place is not None and self.chain[place].id == self.chain[number].to

    def effective(self, last: int) -> list[int]:
        """The places in the chain of the turns whose changes are in effect at the place ``last``."""
        latest: list[int | None] = []
        earlier: dict[int, int | None] = {}
        """The latest of these turns at each place, and the one before each turn."""
        at: int | None = None
        for number, each in enumerate(self.chain[: last + 1]):
            if each.by in _OF_TURNS:
                earlier[number], at = at, number
            elif each.by == "restore" and (place := self._place.get(each.to, number)) < number:
                at = latest[place]
            latest.append(at)
        found: list[int] = []
        while at is not None:
            found.append(at)
            at = earlier[at]
        return found[::-1]

    def _target(self, place: int) -> Target:
        place = max(place, 0)
        later = [each for each in self.chain[place + 1 :] if each.by in _NOT_THE_USERS]
        to = self.chain[place].id if self.chain else ""
        return Target(combine(each.changes for each in reversed(later)), to, unsure=_unsure(later))

    # --- review

    def casts(self) -> list[str]:
        """The casts that changed files, in order."""
        return list(dict.fromkeys(each.cast for each in self.chain if each.by in _OF_TURNS))

    def review(self, since: str | None = None, *, everything: bool = False) -> list[FileReview]:
        """The unkept changes of the entity, by path.

        ``since`` names a cast: only changes of it and later casts, kept ones too; ``everything`` includes all kept changes.
        """
        kept = {} if everything or since is not None else self.store.reviewed(self.loom, self.entity)
        start = 0
        if since is not None:
            start = (
                next((n for n, each in enumerate(self.chain) if each.by in _OF_TURNS and each.cast == since), None) or 0
            )
            if not start:
                raise CheckpointError(f"the prompt {since!r} changed no file in this session")
        found: dict[str, list[Checkpoint]] = {}
        for number, each in enumerate(self.chain):
            if number < start or each.by not in _NOT_THE_USERS:
                continue
            for path in each.changes:
                mark = kept.get(path)
                if mark is None or number > self._place.get(mark[0], -1):
                    found.setdefault(path, []).append(each)
        reviews = []
        for path, steps in sorted(found.items()):
            undone = combine({path: each.changes[path]} for each in reversed(steps)).get(path)
            if undone is None:
                continue
            before = undone[-1][0]
            mark = kept.get(path)
            partly = mark[1] if mark is not None and mark[2] else before
            after = look_at(self.store, path)
            if after == partly:
                continue
            if before is not None and before.why == IGNORED and after is not None:
                # It is there again.
                continue
            base = self._base(undone, partly if partly != before else None, after)
            unsure = bool(_unsure(steps, {path}))
            turn = next((each.turn for each in reversed(steps) if each.turn), "")
            review = FileReview(self.store, path, before, partly, after, tuple(undone), turn, base, unsure)
            if (
                base is None
                or partly is None
                or after is None
                or partly.mode != after.mode
                or base != review.text(after)
            ):
                reviews.append(review)
        return reviews

    def _base(self, undone: Sequence[Change], kept: Entry | None, now: Entry | None) -> bytes | None:
        """The present text without the entity's changes (newest first), so that what the user wrote meanwhile is on both
        sides of the comparison. ``kept``: the text with the hunks that the user kept. None if there is no such text."""
        steps = undone if kept is None else [(kept, undone[0][1])]
        if now is None or (len(steps) == 1 and steps[0][1] == now):
            return None
        texts = [now, *(entry for step in steps for entry in step)]
        if any(entry is not None and not entry.kept for entry in texts):
            return None
        base: bytes | None = self._text(now)
        for before, after in steps:
            if base is not None:
                base = without(self._text(after), base, self._text(before))
        return base

    def _text(self, entry: Entry | None) -> bytes:
        return b"" if entry is None else self.store.content(entry.hash)

    def keep(self, paths: Iterable[str]) -> None:
        """Record that the user keeps these files as they are now."""
        last = self.chain[-1].id if self.chain else ""
        self.store.review(self.loom, self.entity, dict.fromkeys(paths, (last, None, False)))

    def keep_hunk(self, review: FileReview, number: int) -> None:
        """Record that the user keeps one hunk of a file."""
        text = review.apply_hunk(number)
        mode = review.after.mode if review.after is not None else stat.S_IFREG | 0o644
        entry = Entry(mode, self.store.add(text), len(text))
        old = self.store.reviewed(self.loom, self.entity).get(review.path)
        at = old[0] if old is not None else self.chain[0].id
        self.store.review(self.loom, self.entity, {review.path: (at, entry, True)})


def _unsure(steps: Iterable[Checkpoint], only: Set[str] | None = None) -> frozenset[str]:
    """The paths (of ``only``) that perhaps the user changed. A later restore of a path settled that, because the user chose
    it; a redo brings the doubt back."""
    found: set[str] = set()
    settled: dict[str, set[str]] = {}
    for each in steps:
        # A command may change very many files, so one path must not cost a look at all of them.
        changed = each.changes.keys() if only is None else each.changes.keys() & only
        if each.by == "unsure":
            found |= changed
        elif each.by == "restore" and each.takes_back:
            found |= settled.get(each.takes_back, set()) & changed
        elif each.by == "restore":
            settled[each.id] = found & changed
            found -= changed
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines with unchanged ones around them. ``first`` and ``new_first`` are line numbers from 0, of the earlier
    and the present text; ``old`` and ``new`` are the lines."""

    first: int
    old: tuple[bytes, ...]
    new_first: int
    new: tuple[bytes, ...]
    lines: tuple[str, ...]
    """The lines as in a unified diff, each with its mark."""

    @property
    def header(self) -> str:
        return f"@@ -{self.first + 1},{len(self.old)} +{self.new_first + 1},{len(self.new)} @@"


@dataclass(frozen=True, slots=True)
class FileReview:
    """A file that the entity changed: its state before (``original``, or with the hunks that were kept: ``before``) and
    now (``after``). ``turn`` is the last turn that changed it."""

    store: Store
    path: str
    original: Entry | None
    before: Entry | None
    after: Entry | None
    undone: tuple[Change, ...]
    turn: str
    base: bytes | None = None
    """The text to compare the present one with, if the user changed the file too: ``before`` with the user's changes."""
    unsure: bool = False
    """Whether the user may have changed the file while a command ran."""

    @property
    def generated(self) -> bool:
        """Whether a program made the file for itself, such as a cache: nobody reviews it."""
        folders = self.path.split("/")[:-1]
        if self.before is not None and self.before.why == IGNORED and self.path.endswith(_GENERATED_FOLDERS):
            return True
        if self.path.endswith(_GENERATED_FILES) or any(each.endswith(_GENERATED_FOLDERS) for each in folders):
            return True
        # Programs mark folders that they can make again (bford.info/cachedir).
        tops = (os.path.join(self.store.workspace, *folders[: n + 1]) for n in range(len(folders)))
        return any(os.path.isfile(os.path.join(top, "CACHEDIR.TAG")) for top in tops)

    @property
    def old_text(self) -> bytes | None:
        """The text that the present one is compared with. None if there is no text."""
        return self.text(self.before) if self.base is None else self.base

    @property
    def status(self) -> str:
        return "added" if self.before is None else "deleted" if self.after is None else "modified"

    @property
    def version(self) -> str:
        """A text that identifies the present content, so that a choice about other content can be refused."""
        return "absent" if self.after is None else self.after.hash.hex() or self.after.version

    def text(self, entry: Entry | None) -> bytes | None:
        """The content of a state; empty if it is absent, None if it is not a text that is kept."""
        if entry is None:
            return b""
        if not entry.kept:
            return None
        data = self.store.content(entry.hash)
        return None if b"\0" in data else data

    def lines(self) -> tuple[int, int]:
        """The numbers of added and removed lines."""
        added = removed = 0
        for hunk in self.hunks():
            added += sum(line.startswith("+") for line in hunk.lines)
            removed += sum(line.startswith("-") for line in hunk.lines)
        return added, removed

    def hunks(self) -> list[Hunk]:
        """The changes in parts. Empty for a file that is not a text, or too long."""
        old, new = self.old_text, self.text(self.after)
        if old is None or new is None:
            return []
        a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
        if max(len(a), len(b)) > _MOST_LINES:
            return []
        found = []
        for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT):
            shown: list[str] = []
            for tag, i1, i2, j1, j2 in group:
                if tag == "equal":
                    shown += [f" {_shown(line)}" for line in a[i1:i2]]
                else:
                    shown += [f"-{_shown(line)}" for line in a[i1:i2]]
                    shown += [f"+{_shown(line)}" for line in b[j1:j2]]
            i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
            found.append(Hunk(i1, tuple(a[i1:i2]), j1, tuple(b[j1:j2]), tuple(shown)))
        return found

    def undo(self) -> list[Change]:
        """The changes to undo so that the file is as before; hunks that were kept stay."""
        if self.before == self.original:
            return list(self.undone)
        # Put the kept changes back after the others were undone.
        return [*self.undone, (self.before, self.original)]

    def undo_hunk(self, number: int) -> Change:
        """The change to undo so that one hunk is as before. Raises `CheckpointError` if there is no such hunk."""
        hunk = self._hunk(number)
        text = self.text(self.after) or b""
        lines = text.splitlines(keepends=True)
        lines[hunk.new_first : hunk.new_first + len(hunk.new)] = hunk.old
        left = b"".join(lines)
        if not left and self.before is None:
            return None, self.after
        entry = self.after or self.before
        mode = entry.mode if entry is not None else stat.S_IFREG | 0o644
        return Entry(mode, self.store.add(left), len(left)), self.after

    def apply_hunk(self, number: int) -> bytes:
        """The earlier text with one hunk."""
        hunk = self._hunk(number)
        lines = (self.old_text or b"").splitlines(keepends=True)
        lines[hunk.first : hunk.first + len(hunk.old)] = hunk.new
        return b"".join(lines)

    def _hunk(self, number: int) -> Hunk:
        hunks = self.hunks()
        if not 1 <= number <= len(hunks):
            raise CheckpointError(
                f"{self.path} has {len(hunks)} hunk{'' if len(hunks) == 1 else 's'}; there is no hunk {number}"
            )
        return hunks[number - 1]

    def diff(self) -> str:
        """The change as a unified diff."""
        name = os.fsencode(self.path).decode("utf-8", "backslashreplace")
        hunks = self.hunks()
        if not hunks:
            return f"{name}: {self.status}; no text to compare\n"
        old = "/dev/null" if self.before is None else f"a/{name}"
        new = "/dev/null" if self.after is None else f"b/{name}"
        body = [line for hunk in hunks for line in (hunk.header, *hunk.lines)]
        return "\n".join((f"--- {old}", f"+++ {new}", *body)) + "\n"


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")
