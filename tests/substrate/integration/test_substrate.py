"""Chunks, placements, rules and boundaries of the substrate, the same in SQLite and PostgreSQL."""

from __future__ import annotations

import importlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import (
    Change,
    ChunkNotFound,
    CommitRefused,
    NewChunk,
    NewPlacement,
    OutsideBoundary,
    Removal,
    Spec,
    SubstrateError,
    parse_change,
    refuse_secrets,
)
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import AGENT, SESSION_TYPES, install, of_type, type_id, with_types


def chunk(name: str, spec: Spec | None = None, **body: object) -> NewChunk:
    return NewChunk(name, name, spec or Spec(), body)


def put(substrate: Substrate, *chunks: NewChunk, on: str | None = None) -> None:
    substrate.commit(Change(chunks, [NewPlacement(each.id, on) for each in chunks] if on else []), author="user")


def names(substrate: Substrate, scope: str, at: int | None = None) -> list[str]:
    return [each.chunk.name for each in substrate.scope(scope, at=at).placed]


def test_every_commit_can_be_read_as_it_was(substrate: Substrate) -> None:
    put(substrate, chunk("notes", text="one"))
    first = substrate.latest()
    put(substrate, chunk("notes", text="two"))
    put(substrate, chunk("a"), on="notes")
    third = substrate.latest()
    substrate.commit(Change(removals=[Removal("a", "notes")]), author="user")
    assert substrate.chunk("notes").text == "two"
    assert substrate.chunk("notes", at=first).text == "one"
    assert names(substrate, "notes") == []
    assert names(substrate, "notes", at=third) == ["a"]
    with pytest.raises(ChunkNotFound, match="no chunk has the id 'a' as of commit"):
        substrate.chunk("a", at=first)
    assert [each.number for each in substrate.log("notes")] == [third + 1, third, third - 1, first]
    difference = substrate.changes(third + 1, since=first)
    assert [each.text for each in difference.chunks] == ["two", ""]
    assert [each.chunk for each in difference.removed] == ["a"]
    assert difference.placed == ()


def test_the_log_of_a_scope_has_no_references_from_elsewhere(substrate: Substrate) -> None:
    put(substrate, chunk("notes"), chunk("context"))
    put(substrate, chunk("home"))
    substrate.commit(Change(placements=[NewPlacement("notes", "context", "relates")]), author="user")
    assert [each.number for each in substrate.log("notes")] == [2]
    assert not substrate.changed(["notes"], after=2)
    substrate.commit(Change(placements=[NewPlacement("notes", "home")]), author="user")
    assert [each.number for each in substrate.log("notes")] == [5, 2]
    assert substrate.changed(["home"], after=4)
    assert not substrate.changed(["home"], after=5)


def test_what_is_the_same_is_not_committed_again(substrate: Substrate) -> None:
    put(substrate, chunk("notes", text="one"), chunk("a"))
    before = substrate.latest()
    same = Change([chunk("notes", text="one")])
    assert substrate.commit(same, author="user").changed == 0
    assert install(substrate).changed == 0
    assert substrate.latest() == before


