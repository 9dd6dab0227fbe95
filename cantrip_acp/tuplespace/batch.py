"""Batches of casts: a recipe, many intents and samples of each, as tuples. The same batch has the same tuples."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.text.utf8 import NotUtf8, utf8_text
from cantrip_acp.tuplespace.canonical_json import content_id
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores.base import BATCH_LANE, StoredReceipt
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple, now_iso, parse_tuple
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.tuplespace.stores.sql import TupleStore


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a batch: the intent, a name for its results, and the expected answer, which the model never sees."""

    intent: str
    id: str | None = None
    reference: Any = None


def read_intents(raw: bytes, file: str) -> list[Intent]:
    """Read JSON lines, each a text or ``{"intent": …, "id": …, "reference": …}``. Raises `TupleError` with file and line."""
    found: list[Intent] = []
    ids: dict[str, int] = {}
    try:
        # Split only at line feeds, because a JSON string may contain U+2028 and the like.
        lines = utf8_text(raw).split("\n")
    except NotUtf8 as error:
        raise TupleError(f"{file}:{error.line}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            intent = Intent(value) if isinstance(value, str) else convert(value, Intent)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise TupleError(
                f'{file}:{number}: {error}; each line is a JSON text or {{"intent": "…", "id": "…", "reference": …}} '
                "(id and reference are optional)"
            ) from None
        if not intent.intent.strip():
            raise TupleError(f"{file}:{number}: the intent is empty")
        if intent.id is not None and (before := ids.setdefault(intent.id, number)) != number:
            raise TupleError(f"{file}:{number}: line {before} already has the id {intent.id[:100]!r}")
        found.append(intent)
    if not found:
        raise TupleError(f"{file} has no intents")
    return found


def cast_yool(recipe_name: str) -> str:
    """The name of the yool that casts a recipe."""
    return f"agent.cast.{re.sub(r'[^A-Za-z0-9_-]+', '-', recipe_name) or 'recipe'}"


def recipe_digest(recipe: Recipe, model: str = "") -> str:
    """The hash of a recipe's file and of the files that it names, so that a changed text is different work. A ``model`` that
    replaces the recipe's own also changes it."""
    from cantrip_acp.recipes import trust

    digest = hashlib.sha256(recipe.raw + (f"\0{model}".encode() if model else b""))
    for name, path in sorted((os.path.relpath(each, recipe.path.parent), each) for each in trust.named_by(recipe)):
        try:
            content = hashlib.sha256(recipe.files.read(path)).hexdigest()
        except CantripError:
            # The recipe cannot be built, and whoever does it says why.
            content = ""
        digest.update(f"\0{name}\0{content}".encode(errors="surrogateescape"))
    return f"sha256:{digest.hexdigest()}"


