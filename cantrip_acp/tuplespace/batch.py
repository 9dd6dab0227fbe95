"""Batches of casts: a recipe, many intents and samples of each, as tuples. The same batch has the same tuples."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.core.errors import CantripError
from cantrip_acp.files.hidden_paths import matcher
from cantrip_acp.text.codecs import convert
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.input_files import MOST_FILES, FileDigests
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple, parse_tuple

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.tuplespace.stores.base import TupleStore


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a batch: the intent, a name for its results, and the expected answer, which the model never sees."""

    intent: str
    id: str | None = None
    reference: Any = None


def read_intents(lines: Iterable[str], file: str) -> list[Intent]:
    """Read JSON lines, each a text or ``{"intent": …, "id": …, "reference": …}``. Raises `TupleError` with file and line."""
    found: list[Intent] = []
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
        found.append(intent)
    if not found:
        raise TupleError(f"{file}: there are no intents")
    return found


def cast_yool(recipe_name: str) -> str:
    """The name of the yool that casts a recipe."""
    return f"agent.cast.{re.sub(r'[^A-Za-z0-9_-]+', '-', recipe_name) or 'recipe'}"


def recipe_digest(recipe: Recipe, model: str = "") -> str:
    """The hash of a recipe's file and of the files that it names: another text is other work. ``model`` takes the place of the
    recipe's own: other work too."""
    from cantrip_acp.recipes import trust

    digest = hashlib.sha256(recipe.raw + (f"\0{model}".encode() if model else b""))
    for name, path in sorted((os.path.relpath(each, recipe.folder), each) for each in trust.named_by(recipe)):
        try:
            content = hashlib.sha256(recipe.files.read(path)).hexdigest()
        except CantripError:
            # The recipe cannot be built, and whoever does it says why.
            content = ""
        digest.update(f"\0{name}\0{content}".encode(errors="surrogateescape"))
    return f"sha256:{digest.hexdigest()}"


def inputs_digest(recipe: Recipe, workspace: Path) -> str:
    """The digest of the files that the recipe declares as ``inputs``, or "". Raises `TupleError`."""
    patterns = [matcher(each) for each in recipe.data.get("inputs", ())]
    if not patterns:
        return ""
    digest = FileDigests().folder(workspace, lambda name: any(each.fullmatch(f"/{name}") for each in patterns))
    if digest is None:
        raise TupleError(
            f"{recipe.file}: inputs: {workspace} has more than {MOST_FILES:,} of these files, or one cannot be read; name fewer"
        )
    return f"blake2b:{digest}"


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
    """The tuples of a batch: for each intent its samples. ``run`` makes it other work than before, and so do another
    ``project`` and other ``inputs``."""
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


def latest_attempts(store: TupleStore, works: Sequence[WorkTuple], *, again: bool) -> list[WorkTuple]:
    """Each tuple, or the one that replaced it after it failed. With ``again``, those that failed are replaced now."""
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