def test_nobody_overwrites_a_record(substrate: Substrate, address: str) -> None:
    put(substrate, chunk("notes", text="one"))
    postgres = address.startswith("postgresql:")
    base: Any = (
        psycopg.connect(address, autocommit=True) if postgres else sqlite3.connect(address.removeprefix("sqlite:"))
    )
    tables = ("cantrip_chunks", "cantrip_commits", "cantrip_placements")
    for table in tables if postgres else ("chunk_versions", "commits", "placement_versions"):
        column = {"ch": "source", "co": "author", "pl": "removed"}[table.removeprefix("cantrip_")[:2]]
        statements = [f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"]
        statements += [f"REPLACE INTO {table} SELECT * FROM {table}"] if not postgres else []
        for statement in statements:
            with pytest.raises((sqlite3.Error, psycopg.Error), match="append-only"):
                base.execute(statement)
    base.close()
    if not postgres:
        assert Path(address.removeprefix("sqlite:")).stat().st_mode & 0o777 == 0o600


def test_a_session_accepts_its_types_only_and_counts(substrate: Substrate) -> None:
    put(substrate, chunk("s"), on=type_id("session"))
    for number, name in enumerate(["prompt", "answer"]):
        made = NewChunk(f"c{number}", name, Spec(), {"text": name})
        substrate.commit(Change([made], [of_type(name, made.id), NewPlacement(made.id, "s")]), author="user")
    assert [(each.chunk.id, each.sequence) for each in substrate.scope("s").placed] == [("c0", 0), ("c1", 1)]
    with pytest.raises(CommitRefused) as refused:
        put(substrate, chunk("stranger", text="x"), on="s")
    assert (refused.value.rule, refused.value.chunk, refused.value.scope) == ("accepts", "stranger", "s")
    assert "prompt, answer, tool-call, tool-result, context" in str(refused.value)
    with pytest.raises(ChunkNotFound):
        substrate.chunk("stranger")
    # What a session accepted stays an instance of a type that it accepts.
    with pytest.raises(CommitRefused) as refused:
        substrate.commit(Change(removals=[Removal("c0", type_id("prompt"))]), author="user")
    assert (refused.value.rule, refused.value.chunk, refused.value.scope) == ("accepts", "c0", "s")
    other = Change(placements=[of_type("answer", "c0")], removals=[Removal("c0", type_id("prompt"))])
    assert substrate.commit(other, author="user").changed == 2
    both = Change(removals=[Removal("c0", type_id("answer")), Removal("c0", "s")])
    assert substrate.commit(both, author="user").changed == 2
    # Who may take the type away, but may not read the scope, is not told of it.
    put(substrate, chunk("own"), chunk("s2"))
    put(substrate, chunk("c2", text="x"), on="own")
    places = [of_type("session", "s2"), of_type("prompt", "c2"), NewPlacement("c2", "s2")]
    substrate.commit(Change(placements=places), author="user")
    with pytest.raises(CommitRefused, match=r"^((?!s2).)*$") as refused:
        substrate.commit(
            Change(removals=[Removal("c2", type_id("prompt"))]),
            author="program",
            boundary=with_types(Boundary.of(write=["own"])),
        )
    assert (refused.value.rule, refused.value.scope) == ("accepts", None)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        (Change(placements=[NewPlacement("none", "types")]), "exists", "no chunk has this id"),
        (Change(placements=[NewPlacement("plain", "none")]), "exists", "no scope has this id"),
        (Change([chunk("p")], [NewPlacement("p", "type:prompt")]), "required", "its body lacks 'text', which 'prompt'"),
        (Change(placements=[NewPlacement("plain", "types", sequence=3)]), "ordered", "not ordered"),
        (Change(removals=[Removal("plain", "types")]), "placement", "no such instance to remove"),
        (Change([chunk("a b")]), "id", "'a b' is not an id"),
        (Change([NewChunk("x", "two\nlines")]), "name", "one line"),
        (Change([chunk("x"), chunk("x")]), "id", "twice"),
        (Change([chunk("x", text="y" * 1_000_001)]), "body", "at most 1,000,000"),
        (Change([chunk("x", text=object())]), "body", "not JSON"),
        (Change(placements=[NewPlacement("plain", "plain")]), "placement", "on itself"),
        (Change(placements=[NewPlacement("plain", "types")] * 2), "placement", "twice"),
        (Change([chunk("x")] * 10_001), "size", "at most 10,000 chunks"),
    ],
)
def test_a_refused_commit_says_why_and_stores_nothing(
    substrate: Substrate, change: Change, rule: str, says: str
) -> None:
    put(substrate, chunk("plain"))
    before = substrate.latest()
    with pytest.raises(CommitRefused, match=says) as refused:
        substrate.commit(change, author="user")
    assert refused.value.rule == rule
    assert substrate.latest() == before


