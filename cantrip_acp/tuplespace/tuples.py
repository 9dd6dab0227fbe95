"""Tuples: the unit of work, its schema, its id and the patterns that select tuples.

There are two schemas side by side. ``yool-tuple/v2`` adds ``flags``, and a normal form: an optional field that is absent, null or
empty is the same.

A tuple is immutable and content-addressed. Its id is the hash of its canonical form without ``id``, ``receipts`` and
``created_at``, so the same work has the same id. Work that must run again on purpose says so in ``map_pos``, for example
``{"sample": 3}``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cantrip_acp.text.codecs import convert
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.text.redaction import holds_shape, shared
from cantrip_acp.tuplespace.canonical_json import canonical_json, content_id
from cantrip_acp.tuplespace.errors import NewerSchema, TupleError

SCHEMA = "yool-tuple/v1"
SCHEMA_2 = "yool-tuple/v2"
_SCHEMA = re.compile(r"yool-tuple/v[0-9]+")
MAX_BYTES = 1 << 20
"""The largest tuple as canonical JSON. Larger data belongs in a file that ``src_ptr`` names."""
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_HASHED = ("id", "receipts", "created_at")

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
YoolName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*(\.[A-Za-z0-9_-]+)+$", max_length=200)]
ContentId = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
_Amount = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a tuple. A missing field stays unset, so that it does not change the id."""


class AgentTerms(_Part, frozen=True):
    """The budget and the limits of a tuple."""

    budget_usd: Annotated[int, Meta(ge=0)] | _Amount | UnsetType = UNSET
    """US dollars for all steps together."""
    budget_tokens: _Count | UnsetType = UNSET
    deadline_iso: str | UnsetType = UNSET
    """ISO 8601 with a time zone. After it nothing of the tuple starts."""
    max_retries: _Count | UnsetType = UNSET
    cpu_quota_pct: Annotated[int, Meta(ge=1, le=100)] | UnsetType = UNSET
    """Per cent of one processor."""
    disk_quota_mb: Annotated[int, Meta(ge=0)] | _Amount | UnsetType = UNSET


class Authority(_Part, frozen=True):
    """Who or what authorized the work."""

    user: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    ci: bool | UnsetType = UNSET
    recipes: tuple[str, ...] | UnsetType = UNSET
    """The recipes that the tuple may run, by name, besides those that the worker's operator trusts."""


class Flags(_Part, frozen=True):
    """How a tuple is run (``yool-tuple/v2`` only)."""

    no_cache: bool | UnsetType = UNSET
    """Reuse no answers for its steps. Theirs are stored for later ones."""


class Step(_Part, frozen=True):
    """One call of a yool. Steps run in order. If any step has ``after``, each step starts when the steps in its ``after``
    have ended."""

    yool: YoolName
    args: dict[str, Any] | UnsetType = UNSET
    id: Name | UnsetType = UNSET
    after: tuple[Name, ...] | UnsetType = UNSET


class WorkTuple(_Part, frozen=True):
    """One unit of work. Make one with `new_tuple` or `parse_tuple`, which check it and its id."""

    id: ContentId
    schema: Literal["yool-tuple/v1", "yool-tuple/v2"]
    lane: Name
    payload: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=1000)]
    map_pos: dict[str, Any] | UnsetType = UNSET
    authority: Authority | UnsetType = UNSET
    agent_terms: AgentTerms | UnsetType = UNSET
    src_ptr: tuple[str, ...] | UnsetType = UNSET
    receipts: tuple[ContentId, ...] | UnsetType = UNSET
    parent_id: ContentId | UnsetType | None = UNSET
    created_at: str | UnsetType = UNSET
    flags: Flags | UnsetType = UNSET

    @property
    def no_cache(self) -> bool:
        return self.flags is not UNSET and self.flags.no_cache is True

    @property
    def document(self) -> dict[str, Any]:
        """The tuple as JSON data, with exactly the fields that were set."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return data

    @property
    def terms(self) -> AgentTerms:
        return self.agent_terms or AgentTerms()

    def step_needs(self) -> list[frozenset[int]]:
        """For each step, the indexes of the steps that must end first. Raises `CycleError`.

        If no step has ``after``, each waits for the one before it.
        """
        if all(step.after is UNSET for step in self.payload):
            return [frozenset(range(index)[-1:]) for index in range(len(self.payload))]
        places = {step.id: index for index, step in enumerate(self.payload) if step.id is not UNSET}
        needs = [frozenset(places[name] for name in step.after or ()) for step in self.payload]
        TopologicalSorter(dict(enumerate(needs))).prepare()
        return needs


def tuple_id(document: Mapping[str, Any]) -> str:
    """The id of a tuple's document."""
    document = _normal(document) if document.get("schema") == SCHEMA_2 else document
    return content_id({key: value for key, value in document.items() if key not in _NOT_HASHED})