def batch_tuples(
    recipe_name: str,
    digest: str,
    intents: Sequence[Intent],
    *,
    lane: str,
    samples: int = 1,
    terms: Mapping[str, Any] | None = None,
    run: str | None = None,
    project: str = "",
    inputs: str = "",
) -> list[WorkTuple]:
    """The tuples of a batch: ``samples`` for each intent. A new ``run``, ``project`` or ``inputs`` makes them different work."""
    works: list[WorkTuple] = []
    seen: Counter[str] = Counter()
    for intent in intents:
        args: dict[str, Any] = {"intent": intent.intent, "recipe": digest}
        if project:
            args["project"] = project
        if inputs:
            args["inputs"] = inputs
        if intent.reference is not None:
            args["reference"] = intent.reference
        for sample in range(samples):
            number = seen[intent.intent]
            seen[intent.intent] += 1
            works.append(
                new_tuple(
                    lane,
                    [{"yool": cast_yool(recipe_name), "args": args}],
                    # The same intent twice is two samples of it.
                    map_pos={"sample": number, **({"run": run} if run else {})},
                    agent_terms=terms,
                )
            )
            assert number >= sample
    return works


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log of batches: a batch began, or ``ended``, while the workspace's files had the digest ``files``.

    ``inputs`` and ``run`` are those of its tuples: the digest of the files at the first start, and a unique text if
    everything was repeated on purpose.
    """

    batch: str
    inputs: str = ""
    run: str | None = None
    files: str = ""
    ended: bool = False
    own: tuple[str, ...] = ()
    """The names in the workspace of what the command itself read and wrote, which is no part of ``files``."""


class BatchLog:
    """Records the digests of the files with which batches began and ended, because casts may write into the workspace on
    which they depend.

    A batch keeps its first digest until it has ended. From then on, the digest at its end counts as the same work too. The
    log is in the tuple-space, where every process that runs the batch finds it: a tuple for each line, with an id made of the
    line's number and the line as its receipt. If two processes write the same line at once, one of them is first.
    """

    def __init__(self, store: TupleStore, batch: str, *same: Any) -> None:
        """``batch`` is the name of the batch. ``same`` are the values that batches share if their casts can be the same."""
        self._store, self._batch = store, batch
        self._series = content_id(list(same))
        self._rounds: list[Round] = []

    def find(self, files: str, *, failed: bool = False) -> tuple[Round, str]:
        """The round to which the batch belongs, and a notice for the user.

        ``failed``: failed casts are repeated, even if the files have changed since the batch ended.
        """
        self._read()
        own = self._own()
        if own is not None and (failed or not own.ended):
            changed = own.files != files
            return own, _CHANGED.format("ended" if own.ended else "began") if changed else ""
        for each in reversed(self._rounds):
            if each.files == files:
                return each, ""
        return Round(batch=self._batch, inputs=files, files=files), _NEW if own is not None else ""

    def own_names(self) -> set[str]:
        """The files that commands of these batches read and wrote, such as results: a later command may not name them."""
        self._read()
        return {name for each in self._rounds for name in each.own}

    def begin(self, found: Round, files: str) -> bool:
        """Record that the batch has begun, unless that is recorded. Returns False if another process wrote a record
        meanwhile: then call `find` again."""
        own = self._own()
        if own is not None and not own.ended and (own.inputs, own.run) == (found.inputs, found.run):
            return True
        return self._append(msgspec.structs.replace(found, batch=self._batch, files=files, ended=False))

    def end(self, files: str, own: Collection[str] = ()) -> None:
        """Record that the batch has ended, with the digest of the files. ``own`` are the names of the command's own files."""
        names = tuple(sorted(own))
        known = self.own_names()
        while (mine := self._own()) is not None and not (mine.ended and known.issuperset(names)):
            if not mine.ended:
                mine = msgspec.structs.replace(mine, files=files, ended=True)
            if self._append(msgspec.structs.replace(mine, own=names)):
                return
            known = self.own_names()

    def _own(self) -> Round | None:
        return next((each for each in reversed(self._rounds) if each.batch == self._batch), None)

    def _tuple(self, number: int) -> WorkTuple:
        return new_tuple(
            BATCH_LANE, [{"yool": "batch.round", "args": {"series": self._series}}], map_pos={"number": number}
        )

    def _read(self) -> None:
        """Read the newly added lines."""
        while True:
            start = len(self._rounds)
            ids = [self._tuple(number).id for number in range(start, start + _LINES)]
            found = self._store.ended(ids)
            for each in ids:
                if each not in found:
                    return
                self._rounds.append(convert(found[each]["result"], Round))

    def _append(self, line: Round) -> bool:
        work, now = self._tuple(len(self._rounds)), now_iso()
        receipt = make_receipt(
            yool="batch.round",
            tuple_id=work.id,
            started_at=now,
            ended_at=now,
            exit=0,
            cost={},
            result=msgspec.to_builtins(line),
        )
        return self._store.put_ended(work, [StoredReceipt(document=receipt, step=None)])


_LINES = 20
"""The number of lines of the log in one request."""
_CHANGED = (
    "the files have changed since this batch {}, by its own casts or by somebody else. It goes on as the same batch; to begin "
    "anew with the files as they are now: --again all"
)
_NEW = "the files have changed since this batch ended, so it is new work"


def latest_attempts(store: TupleStore, works: Sequence[WorkTuple], *, again: bool) -> list[WorkTuple]:
    """The tuples, with each failed one replaced by its latest repetition. With ``again``, failed tuples are repeated now."""
    found = list(works)
    looked_at = list(range(len(found)))
    number = 0
    while looked_at:
        ended = store.ended([found[index].id for index in looked_at])
        number += 1
        failed = [index for index in looked_at if ended.get(found[index].id, {}).get("exit", 0) != 0]
        looked_at = []
        for index in failed:
            work = works[index]
            next_one = parse_tuple(
                {key: value for key, value in work.document.items() if key != "id"}
                | {"map_pos": {**(work.map_pos or {}), "again": number}}
            )
            if again or store.get(next_one.id) is not None:
                found[index] = next_one
                looked_at.append(index)
    return found