def test_sequences_are_used_once_and_can_be_changed(substrate: Substrate) -> None:
    put(substrate, chunk("list", Spec(ordered=True)))
    put(substrate, chunk("a"), chunk("b"), on="list")
    with pytest.raises(CommitRefused, match="sequence 0 is the place of 'a'"):
        substrate.commit(Change(placements=[NewPlacement("b", "list", sequence=0)]), author="user")
    substrate.commit(Change(placements=[NewPlacement("a", "list", sequence=7)]), author="user")
    put(substrate, chunk("c"), on="list")
    assert [(each.chunk.id, each.sequence) for each in substrate.scope("list").placed] == [("b", 1), ("a", 7), ("c", 8)]


def test_the_order_of_placements_in_a_commit_does_not_matter(substrate: Substrate) -> None:
    made = [chunk("s"), NewChunk("p", "prompt", Spec(), {"text": "hello"})]
    placements = [NewPlacement("p", "s"), of_type("prompt", "p"), of_type("session", "s")]
    substrate.commit(Change(made, placements), author="user")
    assert [(each.chunk.id, each.sequence) for each in substrate.scope("s").placed] == [("p", 0)]
    put(substrate, chunk("list", Spec(ordered=True)))
    put(substrate, chunk("a"), chunk("b"), on="list")
    swap = [NewPlacement("a", "list", sequence=1), NewPlacement("b", "list", sequence=0)]
    substrate.commit(Change(placements=swap), author="user")
    assert names(substrate, "list") == ["b", "a"]


def test_a_boundary_reaches_down_but_not_through_a_type(substrate: Substrate) -> None:
    for name in ("mine", "other"):
        put(substrate, chunk(name), on=type_id("session"))
        made = NewChunk(f"{name}-p", "prompt", Spec(), {"text": "hello"})
        substrate.commit(Change([made], [of_type("prompt", made.id), NewPlacement(made.id, name)]), author="user")
    boundary = with_types(Boundary.of(read=["mine"], holder="reader"))
    assert substrate.chunk("mine-p", boundary=boundary).text == "hello"
    assert substrate.chunk(type_id("prompt"), boundary=boundary).name == "prompt"
    assert [each.chunk.id for each in substrate.scope(type_id("prompt"), boundary=boundary).placed] == ["mine-p"]
    for outside in ("other", "other-p", "does-not-exist"):
        with pytest.raises(OutsideBoundary, match=f"'{outside}' is not inside the read boundary"):
            substrate.chunk(outside, boundary=boundary)
    assert [(each.author, each.operation, each.chunk) for each in substrate.refusals()][:2] == [
        ("reader", "read", "does-not-exist"),
        ("reader", "read", "other-p"),
    ]
    assert [hit.chunk.id for hit in substrate.search("hello", boundary=boundary)] == ["mine-p"]
    assert [each.id for each in substrate.find("prompt", boundary=boundary)] == ["mine-p", "type:prompt"]
    assert substrate.search("hello", boundary=Boundary.of()) == []


def test_two_boundaries_together_are_what_is_inside_both(substrate: Substrate) -> None:
    for name in ("a", "b"):
        put(substrate, chunk(name))
    put(substrate, chunk("only-a"), on="a")
    put(substrate, chunk("only-b"), on="b")
    put(substrate, chunk("both"), on="a")
    substrate.commit(Change(placements=[NewPlacement("both", "b", "relates")]), author="user")
    joined = Boundary.of(read=["a"]) & Boundary.of(read=["b"])
    assert substrate.readable("both", joined)
    assert not substrate.readable("only-a", joined)
    assert not substrate.readable("a", joined)


