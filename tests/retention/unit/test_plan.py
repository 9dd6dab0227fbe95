"""What would go and what stays: by age, by size, by use, by what other looms need, and never by a link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.retention.plan import Plan, delete_items, make_plan
from cantrip_acp.retention.rules import DAY, Rules
from tests.support.aged_looms import age, keep, names

OLD = Rules(older_than=90 * DAY)


def planned(state: Path, rules: Rules = OLD) -> tuple[list[str], dict[str, str]]:
    plan = make_plan(state, rules)
    plan.close()
    return short(plan), {item.name.split("/")[-1].split(".")[0]: str(item.kept) for item in plan.kept}


def short(plan: Plan) -> list[str]:
    return [item.name.split("/")[-1].split(".")[0] for item in plan.to_delete if item.kind == "loom"]


def swept(state: Path, rules: Rules = OLD) -> list[tuple[str, str | None, bool]]:
    plan = make_plan(state, rules)
    try:
        return [(item.name, why, failed) for item, why, failed in delete_items(plan)]
    finally:
        plan.close()


def test_nothing_is_kept_yet(tmp_path: Path) -> None:
    assert planned(tmp_path / "none") == ([], {})
    assert not (tmp_path / "none").exists()
    assert planned(tmp_path) == ([], {})


def test_old_ones_go_and_nothing_else(tmp_path: Path) -> None:
    for name, days in (("a", 100), ("b", 89), ("c", 91), ("d", 0)):
        keep(tmp_path, name, days=days)
    (tmp_path / "trust.json").write_text("{}")
    stranger = age(_file(tmp_path / "looms" / "notes.txt"), 1000)
    assert planned(tmp_path) == (["a", "c"], {})
    assert planned(tmp_path, Rules(None)) == ([], {})
    assert names(tmp_path) == ["a", "b", "c", "d"], "a plan changes nothing"
    assert swept(tmp_path) == [("looms/a.loom.jsonl", None, False), ("looms/c.loom.jsonl", None, False)]
    assert names(tmp_path) == ["b", "d"]
    assert stranger.exists()
    assert (tmp_path / "trust.json").exists()
    assert swept(tmp_path) == []


def _file(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_oldest_go_until_there_is_room(tmp_path: Path) -> None:
    for name, days in (("a", 4), ("b", 3), ("c", 2), ("d", 1)):
        keep(tmp_path, name, days=days, size=100_000)
    room = Rules(older_than=None, max_size=250_000)
    assert planned(tmp_path, room) == (["a", "b"], {})
    (tmp_path / "looms" / "a.loom.jsonl.keep").touch()
    assert planned(tmp_path, room)[0] == ["b", "c"], "what is kept takes room of others"
    with Loom.open(tmp_path / "looms" / "b.loom.jsonl"):
        assert planned(tmp_path, room) == (["c", "d"], {})
    assert planned(tmp_path, Rules(older_than=3.5 * DAY, max_size=250_000)) == (["b", "c"], {"a": "marked to be kept"})
    plan = make_plan(tmp_path, Rules(older_than=None, max_size=10))
    plan.close()
    assert plan.notes == ["the looms that are kept take more room than --max-size allows"]


def test_what_lies_beside_goes_with_it(tmp_path: Path) -> None:
    path = keep(tmp_path, "a", days=100)
    for ending in (".index", ".torn-1", ".torn-23"):
        age(_file(path.with_name(path.name + ending), "y" * 50), 100)
    _file(path.with_name(f".{path.name}.index.part"))
    kept = keep(tmp_path, "b", days=1)
    _file(kept.with_name(kept.name + ".index"))
    plan = make_plan(tmp_path, OLD)
    plan.close()
    assert [item.size for item in plan.to_delete] == [path.stat().st_size + 151]
    assert [why for _, why, _ in swept(tmp_path)] == [None]
    assert sorted(p.name for p in (tmp_path / "looms").iterdir()) == ["b.loom.jsonl", "b.loom.jsonl.index"]


def test_a_session_goes_whole_and_not_while_it_is_open(tmp_path: Path) -> None:
    path = keep(tmp_path, "sess_a", days=100)
    lock = _file(path.with_name("sess_a.lock"))
    _file(path.with_name("sess_a.session.json"), "{}")
    other = _file(path.with_name("sess_b.session.json"), "{}")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert planned(tmp_path) == ([], {"sess_a": "open in another process"})
    assert len(swept(tmp_path)) == 1
    assert list(path.parent.iterdir()) == [other], "its loom may be in a database"


def test_one_that_is_written_stays(tmp_path: Path) -> None:
    path = keep(tmp_path, "a", days=100)
    with Loom.open(path):
        assert planned(tmp_path) == ([], {"a": "open in another process"})
    plan = make_plan(tmp_path, OLD)
    assert short(plan) == ["a"]
    with Loom.open(path) as loom:
        assert [why for _, why, _ in delete_items(plan)] == ["open in another process"]
        loom.append(Turn("t_new", "t_a_1", "c", "e", None))
    plan.close()
    age(path, 100)
    plan = make_plan(tmp_path, OLD)
    with Loom.open(path) as loom:
        loom.annotate_reward("t_new", 1)
    assert [why for _, why, _ in delete_items(plan)] == ["written meanwhile"]
    plan.close()
    age(path, 100)
    plan = make_plan(tmp_path, OLD)
    path.with_name(path.name + ".keep").touch()
    assert [why for _, why, _ in delete_items(plan)] == ["marked to be kept"]
    plan.close()
    with Loom.open(path, readonly=True) as loom:
        assert len(loom) == 3


@pytest.mark.parametrize("by", ["fork", "child"])
def test_what_another_one_goes_on_from_stays_and_what_that_needs_too(tmp_path: Path, by: str) -> None:
    keep(tmp_path, "first", days=300)
    keep(tmp_path, "second", days=200, after="t_first_1", by=by)
    keep(tmp_path, "third", days=1, after="t_second_1", by=by)
    keep(tmp_path, "lone", days=250)
    keep(tmp_path, "its", days=240, after="t_lone_0", by=by)
    assert planned(tmp_path) == (
        ["lone", "its"],
        {"first": "second.loom.jsonl goes on from it", "second": "third.loom.jsonl goes on from it"},
    )
    assert len(swept(tmp_path)) == 2
    assert names(tmp_path) == ["first", "second", "third"]


def test_one_that_cannot_be_read_may_need_any(tmp_path: Path) -> None:
    keep(tmp_path, "a", days=100)
    damaged = keep(tmp_path, "b", days=1, after="t_a_1")
    data = damaged.read_bytes().splitlines(keepends=True)
    damaged.write_bytes(b"".join([data[0], b"\xff\n", *data[1:]]))
    assert planned(tmp_path) == ([], {"a": "b.loom.jsonl goes on from it"})
    base = tmp_path / "looms" / "c.db"
    Loom.open(f"sqlite:{base}").close()
    base.write_bytes(base.read_bytes()[:100] + b"\xff" * 4000)
    plan = make_plan(tmp_path, OLD)
    plan.close()
    assert [item.kept for item in plan.items] == ["c.db, which cannot be read, may continue it"]
    assert len(plan.notes) == 1


def test_links_lead_nowhere(tmp_path: Path) -> None:
    state, outside = tmp_path / "state", tmp_path / "outside"
    precious = keep(outside, "precious", days=900)
    (state / "looms").mkdir(parents=True)
    for name in ("a.loom.jsonl", "b.loom.jsonl.index", "c.db"):
        age_link = state / "looms" / name
        age_link.symlink_to(precious)
        age(age_link, 900)
    (state / "recipes").symlink_to(outside / "looms")
    assert planned(state) == ([], {})
    assert swept(state) == []
    assert precious.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "looms").symlink_to(outside / "looms")
    plan = make_plan(other, OLD)
    plan.close()
    assert (plan.items, plan.notes) == ([], ["looms is not a folder but a link or a file; it was left alone"])


def test_a_state_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    keep(tmp_path / "real", "a", days=100)
    (tmp_path / "link").symlink_to("real")
    assert swept(tmp_path / "link") == [("looms/a.loom.jsonl", None, False)]


def test_databases(tmp_path: Path) -> None:
    path = tmp_path / "looms" / "a.db"
    with Loom.open(f"sqlite:{path}") as loom:
        loom.append(Turn("t", None, "c", "e", None))
    stranger = age(_file(tmp_path / "looms" / "b.db", "not a database"), 100)
    age(path, 100)
    plan = make_plan(tmp_path, OLD)
    with Loom.open(path, readonly=True):
        assert [why for _, why, _ in delete_items(plan)] == ["open in another process"]
    plan.close()
    age(path, 100)
    (tmp_path / "looms" / "a.db-wal").unlink(missing_ok=True)
    assert [(name, why) for name, why, _ in swept(tmp_path)] == [("looms/a.db", None)]
    assert list((tmp_path / "looms").iterdir()) == [stranger]


def test_compiled_recipes_go_by_their_age(tmp_path: Path) -> None:
    compiled = tmp_path / "recipes" / f"{'a' * 64}.json"
    other = age(_file(tmp_path / "recipes" / "mine.json"), 100)
    age(_file(compiled), 100)
    age(_file(tmp_path / "recipes" / f".{'a' * 64}.json.123"), 100)
    homes = age(_file(tmp_path / "homes" / "abc" / ".bashrc"), 1000)
    assert sorted(why is None for _, why, _ in swept(tmp_path)) == [True] * 2
    assert other.exists()
    assert homes.exists()
    assert not compiled.exists()


def test_what_cannot_be_removed_is_told_and_the_rest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, "a", days=100)
    keep(tmp_path, "b", days=100)
    real = os.unlink

    def refused(name: str, **more: int) -> None:
        if name == "a.loom.jsonl":
            raise PermissionError(1, "Operation not permitted", name)
        real(name, **more)

    monkeypatch.setattr(os, "unlink", refused)
    assert swept(tmp_path) == [
        ("looms/a.loom.jsonl", "Operation not permitted", True),
        ("looms/b.loom.jsonl", None, False),
    ]