def _normal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The normal form of ``yool-tuple/v2``: without optional fields that are null or empty, and without flags that are false."""

    def kept(fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        return {
            key: value
            for key, value in fields.items()
            # A step that waits for nothing is another one than a step that waits for the one before it.
            if value is not None and (value not in ({}, [], ()) or key == "after")
        }

    parts = {key: kept(document[key]) for key in ("authority", "agent_terms", "flags") if key in document}
    if isinstance(parts.get("flags"), Mapping):
        parts["flags"] = {key: value for key, value in parts["flags"].items() if value is not False}
    steps = document.get("payload")
    if isinstance(steps, list | tuple):
        parts["payload"] = [kept(step) for step in steps]
    normal: dict[str, Any] = kept({**document, **parts})
    return normal


def new_tuple(
    lane: str,
    payload: Sequence[Mapping[str, Any]],
    *,
    map_pos: Mapping[str, Any] | None = None,
    authority: Mapping[str, Any] | None = None,
    agent_terms: Mapping[str, Any] | None = None,
    src_ptr: Sequence[str] = (),
    parent_id: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> WorkTuple:
    """Make a tuple. ``payload`` has a mapping ``{"yool", "args", "id", "after"}`` for each step. Raises `TupleError`.

    With ``flags`` it is one of ``yool-tuple/v2``.
    """
    return parse_tuple(
        {
            **({"schema": SCHEMA_2, "flags": dict(flags)} if flags is not None else {"schema": SCHEMA}),
            "map_pos": dict(map_pos or {}),
            "authority": dict(authority or {}),
            "lane": lane,
            "agent_terms": dict(agent_terms or {}),
            "src_ptr": list(src_ptr),
            "payload": [dict(step) for step in payload],
            "receipts": [],
            "parent_id": parent_id,
            "created_at": now_iso(),
        }
    )


def check_yool_name(name: str) -> None:
    """Raise `TupleError` for a text that is not the name of a yool."""
    try:
        convert(name, YoolName)
    except msgspec.ValidationError:
        raise TupleError(
            f"{name[:200]!r} cannot be the name of a yool; write a name such as agent.lint.ruff or agent.lint.ruff.v2"
        ) from None


def now_iso() -> str:
    """The time in UTC, with milliseconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_tuple(document: Mapping[str, Any] | bytes | str) -> WorkTuple:
    """Check a tuple that may come from anywhere. A document without ``id`` gets one.

    Raises `TupleError` with the field and the rule: unknown or missing fields, wrong types, a wrong id, a size over 1 MiB,
    steps that depend on unknown steps or on each other, a text that is or looks like a secret. `NewerSchema` for a schema that
    this version does not know.
    """
    if isinstance(document, bytes | str):
        if len(document) > 2 * MAX_BYTES:
            raise TupleError(f"the tuple has {len(document)} bytes; at most {MAX_BYTES} are allowed")
        try:
            document = msgspec.json.decode(document)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise TupleError(f"the tuple is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise TupleError(f"a tuple must be a JSON object, not {type(document).__name__}")
    schema = document.get("schema")
    if isinstance(schema, str) and _SCHEMA.fullmatch(schema) and schema not in (SCHEMA, SCHEMA_2):
        raise NewerSchema(
            f"the tuple has the schema {schema}, and this version of cantrip-acp knows {SCHEMA} and {SCHEMA_2}. "
            "Upgrade cantrip-acp"
        )
    if schema == SCHEMA_2:
        document = _normal(document)
    canonical = canonical_json(dict(document))
    if len(canonical) > MAX_BYTES:
        raise TupleError(
            f"the tuple has {len(canonical)} bytes; at most {MAX_BYTES} are allowed. Put large data in a file"
        )
    if _NUL.search(canonical):
        raise TupleError("the tuple is not valid: a text in it has a NUL character, which databases cannot hold")
    known = tuple_id(document)
    given = document.get("id", known)
    if given != known:
        raise TupleError(f"the tuple's id is {given!r}, but its content has the id {known}")
    try:
        work = freeze_record(convert({**document, "id": known}, WorkTuple))
    except msgspec.ValidationError as error:
        raise TupleError(f"the tuple is not valid: {error}") from None
    if work.flags is not UNSET and work.schema == SCHEMA:
        raise TupleError(f"the tuple is not valid: flags need the schema {SCHEMA_2} - at `$.flags`")
    _check_steps(work)
    _check_times(work)
    _check_secrets(document)
    return work


def adopt_tuple(document: Mapping[str, Any] | bytes | str) -> tuple[WorkTuple, str | None]:
    """`parse_tuple`, also for a tuple of another program, whose id covers ``receipts`` and ``created_at``, too.

    Such a tuple gets a new id of ours. The second value is its old id, else None.
    """
    if isinstance(document, bytes | str) and len(document) <= 2 * MAX_BYTES:
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            document = msgspec.json.decode(document)
    if isinstance(document, Mapping):
        content = {key: value for key, value in document.items() if key != "id"}
        given = document.get("id")
        if isinstance(given, str) and given != tuple_id(document) and given == content_id(content):
            return parse_tuple(content), given
    return parse_tuple(document), None


def _check_steps(work: WorkTuple) -> None:
    names = [step.id for step in work.payload if step.id is not UNSET]
    if len(names) != len(set(names)):
        raise TupleError("the tuple is not valid: two steps have the same id - at `$.payload`")
    for index, step in enumerate(work.payload):
        for name in step.after or ():
            if name not in names:
                raise TupleError(f"the tuple is not valid: no step has the id {name!r} - at `$.payload[{index}].after`")
    try:
        work.step_needs()
    except CycleError:
        raise TupleError("the tuple is not valid: steps wait for each other - at `$.payload`") from None


def _check_secrets(value: Any, place: str = "$") -> None:
    """Refuse secrets: a tuple is kept for ever and read by others, and masking a secret would change the work."""
    if isinstance(value, str):
        if shared().holds(value) or holds_shape(value):
            raise TupleError(
                f"the tuple is not valid: a text in it is a secret, or looks like one - at `{place}`. Give secrets to the "
                "worker, as variables of its environment"
            )
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check_secrets(key, place)
            _check_secrets(each, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check_secrets(each, f"{place}[{index}]")


def _check_times(work: WorkTuple) -> None:
    for name, text in (("created_at", work.created_at), ("agent_terms.deadline_iso", work.terms.deadline_iso)):
        if text is not UNSET and parse_time(text) is None:
            raise TupleError(
                f"the tuple is not valid: {text!r} is not a time with a zone (2026-05-19T20:00:00Z) - at `$.{name}`"
            )


def parse_time(text: str) -> datetime.datetime | None:
    """An ISO 8601 time with a zone, or None."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


class Pattern:
    """A partial tuple that selects tuples: ``{"lane": "build", "map_pos": {"repo": "EVT"}}``.

    A tuple matches if it contains the pattern: a mapping contains all of the pattern's keys with matching values, a list
    contains a match for each of the pattern's items, and other values are equal. The empty pattern matches every tuple.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        given = dict(fields or {})
        unknown = given.keys() - {field.name for field in msgspec.structs.fields(WorkTuple)}
        if unknown:
            raise TupleError(f"a pattern has the fields of a tuple; {', '.join(sorted(unknown))!r} is not one of them")
        lane = given.pop("lane", None)
        if not (lane is None or isinstance(lane, str)):
            raise TupleError(f"the lane of a pattern must be a text, not {lane!r}")
        self.lane: str | None = lane
        self.rest = given
        self.rest_json = canonical_json(given).decode() if given else None
        """The pattern without the lane, or None if there is nothing else in it."""

    def __repr__(self) -> str:
        return f"Pattern({({'lane': self.lane} if self.lane else {}) | self.rest!r})"

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Whether a tuple's document matches."""
        return (self.lane is None or document.get("lane") == self.lane) and contains(document, self.rest)


class Runnable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The steps of a yool that a worker can run. A step that has one of the arguments in ``needs`` must have an equal value."""

    yool: str
    needs: Mapping[str, Any] = {}
    """Such as ``{"recipe": "sha256:…"}``: the text of the recipe."""
    without: tuple[str, ...] = ()
    """Arguments that a step must not have."""

    def refusal(self, args: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments of a step of this yool that a worker cannot serve; empty if it can run the step."""
        return tuple(
            [key for key, value in self.needs.items() if key in args and args[key] != value]
            + [key for key in self.without if args.get(key) is not None]
        )


def can_run(document: Mapping[str, Any], runs: Sequence[Runnable]) -> bool:
    """Whether a worker can run all steps of a tuple's document."""
    return all(
        any(each.yool == step["yool"] and not each.refusal(step.get("args") or {}) for each in runs)
        for step in document["payload"]
    )


def without_again(work: WorkTuple) -> tuple[str, ...]:
    """The possible ids of the first attempt of a repeated tuple (``map_pos.again``). Empty if it repeats none."""
    position = work.map_pos or {}
    if not isinstance(position.get("again"), int):
        return ()
    first = {key: value for key, value in position.items() if key != "again"}
    document = {key: value for key, value in work.document.items() if key != "id"}
    ids = [tuple_id({**document, "map_pos": first})]
    if not first:
        # The first one may have had no ``map_pos``.
        ids.append(tuple_id({key: value for key, value in document.items() if key != "map_pos"}))
    return tuple(ids)


def contains(value: Any, part: Any) -> bool:
    """Whether JSON data contains other JSON data, as PostgreSQL's ``@>`` decides it."""
    if isinstance(part, Mapping):
        return isinstance(value, Mapping) and all(k in value and contains(value[k], each) for k, each in part.items())
    if isinstance(part, list | tuple):
        return isinstance(value, list | tuple) and all(any(contains(have, each) for have in value) for each in part)
    if isinstance(value, bool) or isinstance(part, bool):
        return value is part
    return bool(value == part)