def test_the_schema_of_a_type_holds_for_its_instances(substrate: Substrate) -> None:
    schema = {"operation": {"enum": ["read", "write"]}, "count": {"type": "integer", "minimum": 1}, "odd": {"type": 7}}
    put(substrate, NewChunk("command", "command", Spec(required=("operation",)), {"text": "…", "schema": schema}))
    put(substrate, chunk("inputs"))

    def commit(name: str, *, instance: bool = True, **body: Any) -> None:
        placements = [NewPlacement(name, "inputs"), *([NewPlacement(name, "command")] if instance else [])]
        substrate.commit(Change([NewChunk(name, name, Spec(), body)], placements), author="user")

    commit("good", operation="read", count=3, odd="anything", other=None)
    for name, body, why in (
        ("fly", {"operation": "fly"}, "its 'operation' does not fit: 'fly' is not one of ['read', 'write'], by"),
        ("none", {"operation": "read", "count": 0}, "its 'count' does not fit: 0 is less than the minimum of 1"),
        ("text", {"operation": "read", "count": "3"}, "its 'count' does not fit: '3' is not of type 'integer'"),
    ):  # fmt: skip
        with pytest.raises(CommitRefused, match=re.escape(why)):
            commit(name, **body)
        assert not substrate.exists(name)
    # It holds for a new version, and for a chunk that becomes an instance later.
    with pytest.raises(CommitRefused, match="'operation' does not fit"):
        substrate.commit(Change([NewChunk("good", "good", Spec(), {"operation": "fly"})]), author="user")
    commit("later", instance=False, operation="fly")
    with pytest.raises(CommitRefused, match="'operation' does not fit"):
        substrate.commit(Change(placements=[NewPlacement("later", "command")]), author="user")


def test_writes_outside_the_boundary_are_refused(substrate: Substrate) -> None:
    put(substrate, chunk("mine"), chunk("secret"), chunk("shown"), chunk("mine-2"))
    put(substrate, chunk("kind", Spec(required=("text",))), chunk("rules", Spec(propagate=True)))
    put(substrate, chunk("inner"), on="mine")
    put(substrate, chunk("accepting", Spec(accepts=("kind",))))
    for scope, placed in (("accepting", "kind"), ("shown", "rules")):
        substrate.commit(Change(placements=[NewPlacement(placed, scope, "relates")]), author="user")
    boundary = Boundary.of(read=["shown", "kind"], write=["mine"], holder="program")

    def refused(change: Change) -> str:
        with pytest.raises(OutsideBoundary) as error:
            substrate.commit(change, author="program", boundary=boundary)
        return str(error.value)

    new = chunk("new", text="x")
    assert "'secret' is not inside" in refused(Change([chunk("secret", text="changed")]))
    assert "'shown' is not inside" in refused(Change([chunk("shown", text="changed")]))
    assert "must be placed" in refused(Change([new]))
    assert "'mine-2' is not inside" in refused(Change([new], [NewPlacement("new", "mine-2")]))
    assert "'secret' is not inside" in refused(Change(placements=[NewPlacement("secret", "mine", "relates")]))
    assert "'shown' is not inside" in refused(Change(placements=[NewPlacement("shown", "mine")]))
    assert "a type is not enough" in refused(Change([new], [NewPlacement("new", "kind")]))
    island = [NewPlacement("new", "shore"), NewPlacement("shore", "new")]
    assert "must be placed" in refused(Change([new, chunk("shore")], island))
    assert "only cantrip" in refused(Change([chunk("project:x:culture")], [NewPlacement("project:x:culture", "mine")]))
    assert "'propagate' and 'required'" in refused(Change([chunk("inner", Spec(propagate=True))]))
    # An archetype with contents of its own is no type: its instances are what its readers read.
    both = [NewPlacement("new", "mine"), NewPlacement("new", "rules")]
    assert "'rules' is not inside" in refused(Change([new], both))
    assert len(substrate.refusals()) == 11
    assert {each.author for each in substrate.refusals()} == {"program"}

    allowed = Change(
        [new], [NewPlacement("new", "mine"), NewPlacement("new", "kind"), NewPlacement("shown", "mine", "relates")]
    )
    substrate.commit(allowed, author="program", source="program:p", boundary=boundary)
    substrate.commit(
        Change([chunk("inner", text="y")], removals=[Removal("shown", "mine", "relates")]),
        author="program",
        boundary=boundary,
    )
    assert substrate.chunk("new").source == "program:p"


