"""A substrate that several people share: what belongs to a project is everybody's, and culture and records are each user's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cantrip_acp.substrate import owners
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, CommitRefused, NewChunk, NewPlacement, OutsideBoundary, Removal
from cantrip_acp.substrate.owners import PATTERNS, USER_CULTURE, privacy
from cantrip_acp.substrate.projects import Project, sync
from cantrip_acp.substrate.remembered_facts import remember
from cantrip_acp.substrate.stores import postgres_tables
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.view import SessionView
from tests.support.command_line import Done, run
from tests.support.git_repositories import git, repository
from tests.support.postgres_server import Server

_numbers = itertools.count()
RECIPE = """\
name: knower
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: recall, args: {query: heron}}]
    - content: It is known.
circle: {gates: [done], wards: [{max_turns: 5}]}
memory: {culture: true, sessions: 3}
"""


@dataclass(frozen=True)
class Person:
    """A user with a role, a state folder, a configuration folder and a clone of the repository."""

    role: str
    address: str
    home: Path
    clone: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CANTRIP_SUBSTRATE": self.address,
            "CANTRIP_STATE_DIR": str(self.home / "state"),
            "CANTRIP_CONFIG_DIR": str(self.home / "config"),
        }

    def run(self, *arguments: str, stdin: str = "", **env: str) -> Done:
        return run(*arguments, cwd=self.clone, stdin=stdin, **{**self.environment, **env})

    def culture(self, text: str) -> None:
        (self.home / "config" / "culture").mkdir(parents=True, exist_ok=True)
        (self.home / "config" / "culture" / "me.md").write_text(text)

    @contextmanager
    def opened(self, **env: str) -> Iterator[Substrate]:
        """The substrate in this process."""
        with self.monkeypatch.context() as here:
            for name, value in {**self.environment, **env}.items():
                here.setenv(name, value)
            with open_substrate(self.address) as substrate:
                substrate.latest()
                yield substrate

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """What the role itself can do without Cantrip."""
        with psycopg.connect(self.address, autocommit=True) as base:
            ran = base.execute(statement.encode(), values)
            return ran.fetchall() if ran.description else []


@dataclass(frozen=True)
class Team:
    admin: str
    schema: str
    ann: Person
    bob: Person

    def grant(self) -> None:
        """Create the tables, and give the roles the rights that the command names."""
        done = run("substrate", "secure", "--json", cwd=self.ann.home, CANTRIP_SUBSTRATE=self.admin)
        assert done.status == 0, done.err
        with psycopg.connect(self.admin, autocommit=True) as base:
            for role in (self.ann.role, self.bob.role):
                for each in done.lines[0]["grants"]:
                    base.execute(each.replace("ROLE", role).encode())


@pytest.fixture
def people(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    number = next(_numbers)
    schema, base = f"team_{number}", postgres.url("x").partition("?")[0]
    found = []
    with psycopg.connect(base, autocommit=True) as connection:
        # The tables belong to a role that is no superuser, so nothing passes because of its rights.
        connection.execute(f"CREATE ROLE own_{number} LOGIN PASSWORD 'pw'".encode())
        connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION own_{number}".encode())
        for name in ("ann", "bob"):
            role = f"{name}_{number}"
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'".encode())
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
            place = base.partition("@")[2]
            clone = repository(tmp_path / name / "clone", {"AGENTS.md": "Use port 4711.\n", "r.cantrip.yaml": RECIPE})
            git(clone, "remote", "add", "origin", f"https://{name}@git.example/team/app.git")
            address = f"postgresql://{role}:pw@{place}?options=-csearch_path%3D{schema}"
            found.append(Person(role, address, tmp_path / name, clone, monkeypatch))
    return Team(f"postgresql://own_{number}:pw@{place}?options=-csearch_path%3D{schema}", schema, *found)


@pytest.fixture
def team(people: Team) -> Team:
    people.grant()
    return people


def texts(substrate: Substrate, scope: str) -> list[str]:
    return [each.chunk.text for each in substrate.scope(scope).placed]


# --- Two users


def test_culture_and_what_is_remembered_everywhere_are_each_users_own(team: Team) -> None:
    team.ann.culture("I am Ann. Answer in Italian.")
    team.bob.culture("I am Bob. Answer in German.")
    assert team.ann.run("substrate", "remember", "--everywhere", "My heron is grey.").status == 0
    assert team.bob.run("substrate", "remember", "--everywhere", "My heron is white.").status == 0
    for _ in range(2):
        for person, own, other in ((team.ann, "Italian", "grey"), (team.bob, "German", "white")):
            shown = person.run("substrate", "tree", "culture:user", "--json").out
            assert ("culture/me.md" in shown, shown.count("My heron is")) == (True, 1)
            (hit,) = person.run("substrate", "search", "heron", "--everywhere", "--json").lines
            assert hit["text"] == f"My heron is {other}."
            assert person.run("substrate", "search", "--everywhere", own, "--json").lines
    assert team.ann.run("substrate", "search", "--everywhere", "German").status == 1
    # Neither a name nor the full id leads to it; the log says nothing of it.
    (hit,) = team.bob.run("substrate", "search", "heron", "--json").lines
    for command in ("show", "tree", "log", "pin"):
        done = team.ann.run("substrate", command, hit["id"])
        assert (done.status, f"no chunk has the id or name '{hit['id']}'" in done.err) == (2, True), command
    assert "white" not in team.ann.run("substrate", "log", "--json", "--limit", "100").out
    assert "white" not in team.ann.run("substrate", "diff", "0").out
    assert "remember My heron is grey." in team.ann.run("substrate", "log").out


def test_a_cast_reads_its_users_culture_while_another_user_works(team: Team) -> None:
    team.ann.culture("I am Ann, and I know a heron.")
    team.bob.culture("I am Bob, and I know a heron.")
    for person, name, other in ((team.ann, "Ann", "Bob"), (team.bob, "Bob", "Ann")):
        assert person.run("cast", "r.cantrip.yaml", f"{name} asks about the heron.", "--loom", "l.jsonl").status == 0
        full = person.run("loom", "context", "l.jsonl", "2", "--full").out
        assert f"I am {name}" in full
        assert f"I am {other}" not in full
    found = team.bob.run("substrate", "search", "--everywhere", "asks about the heron", "--json")
    assert {hit["text"] for hit in found.lines if "asks" in hit["text"]} == {"Bob asks about the heron."}


def test_casts_at_the_same_time_read_their_own_culture_in_every_turn(team: Team) -> None:
    turns = 6
    calls = "".join("    - tool_calls: [{gate: recall, args: {query: heron}}]\n" for _ in range(turns))
    for person in (team.ann, team.bob):
        (person.clone / "r.cantrip.yaml").write_text(
            "crystal:\n  provider: scripted\n  responses:\n" + calls + "    - content: It is known.\n"
            "circle: {gates: [done], wards: [{max_turns: 9}]}\nmemory: {culture: true, sessions: 3}\n"
        )

    def work(person: Person, name: str) -> None:
        for number in range(3):
            person.culture(f"I am {name}, for the {number}th time.")
            assert person.run("cast", "r.cantrip.yaml", f"{name} asks.", "--loom", f"l{number}.jsonl").status == 0
            assert person.run("substrate", "remember", "--everywhere", f"{name} did it {number} times.").status == 0

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work, team.ann, "Ann"), threads.submit(work, team.bob, "Bob")]:
            done.result()
    for person, name, other in ((team.ann, "Ann", "Bob"), (team.bob, "Bob", "Ann")):
        for number in range(3):
            for turn in range(1, turns + 1):
                full = person.run("loom", "context", f"l{number}.jsonl", str(turn), "--full").out
                assert f"I am {name}, for the {number}th time." in full
                assert other not in full


def test_two_sessions_that_run_read_their_own_files_again_whoever_changed_theirs(team: Team) -> None:
    team.ann.culture("Ann one.")
    team.bob.culture("Bob one.")
    with team.ann.opened() as anns, team.bob.opened() as bobs:
        for number in ("two", "three"):
            for person, substrate, name, other in ((team.ann, anns, "Ann", "Bob"), (team.bob, bobs, "Bob", "Ann")):
                person.culture(f"{name} {number}.")
                sync(substrate, person.clone, person.home / "config")
                assert texts(substrate, USER_CULTURE) == [f"{name} {number}."]
                assert other not in str(substrate.changes(substrate.latest(), since=0).chunks)


def test_facts_of_a_project_are_everybodys_and_say_whose_they_are(team: Team) -> None:
    assert team.ann.run("substrate", "remember", "Deploys happen on Tuesday.").status == 0
    assert Project.of(team.ann.clone).id == Project.of(team.bob.clone).id
    (hit,) = team.bob.run("substrate", "search", "deploys", "--json").lines
    assert (hit["text"], hit["source"]) == ("Deploys happen on Tuesday.", f"user:{team.ann.role}")
    notes = json.dumps({"chunks": [{"id": "notes", "name": "notes", "body": {"text": "Notes of a heron."}}]})
    assert team.bob.run("substrate", "commit", "-", stdin=notes).status == 0
    ((number,),) = team.bob.sql("SELECT max(number) + 1 FROM cantrip_commits")
    earlier_writes(team.bob.address, number, "fact-9", Project.of(team.ann.clone).culture, "An older heron.")
    found = team.ann.run("substrate", "search", "heron", "--json").lines
    assert {hit["source"] for hit in found} == {f"user:{team.bob.role}"}
    assert len(found) == 2
    pinned = team.bob.run("substrate", "pin", "notes", "--json").lines[0]["commit"]
    (log,) = [each for each in team.ann.run("substrate", "log", "--json").lines if each["commit"] == pinned]
    assert (log["source"], log["message"]) == (f"user:{team.bob.role}", "pin notes")


def test_plain_sql_of_another_role_reads_and_changes_nothing_private(team: Team) -> None:
    team.ann.culture("Ann has a secret heron.")
    assert team.ann.run("substrate", "remember", "--everywhere", "Ann likes herons.").status == 0
    assert team.ann.run("cast", "r.cantrip.yaml", "Ann asks about herons.").status == 0
    for table, columns in (
        ("cantrip_chunks", "id, name, body, source"),
        ("cantrip_placements", "chunk, scope"),
        ("cantrip_commits", "author, source, message"),
        ("cantrip_commit_texts", "message"),
        ("cantrip_refusals", "text"),
    ):
        rows = str(team.bob.sql(f"SELECT {columns} FROM {table}"))
        assert "heron" not in rows, table
        assert "session:" not in rows, table
    role = team.ann.role
    chunk = "INSERT INTO cantrip_chunks (id, number, name, spec, body, source, words, owner, part) VALUES"
    placed = "INSERT INTO cantrip_placements (scope, kind, chunk, number, removed, owner, part) VALUES"
    attacks = (
        f"{chunk} ('culture:user', 999, 'x', '', '{{}}', 'user', '', '{role}', '')",
        f"{chunk} ('culture:user', 999, 'x', '', '{{}}', 'user', '', '', '')",
        f"{placed} ('culture:user', 'instance', 'types', 999, false, '{role}', '')",
        f"{placed} ('culture:user', 'instance', 'types', 999, false, '', '')",
        f"{placed} ('project:1:culture', 'instance', 'private:fact-1', 999, true, '', '')",
        f"INSERT INTO cantrip_commit_texts VALUES (999, '', '', '', '{role}', '')",
        f"INSERT INTO cantrip_refusals (at, author, operation, chunk, text, owner) VALUES (1, '', '', '', '', '{role}')",
        "UPDATE cantrip_chunks SET body = '{}'",
        "DELETE FROM cantrip_chunks",
        "TRUNCATE cantrip_placements",
        "UPDATE cantrip_placements SET removed = true",
        "ALTER TABLE cantrip_chunks DISABLE ROW LEVEL SECURITY",
        "DROP POLICY cantrip_own ON cantrip_chunks",
        f"SET ROLE {role}",
        "INSERT INTO cantrip_commits (number, at, author, source, message, changed) VALUES (9223372036854775807, 1, '', '', '', 0)",
    )
    for attack in attacks:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation)):
            team.bob.sql(attack)
    with team.ann.opened() as substrate:
        assert "Ann likes herons." in texts(substrate, USER_CULTURE)


def test_a_chunk_of_another_user_that_has_the_id_of_an_own_one_does_not_hide_it(team: Team) -> None:
    with team.ann.opened() as anns, team.bob.opened() as bobs:
        sync(anns, team.ann.clone)
        chunk, _ = remember(anns, team.ann.clone, "Mine.", everywhere=True)
        # As a chunk of an earlier version that was given to her: its id does not say that it is private.
        team.ann.sql("INSERT INTO cantrip_chunks (id, number, name, spec, body, source, words, owner) "
                     "VALUES ('fact-1', 0, 'f', '', '{\"text\": \"old\"}', 'user', '', current_user)")  # fmt: skip
        bobs.put(NewChunk("fact-1", "f", body={"text": "of Bob"}))
        bobs.put(NewChunk(chunk.id, "f", body={"text": "of Bob"}))
        assert (anns.chunk("fact-1").text, anns.chunk(chunk.id).text) == ("old", "Mine.")
        assert [hit.chunk.text for hit in anns.search("bob")] == []
        assert bobs.chunk("fact-1").text == "of Bob"


def test_boundaries_name_the_own_scope_and_no_other(team: Team) -> None:
    with team.ann.opened() as anns, team.bob.opened() as bobs:
        for each, person in ((anns, team.ann), (bobs, team.bob)):
            sync(each, person.clone)
        own, _ = remember(anns, team.ann.clone, "Ann's own heron.", everywhere=True)
        every = Boundary.of(read=[USER_CULTURE, own.id, "types"], write=[USER_CULTURE, own.id])
        assert bobs.search("heron", boundary=every) == []
        with pytest.raises(OutsideBoundary):
            bobs.chunk(own.id, boundary=every)
        with pytest.raises(CommitRefused, match="rule exists"):
            bobs.commit(Change(placements=[NewPlacement(own.id, USER_CULTURE)]), author="bob")
        with pytest.raises(CommitRefused, match="no chunk has this id"):
            bobs.commit(Change(removals=[Removal(own.id, USER_CULTURE)]), author="bob")
        # It is a chunk of his own, which she does not see.
        bobs.put(NewChunk(own.id, "x", body={"text": "Bob was here."}), USER_CULTURE)
        assert texts(anns, USER_CULTURE) == ["Ann's own heron."]
        # What was refused names what was asked for.
        assert "heron" not in str(anns.refusals())
        assert anns.refusals() == []


def test_a_new_chunk_on_the_own_culture_has_a_private_id(team: Team) -> None:
    change = {"chunks": [{"id": "notes", "name": "notes"}], "placements": [{"chunk": "notes", "scope": "culture:user"}]}
    refused = team.ann.run("substrate", "commit", "-", stdin=json.dumps(change))
    assert refused.status == 2
    assert "rule private" in refused.err
    assert "begin its id with 'private:'" in refused.err
    text = json.dumps(change).replace('"notes"', '"private:notes"')
    assert team.ann.run("substrate", "commit", "-", stdin=text).status == 0
    assert team.bob.run("substrate", "show", "private:notes").status == 2


def test_what_a_program_stores_on_its_run_is_its_users(team: Team) -> None:
    with team.ann.opened() as anns, team.bob.opened() as bobs:
        project = sync(anns, team.ann.clone)
        sync(bobs, team.bob.clone)
        anns.put(
            NewChunk("process-1", "run", body={"program": "p"}), [NewPlacement("process-1", project.runs, "relates")]
        )
        inside = Boundary.of(read=["types"], write=["process-1"])
        made = [NewChunk("rows", "rows"), NewChunk("row", "row", body={"text": "A grey heron."})]
        placed = [NewPlacement("rows", "process-1"), NewPlacement("row", "rows")]
        anns.commit(Change(made, placed), author="program", boundary=inside)
        anns.put(NewChunk("more", "more", body={"text": "A white heron."}), "rows", boundary=inside)
        anns.put(NewChunk("row", "row", body={"text": "An old heron."}), boundary=inside)
        assert {hit.chunk.text for hit in anns.search("heron")} == {"An old heron.", "A white heron."}
        assert texts(anns, "rows") == ["A white heron.", "An old heron."]
        assert bobs.search("heron") == []
        assert "heron" not in str(team.bob.sql("SELECT body FROM cantrip_chunks"))
        assert team.bob.sql("SELECT chunk FROM cantrip_placements WHERE scope IN ('rows', 'process-1')") == []


def test_an_editor_and_the_knowledge_of_a_session_show_the_own_culture(team: Team) -> None:
    team.ann.culture("Ann one.")
    team.bob.culture("Bob one.")
    for person, own in ((team.ann, "Ann one."), (team.bob, "Bob one.")):
        with person.opened():
            view = SessionView(person.address, person.clone, config_dir=person.home / "config")
            text = view.knowledge("").text
            assert own in text
            assert text.count(" one.") == 1
            view.substrate.close()


# --- One role


def test_one_user_on_two_machines_has_one_memory_and_the_files_of_each_machine(team: Team, tmp_path: Path) -> None:
    other = Person(team.ann.role, team.ann.address, tmp_path / "laptop", team.bob.clone, team.ann.monkeypatch)
    team.ann.culture("Of the first machine.")
    other.culture("Of the second machine.")
    assert team.ann.run("substrate", "remember", "--everywhere", "A grey heron.").status == 0
    for person, own in ((team.ann, "first"), (other, "second"), (team.ann, "first")):
        assert person.run("substrate", "tree").status == 0
        with person.opened() as substrate:
            assert sorted(texts(substrate, USER_CULTURE)) == ["A grey heron.", f"Of the {own} machine."]


def test_people_who_share_a_role_are_told_apart_by_their_names(team: Team) -> None:
    assert team.ann.run("substrate", "remember", "--everywhere", "A grey heron.", CANTRIP_USER="ann").status == 0
    assert team.ann.run("substrate", "search", "heron", CANTRIP_USER="bob").status == 1
    assert team.ann.run("substrate", "search", "heron").status == 1
    assert team.ann.run("substrate", "search", "heron", CANTRIP_USER="ann").status == 0
    assert team.ann.run("substrate", "remember", "Deploys on Tuesday.", CANTRIP_USER="ann").status == 0
    (hit,) = team.ann.run("substrate", "search", "deploys", "--json", CANTRIP_USER="bob").lines
    assert hit["source"] == "user:ann"
    wrong = team.ann.run("substrate", "tree", CANTRIP_USER="' OR 1")
    assert (wrong.status, 'CANTRIP_USER is "\' OR 1": write 1 to 60 letters' in wrong.err) == (2, True)


# --- Without row security


def test_without_row_security_cantrip_keeps_users_apart_and_the_doctor_says_that_sql_does_not(people: Team) -> None:
    with psycopg.connect(people.admin, autocommit=True) as base:
        assert run("substrate", "log", cwd=people.ann.home, CANTRIP_SUBSTRATE=people.admin).status == 0
        for role in (people.ann.role, people.bob.role):
            base.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {people.schema} TO {role}".encode())
    assert people.ann.run("substrate", "remember", "--everywhere", "A grey heron.").status == 0
    assert people.bob.run("substrate", "search", "--everywhere", "heron").status == 1
    assert "heron" in str(people.bob.sql("SELECT body FROM cantrip_chunks"))

    def notes(person: Person) -> list[str]:
        found = json.loads(person.run("doctor", "--json").out)["findings"]
        return [f"{each['state']}: {each['text']}" for each in found if each["name"] == "substrate"]

    (note,) = notes(people.bob)
    assert note.startswith("note: ")
    assert "has no row-level security: your private texts are kept apart by name only" in note
    refused = people.bob.run("substrate", "secure")
    assert (refused.status, "must be owner" in refused.err) == (2, True)
    people.grant()
    (note,) = notes(people.bob)
    assert note.startswith("ok: ")
    assert note.endswith(f"you are the role {people.bob.role}")
    assert "heron" not in str(people.bob.sql("SELECT body FROM cantrip_chunks"))
    assert people.ann.run("substrate", "search", "heron").status == 0


def test_a_sqlite_file_has_nobody_to_keep_out(tmp_path: Path) -> None:
    refused = run("substrate", "secure", cwd=tmp_path, CANTRIP_SUBSTRATE=f"sqlite:{tmp_path}/s.db")
    assert (refused.status, "there is nobody to keep out" in refused.err) == (2, True)


# --- Earlier versions

EARLIER = (
    "INSERT INTO cantrip_chunks (id, number, name, spec, body, source, words) VALUES (%s, %s, %s, '', %s, %s, to_tsvector(%s))",
    "INSERT INTO cantrip_placements (scope, kind, chunk, number, sequence, removed) VALUES (%s, 'instance', %s, %s, NULL, false)",
    "INSERT INTO cantrip_commits VALUES (%s, 0, %s, %s, %s, 1)",
)
"""How an earlier version writes."""


def earlier_writes(address: str, number: int, chunk: str, scope: str, text: str) -> None:
    with psycopg.connect(address) as base:
        base.execute(EARLIER[0], (chunk, number, chunk, json.dumps({"text": text}), "user", text))
        base.execute(EARLIER[1], (scope, chunk, number))
        base.execute(EARLIER[2], (number, "user", "user", f"remember {text}"))


def test_private_texts_of_an_earlier_version_are_nobodys_until_they_are_given_to_somebody(people: Team) -> None:
    with psycopg.connect(people.admin, autocommit=True) as base:
        base.execute("CREATE TABLE cantrip_substrate_tables (version integer PRIMARY KEY)")
        for number, script in enumerate(postgres_tables.MIGRATIONS[:2], 1):
            base.execute(script.encode())
            base.execute("INSERT INTO cantrip_substrate_tables VALUES (%s)", (number,))
    earlier_writes(people.admin, 1, "culture:user", "type:culture", "What the user wants.")
    earlier_writes(people.admin, 2, "fact-1", "culture:user", "A private heron.")
    earlier_writes(people.admin, 3, "fact-2", "project:1:culture", "A public heron.")
    earlier_writes(people.admin, 4, "prompt:1", "session:1", "Which heron?")
    people.grant()
    with people.ann.opened() as anns:
        assert [hit.chunk.id for hit in anns.search("heron")] == ["fact-2"]
        assert [each.message for each in anns.log()] == ["remember A public heron."]
    assert "private" not in str(people.ann.sql("SELECT id, body FROM cantrip_chunks"))
    unknown = run("substrate", "secure", "--earlier", "x", cwd=people.ann.home, CANTRIP_SUBSTRATE=people.admin)
    assert (unknown.status, "the database has no role 'x'" in unknown.err) == (2, True)
    given = run(
        "substrate", "secure", "--earlier", people.ann.role, cwd=people.ann.home, CANTRIP_SUBSTRATE=people.admin
    )
    assert f"{people.ann.role} has 3 private texts\n" in given.out
    with people.ann.opened() as anns, people.bob.opened() as bobs:
        assert {hit.chunk.id for hit in anns.search("heron")} == {"fact-1", "fact-2", "prompt:1"}
        assert texts(anns, USER_CULTURE) == ["A private heron."]
        assert len(anns.log()) == 4
        assert [hit.chunk.id for hit in bobs.search("heron")] == ["fact-2"]
        # It stays hers, whatever she does with it.
        anns.put(NewChunk("fact-1", "f", body={"text": "Another private heron."}), "fact-2")
        assert anns.chunk("fact-1").text == "Another private heron."
        assert anns.search("another")[0].chunk.id == "fact-1"
        assert bobs.search("another") == []
        assert "Another" not in str(people.bob.sql("SELECT body FROM cantrip_chunks"))
        assert people.bob.sql("SELECT scope FROM cantrip_placements WHERE chunk = 'fact-1'") == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        people.ann.sql("UPDATE cantrip_chunks SET name = 'x'")
    with psycopg.connect(people.admin) as base, pytest.raises(psycopg.errors.RestrictViolation):
        base.execute("DELETE FROM cantrip_chunks")


def test_a_process_of_an_earlier_version_writes_beside_a_new_one(team: Team) -> None:
    with team.ann.opened() as anns:
        sync(anns, team.ann.clone, team.ann.home / "config")
        number = anns.latest()
        earlier_writes(team.ann.address, number + 1, "private:fact-1", "culture:user", "Ann's heron.")
        earlier_writes(team.bob.address, number + 2, "session:2", "project:1:sessions", "Bob's heron.")
        earlier_writes(team.bob.address, number + 3, "fact-3", "project:1:culture", "Everybody's heron.")
        earlier_writes(team.bob.address, number + 4, "file:1:1", "culture:user", "A file of Bob.")
        # Its own facts for all projects would be everybody's.
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="what is yours alone: update it"):
            earlier_writes(team.bob.address, number + 5, "fact-4", "culture:user", "A heron of Bob.")
        assert {hit.chunk.text for hit in anns.search("heron")} == {"Ann's heron.", "Everybody's heron."}
        assert texts(anns, USER_CULTURE) == ["Ann's heron."]
        assert [each.message for each in anns.log(limit=2)] == ["remember Everybody's heron.", "remember Ann's heron."]


def test_who_may_not_change_the_tables_is_told_who_can(people: Team) -> None:
    with psycopg.connect(people.admin, autocommit=True) as base:
        base.execute("CREATE TABLE cantrip_substrate_tables (version integer PRIMARY KEY)")
        base.execute(postgres_tables.MIGRATIONS[0].encode())
        base.execute("INSERT INTO cantrip_substrate_tables VALUES (1)")
        base.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {people.schema} TO {people.ann.role}".encode())
    refused = people.ann.run("substrate", "log")
    assert refused.status == 2
    assert "its tables are from an earlier version of cantrip, and only the role that made them can" in refused.err


# --- Ids


def test_the_database_and_cantrip_agree_whose_an_id_is(team: Team) -> None:
    ids = (
        *(USER_CULTURE, "skills:user", "culture:user:x", "culture:users", "private:a", "file:a", "skill:a", "skills:a"),
        *("folder:a", "session:a", "prompt:a", "answer:a", "call:a", "result:a", "context:a", "attachment:a"),
        *("process-1", "process-1:input", "process", "project:a", "type:a", "types", "fact-1", "engine:running"),
    )
    with psycopg.connect(team.admin) as base:
        levels = [base.execute("SELECT cantrip_substrate_privacy(%s)", (each,)).fetchone() for each in ids]
    assert [level and ("shared", "user", "folder")[level[0]] for level in levels] == [privacy(each) for each in ids]
    assert len(PATTERNS) == 2


def test_a_state_folder_has_one_id_whoever_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    first = owners.folder_id()
    assert owners.folder_id() == first
    (tmp_path / "state" / owners.FILE).write_text("")
    assert owners.folder_id() not in ("", first)
    assert [each.name for each in (tmp_path / "state").iterdir()] == [owners.FILE]
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "other"))
    assert owners.folder_id() != first
