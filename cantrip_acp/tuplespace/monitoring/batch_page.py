"""The page of a batch: one HTML file with the result, the reward and the cost of each cast, and links to the pages of their looms.

It uses the colours, lists and texts of a loom's page (`loom.view`), and needs neither this program nor the store.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cantrip_acp.files.folder import Folder
from cantrip_acp.loom.output_file import output_file
from cantrip_acp.loom.view import assets, write_html
from cantrip_acp.loom.view.html_export import page
from cantrip_acp.tuplespace.retention import read_result
from cantrip_acp.tuplespace.stores.base import BATCH_LANE
from cantrip_acp.tuplespace.tuples import Pattern, parse_time, tuple_id
from cantrip_acp.types.errors import LoomError, OutputError

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.base import StoredTuple
    from cantrip_acp.tuplespace.stores.sql import TupleStore

_BLOCK = 500
"""The number of tuples in one block of the page."""
_TEXT = 20_000
"""The most characters of a result."""


def write_report(
    store: TupleStore,
    target: Path,
    *,
    lane: str | None = None,
    only: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    title: str | None = None,
    looms: bool = True,
    every: bool = False,
) -> int:
    """Write the page of the tuples of a lane, or of ``only`` these ids, and return how many there are.

    Of what was repeated on purpose, the page has the latest run; with ``every``, all.
    ``names`` has the names of tuples by id. With ``looms`` the pages of their looms are written into a folder beside the
    page. Known secrets, and texts that look like secrets, are masked. Raises `SpaceError`, `OutputError`.
    """
    latest = None if every or only is not None else _latest(store, lane)
    rows = list(_rows(store, lane, only, names or {}, latest))
    problems = _add_looms(rows, target if looms else None)
    about = {
        "title": title or (f"lane {lane}" if lane else "all lanes"),
        "space": store.location,
        "problems": problems,
    }
    folder = files(__package__).joinpath("page")
    script = assets.script(folder.joinpath("batch.js").read_text("utf-8"))
    style = assets.text("view.css") + folder.joinpath("batch.css").read_text("utf-8")
    with output_file(target, mode=0o600) as out:
        file = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
        with page(file, style, script) as block:
            block("batch", about)
            for start in range(0, len(rows), _BLOCK):
                block(f"rows-{start}", rows[start : start + _BLOCK])
        file.detach()
    return len(rows)


def _rows(
    store: TupleStore,
    lane: str | None,
    only: Sequence[str] | None,
    names: Mapping[str, str],
    latest: Set[str] | None,
) -> Iterator[dict[str, Any]]:
    place = 0
    for found in _stored(store, lane, only):
        shown = [each for each in found if latest is None or each.work.id in latest]
        ended = store.ended([each.work.id for each in shown])
        for each in shown:
            receipt = ended.get(each.work.id)
            if receipt is not None and receipt.get("artifacts"):
                receipt = {**receipt, "result": read_result(store, receipt)}
            yield _row(place, each, receipt, names.get(each.work.id))
            place += 1


def _stored(store: TupleStore, lane: str | None, only: Sequence[str] | None) -> Iterator[list[StoredTuple]]:
    if only is not None:
        for start in range(0, len(only), _BLOCK):
            looked = [store.get(tuple_id) for tuple_id in only[start : start + _BLOCK]]
            yield [each for each in looked if each is not None]
        return
    cursor, pattern = "", Pattern({"lane": lane} if lane else {})
    while True:
        found, after = store.after(cursor, pattern)
        if after == cursor:
            return
        cursor = after
        yield [each for each in found if each.work.lane != BATCH_LANE]


def _latest(store: TupleStore, lane: str | None) -> set[str]:
    """The ids of the tuples that no later run (``--again``) repeats."""
    found: dict[str, str] = {}
    for block in _stored(store, lane, None):
        for each in block:
            document = each.work.document
            position = document.get("map_pos") or {}
            # A batch writes ``run`` into its casts. In other tuples it may mean anything.
            own = {"again", "run"} if each.work.payload[0].yool.startswith("agent.cast.") else {"again"}
            first = {key: value for key, value in position.items() if key not in own}
            found[tuple_id({**document, "map_pos": first})] = each.work.id
    return set(found.values())


def _row(place: int, stored: StoredTuple, receipt: Mapping[str, Any] | None, name: str | None) -> dict[str, Any]:
    work = stored.work
    args = work.payload[0].args or {}
    intent = args.get("intent")
    cost = receipt["cost"] if receipt is not None else (stored.progress or {}).get("cost") or {}
    tokens = [cost[key] for key in ("tokens_in", "tokens_out") if cost.get(key) is not None]
    cast = receipt.get("result") if receipt is not None else stored.progress
    cast = cast if isinstance(cast, Mapping) else {"result": cast}
    ended = parse_time(receipt["ended_at"]) if receipt is not None else None
    return {
        "place": place,
        "id": work.id,
        "lane": work.lane,
        "name": name,
        "yools": [step.yool for step in work.payload][:20],
        "intent": _text(intent if isinstance(intent, str) else [step.yool for step in work.payload]),
        "sample": (work.map_pos or {}).get("sample"),
        "state": stored.state,
        "attempts": stored.attempts,
        "worker": stored.worker,
        # The reason of an earlier attempt is no longer true of a tuple that is done.
        "error": stored.error if stored.state != "done" else None,
        "result": _text(cast.get("result")) if receipt is not None else None,
        "reason": cast.get("reason"),
        "turns": cast.get("turns"),
        "usd": cost.get("usd"),
        "tokens": sum(tokens) if tokens else None,
        "ms": cost.get("wall_ms"),
        "ended": ended.timestamp() * 1000 if ended is not None else None,
        "entity": cast.get("entity_id"),
        "loom": cast.get("loom"),
        "turn": None,
        "page": None,
        "reward": None,
    }


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return text if len(text) <= _TEXT else text[:_TEXT] + f"\n… {len(text) - _TEXT:,} more characters"


def _add_looms(rows: Sequence[dict[str, Any]], target: Path | None) -> list[str]:
    """Add rewards, threads and links from the looms. Returns errors of looms that could not be read."""
    from cantrip_acp.loom.find_loom import open_readonly
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.loom.rewards import of_thread

    by_loom: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if isinstance(row["loom"], str) and isinstance(row["entity"], str):
            by_loom.setdefault(row["loom"], []).append(row)
    problems = []
    for number, (location, found) in enumerate(sorted(by_loom.items())):
        try:
            link = None
            with open_readonly(location) as loom:
                outline = Outline(loom)
                for row in found:
                    leaf = loom.last_turn(row["entity"])
                    if leaf is not None:
                        row["turn"] = leaf
                        row["reward"] = of_thread(loom, leaf, outline=outline)
            if target is not None:
                link = write_loom_page(location, number, target)
        except LoomError as error:
            problems.append(f"{location}: {error}")
            continue
        for row in found:
            if link is not None and row["turn"] is not None:
                row["page"] = f"{link}#turn={row['turn']}"
    return problems


def write_loom_page(location: str, number: int, target: Path) -> str:
    """Write the page of a loom into the folder of the report's page. Returns its address, relative to that page."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", Path(location.partition("?")[0]).name.partition(".")[0]) or "loom"
    folder = target.with_name(f"{target.stem}-looms")
    try:
        with Folder.holding(target) as above:
            above.beneath(folder.name, make=True, mode=0o700).close()
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}") from None
    write_html(location, folder / f"{number}-{name}.html")
    return f"{quote(folder.name)}/{number}-{name}.html"