def test_a_limited_reader_does_not_see_what_was_taken_away(substrate: Substrate) -> None:
    put(substrate, chunk("mine"))
    put(substrate, chunk("fact", text="old"), on="mine")
    then = substrate.latest()
    substrate.commit(Change(removals=[Removal("fact", "mine")]), author="user")
    boundary = Boundary.of(read=["mine"])
    assert substrate.scope("mine", at=then, boundary=boundary).placed == ()
    assert names(substrate, "mine", at=then) == ["fact"]


def test_placements_in_a_circle_end(substrate: Substrate) -> None:
    put(substrate, chunk("a"), chunk("b"))
    substrate.commit(Change(placements=[NewPlacement("a", "b"), NewPlacement("b", "a")]), author="user")
    assert substrate.readable("a", Boundary.of(read=["b"]))
    assert not substrate.readable("a", Boundary.of(read=["types"]))


def test_search_finds_words_their_beginning_and_any_of_them(substrate: Substrate) -> None:
    put(
        substrate,
        chunk("style", text="Functions have short names. Errors say what to do."),
        chunk("other", text="Nothing."),
    )
    put(substrate, chunk("old", text="penguin"))
    before = substrate.latest()
    put(substrate, chunk("old", text="replaced"))
    assert [hit.chunk.id for hit in substrate.search("short names")] == ["style"]
    assert [hit.chunk.id for hit in substrate.search("err")] == ["style"]
    assert [hit.chunk.id for hit in substrate.search("nothing penguins short")] == ["other", "style"]
    assert substrate.search("penguin") == []
    assert [hit.chunk.text for hit in substrate.search("penguin", at=before)] == ["penguin"]
    for hostile in ('"', "AND", "NEAR(a b)", "name:x", "*", "(", "a\x00b", "' OR 1=1 --"):
        substrate.search(hostile)
    assert "short names" in substrate.search("short")[0].snippet


def recorded(substrate: Substrate, *chunks: NewChunk, source: str = "session:e") -> None:
    substrate.commit(Change(chunks), author=source, source=source)


def test_a_question_does_not_hide_its_answer(substrate: Substrate) -> None:
    """What is known comes before the records of sessions and runs, even if only these have the exact word."""
    fact = NewChunk("fact", "Ports begin at 4000.", Spec(), {"text": "Ports begin at 4000."})
    put(substrate, fact, chunk("AGENTS.md", text="Use a port of your own."))
    for number in range(30):
        recorded(substrate, NewChunk(f"prompt:{number}", "prompt", Spec(), {"text": "Which port?"}))
    recorded(substrate, NewChunk("process-1", "run of x", Spec(), {"text": "port"}), source="user")
    recorded(substrate, NewChunk("said", "said", Spec(), {"text": "port"}), source="program:process-1")
    found = [hit.chunk.id for hit in substrate.search("port", limit=5)]
    assert found[:2] == ["AGENTS.md", "fact"]
    assert len(found) == 5
    assert {"process-1", "said", "prompt:0"} < {hit.chunk.id for hit in substrate.search("port", limit=100)}
    boundary = Boundary.of(read=["fact", "prompt:3"])
    assert [hit.chunk.id for hit in substrate.search("port", boundary=boundary)] == ["fact", "prompt:3"]
    # Any word is enough only if nothing has all of them.
    assert {hit.chunk.id for hit in substrate.search("own 4000")} == {"AGENTS.md", "fact", AGENT}
    assert [hit.chunk.id for hit in substrate.search("begin 4000")] == ["fact"]


def test_what_others_have_hides_nothing_inside(substrate: Substrate) -> None:
    """Best matches are looked at first: those of other projects may be very many, and better."""
    put(substrate, chunk("own"), chunk("theirs"))
    put(substrate, chunk("document", text=f"The port is 4711. {'More is said here. ' * 50}"), on="own")
    recorded(substrate, NewChunk("prompt:1", "prompt", Spec(), {"text": f"Which port? {'Tell me more. ' * 50}"}))
    substrate.commit(Change(placements=[NewPlacement("prompt:1", "own")]), author="user")
    for source in ("user", "session:2"):
        others = [chunk(f"{source[:4]}-{number}", text="port") for number in range(1_100)]
        substrate.commit(
            Change(others, [NewPlacement(each.id, "theirs") for each in others]),
            author="user",
            source=source,
            durable=False,
        )
    own = Boundary.of(read=["own"])
    assert [hit.chunk.id for hit in substrate.search("port", boundary=own)] == ["document", "prompt:1"]
    found = [hit.chunk.id for hit in substrate.search("port", boundary=own, without="session:e")]
    assert found == ["document"]


def test_of_many_hits_those_inside_the_boundary_are_found_and_the_own_session_is_left_out(substrate: Substrate) -> None:
    """The candidates are checked piece by piece."""
    put(substrate, chunk("here"))
    for number in range(60):
        own = "session:a" if number % 2 else "session:b"
        change = Change([NewChunk(f"p{number}", "prompt", Spec(), {"text": "Which port?"})])
        if number < 8:
            change = Change(change.chunks, [NewPlacement(f"p{number}", "here")])
        substrate.commit(change, author=own, source=own)
    recorded(substrate, NewChunk("session:a", "the port", Spec(), {"text": ""}), source="session:a")
    inside = Boundary.of(read=["here"])
    assert [hit.chunk.id for hit in substrate.search("port", boundary=inside, limit=3)] == ["p7", "p6", "p5"]
    assert [hit.chunk.id for hit in substrate.search("port", boundary=inside)] == [f"p{n}" for n in range(7, -1, -1)]
    found = [hit.chunk.id for hit in substrate.search("port", boundary=inside, limit=3, without="session:a")]
    assert found == ["p6", "p4", "p2"]
    assert {hit.chunk.source for hit in substrate.search("port", limit=100, without="session:a")} == {"session:b"}


def test_the_latest_instances_of_a_scope_and_the_instances_of_several(substrate: Substrate) -> None:
    put(substrate, chunk("s", Spec(ordered=True)), chunk("t"))
    for number in range(4):
        put(substrate, chunk(f"a:{number}"), on="s")
    before = substrate.latest()
    put(substrate, chunk("b:0"), on="s")
    moved = [NewPlacement("a:1", "s", sequence=20), NewPlacement("b:0", "t", "relates")]
    substrate.commit(Change([chunk("a:2", text="new")], moved, [Removal("a:3", "s")]), author="user")
    assert [each.id for each in substrate.newest("s", 9)] == ["a:1", "b:0", "a:2", "a:0"]
    assert [each.id for each in substrate.newest("s", 9, at=before)] == ["a:3", "a:2", "a:1", "a:0"]
    assert [each.id for each in substrate.newest("s", 2, at=before)] == ["a:3", "a:2"]
    found = substrate.instances(["s", "t", "none"])
    assert {scope: [each.id for each in placed] for scope, placed in found.items()} == {
        "s": ["a:0", "a:2", "b:0", "a:1"],
        "t": [],
        "none": [],
    }
    found = substrate.instances(["s"], "a:")
    assert [(each.id, each.text) for each in found["s"]] == [("a:0", ""), ("a:2", "new"), ("a:1", "")]


def test_what_is_known_is_found_in_each_kind_of_body_and_version(substrate: Substrate) -> None:
    body = {"deep": {"list": ["walrus", 7, {"text": "tusk"}]}, "text": 5}
    put(substrate, NewChunk("x", "x", Spec(), body), chunk("y", text="walrus"))
    before = substrate.latest()
    put(substrate, chunk("y", text="seal"))
    assert [hit.chunk.id for hit in substrate.search("walrus tusk")] == ["x"]
    assert [hit.chunk.id for hit in substrate.search("walrus")] == ["x"]
    assert {hit.chunk.id for hit in substrate.search("walrus", at=before)} == {"x", "y"}


def test_a_refusal_says_that_propagate_made_a_scope_a_type(substrate: Substrate) -> None:
    spec = Spec(propagate=True, ordered=True, accepts=("prompt",))
    put(substrate, NewChunk("mine", "mine"), NewChunk("s", "s", spec))
    with pytest.raises(CommitRefused, match=r"rule ordered.*has 'propagate', so it is a type.*Leave out 'propagate'"):
        substrate.commit(Change([NewChunk("p", "p")], [NewPlacement("p", "s", sequence=0)]), author="user")
    substrate.commit(Change(placements=[NewPlacement("s", "mine")]), author="user")
    inside = Boundary.of(read=["mine", "types"], write=["mine"])
    for change in (
        Change([NewChunk("p", "p")], [NewPlacement("p", "s")]),
        Change([NewChunk("t", "t", spec), NewChunk("p", "p")], [NewPlacement("t", "mine"), NewPlacement("p", "t")]),
    ):
        with pytest.raises(OutsideBoundary, match="is inside it, but 'propagate' in its spec makes it a type"):
            substrate.commit(change, author="program", boundary=inside)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_tables_of_an_earlier_version_are_searched_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = importlib.import_module("cantrip_acp.substrate.stores.sqlite")
    with monkeypatch.context() as earlier:
        earlier.setattr(store, "MIGRATIONS", store.MIGRATIONS[:1])
        with open_substrate(address) as substrate:
            put(substrate, chunk("old", text="A port."), NewChunk("deep", "deep", Spec(), {"a": {"b": ["port"]}}))
            recorded(substrate, NewChunk("prompt:1", "prompt", Spec(), {"text": "Which port?"}))
    with open_substrate(address) as substrate:
        found = [hit.chunk.id for hit in substrate.search("port")]
        assert (set(found[:2]), found[2:]) == ({"old", "deep"}, ["prompt:1"])


def test_a_type_is_found_by_its_id_alone(substrate: Substrate) -> None:
    put(substrate, chunk("k", text="A skill for one kind of task."))
    assert [hit.chunk.id for hit in substrate.search("skill")] == ["k"]
    assert substrate.search("type:skill")[0].chunk.id == "type:skill"
    assert substrate.search("cast an entity for a task")[0].chunk.id == AGENT
    outside = substrate.search("type:skill", boundary=Boundary.of(read=["k"]))
    assert [hit.chunk.id for hit in outside] == ["k"]


def test_a_name_means_what_is_near_then_a_program_and_no_record(substrate: Substrate) -> None:
    for number in range(2):
        recorded(substrate, NewChunk(f"call:{number}", "agent", Spec(), {"program": "agent"}))
    assert substrate.one("agent").id == AGENT
    put(substrate, chunk("here"), chunk("there"))
    for place in ("here", "there"):
        put(substrate, NewChunk(f"{place}-s", "sessions"), on=place)
    assert substrate.one("sessions", prefer=["here"]).id == "here-s"
    with pytest.raises(SubstrateError, match="2 chunks are named 'sessions'"):
        substrate.one("sessions")
    put(substrate, NewChunk("here-t", "sessions"), on="here")
    with pytest.raises(SubstrateError, match="2 chunks are named 'sessions'; give the id of one: here-t, here-s"):
        substrate.one("sessions", prefer=["here"])
    recorded(substrate, NewChunk("call:9", "read_file"))
    with pytest.raises(SubstrateError, match=r"only records of sessions and runs are named 'read_file'.*: call:9"):
        substrate.one("read_file")
    assert substrate.one("call:9").name == "read_file"


def test_names_that_are_not_there_or_not_alone(substrate: Substrate) -> None:
    put(substrate, NewChunk("k-1", "house style"), NewChunk("k-2", "house rules"), NewChunk("k-3", "house rules"))
    assert substrate.one("house style").id == "k-1"
    with pytest.raises(ChunkNotFound, match="similar names: house style"):
        substrate.one("hose style")
    with pytest.raises(SubstrateError, match="2 chunks are named 'house rules'; give the id of one: k-3, k-2"):
        substrate.one("house rules")


def test_the_types_follow_the_session_model(substrate: Substrate) -> None:
    session = substrate.chunk(type_id("session"))
    assert (session.spec.propagate, session.spec.ordered, session.spec.accepts) == (True, True, SESSION_TYPES)
    assert {each.chunk.name: each.kind for each in substrate.scope(session.id).placed} == dict.fromkeys(
        SESSION_TYPES, "relates"
    )
    assert substrate.chunk(AGENT).name == "agent"
    assert any(each.scope == type_id("program") for each in substrate.placements(AGENT))


def test_changes_from_outside_are_checked_for_shape_and_secrets() -> None:
    assert parse_change({"chunks": [{"id": "a", "name": "a"}]}).chunks[0].name == "a"
    with pytest.raises(CommitRefused, match="rule shape"):
        parse_change({"chunks": [{"id": "a", "nme": "a"}]})
    with pytest.raises(CommitRefused, match="looks like a secret"):
        refuse_secrets(Change([chunk("a", text="ghp_" + "a1B2" * 9)]))


def test_a_file_of_another_program_is_not_touched(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "x.db")
    base.execute("CREATE TABLE t (a)")
    base.close()
    with pytest.raises(SubstrateError, match="database of another program"):
        open_substrate(tmp_path / "x.db")
    (tmp_path / "y.db").write_bytes(b"not a database" * 100)
    with pytest.raises(SubstrateError, match=r"y\.db"):
        open_substrate(tmp_path / "y.db")
    with pytest.raises(SubstrateError, match="cannot open substrate"):
        open_substrate(tmp_path / "x.db" / "z.db")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, {1: "a"}])
def test_a_body_that_json_cannot_say_is_refused(substrate: Substrate, value: object) -> None:
    with pytest.raises(CommitRefused, match="the body is not JSON"):
        put(substrate, NewChunk("x", "x", Spec(), {"value": value}))
    assert not substrate.exists("x")


@pytest.mark.parametrize("word", ["zebra", "me", "example", "py", "agents"])
def test_words_inside_of_paths_addresses_and_names_are_found(substrate: Substrate, word: str) -> None:
    put(substrate, NewChunk("x", "AGENTS.md", Spec(), {"text": "me@zebra.example wrote src/zebra.py"}))
    assert [hit.chunk.id for hit in substrate.search(word)] == ["x"]


def test_halves_of_characters_and_large_numbers_are_answered(substrate: Substrate) -> None:
    put(substrate, NewChunk("x", "x", Spec(), {"text": "a"}))
    assert substrate.find("\udcff") == []
    assert substrate.search("\ud800") == []
    assert not substrate.exists("a\udfff")
    assert substrate.chunk("x", at=2**70).text == "a"
    with pytest.raises(OutsideBoundary):
        substrate.chunk("\udcff", boundary=Boundary.of(read=["x"]))
    deep: object = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(CommitRefused, match="nested deeper than"):
        refuse_secrets(Change([NewChunk("deep", "deep", Spec(), {"value": deep})]))
