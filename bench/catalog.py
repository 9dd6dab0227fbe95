"""The catalog among 100,000 names: lookup, insert, build and difference, beside dict and immutables.Map.

dict is the baseline for lookups and for building. A map that keeps its earlier versions costs a dict a whole copy for each
insert; that is the baseline of inserts. The baseline of a difference is the comparison of two dicts.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import immutables
import msgspec

from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.tuplespace.catalog.capabilities import Capability, Catalog, read_catalog
from cantrip_acp.tuplespace.catalog.hamt import Hamt

NAMES = 100_000
LOOKUPS = 20_000
INSERTS = 500


def run(options: Options) -> Table:
    made = [
        Capability(name=f"agent.area{n % 100}.tool{n}", version="v1", kind="agent", source="AGENTS.md", lane="build")
        for n in range(NAMES)
    ]
    items = [(each.name, each) for each in made]
    chosen = random.Random(1)
    names = [name for name, _ in chosen.choices(items, k=LOOKUPS)]
    new = [(f"agent.new.tool{n}", made[n]) for n in range(INSERTS)]
    plain, other = dict(items), immutables.Map(items)
    ours = Hamt.of(items, msgspec.json.encode)
    changed = ours.insert(names[0], made[0]).insert("agent.new.tool", made[1])
    changed_plain = plain | {names[0]: made[0], "agent.new.tool": made[1]}
    catalog = Catalog(made)
    assert ours.root_hash == catalog.catalog_id
    difference = ours.diff(changed)
    count = ours.node_count()
    samples: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any], scale: float) -> None:
        began = time.perf_counter()
        work()
        samples.setdefault(name, []).append((time.perf_counter() - began) * scale)

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder) / "capabilities.json"
        file.write_bytes(catalog.to_json())
        for _ in range(options.rounds(9)):
            for name, find in (("dict", plain), ("immutables", other), ("hamt", ours)):
                timed(f"{name} lookup", lambda find=find: [find[each] for each in names], 1e6 / LOOKUPS)  # type: ignore[misc]
            timed("catalog lookup", lambda: [catalog.lookup(each) for each in names], 1e6 / LOOKUPS)
            timed("dict insert", lambda: [plain | {name: value} for name, value in new[:10]], 1e6 / 10)
            timed("immutables insert", lambda: [other.set(name, value) for name, value in new], 1e6 / INSERTS)
            timed("hamt insert", lambda: [ours.insert(name, value) for name, value in new], 1e6 / INSERTS)
            timed("hash insert", lambda: [ours.insert(n, value).root_hash for n, value in new], 1e6 / INSERTS)
            timed("dict build", lambda: dict(items), 1e3)
            timed("immutables build", lambda: immutables.Map(items), 1e3)
            timed("hamt build", lambda: Hamt.of(items, msgspec.json.encode), 1e3)
            timed("catalog build", lambda: Catalog(made).catalog_id, 1e3)
            timed("catalog read", lambda: read_catalog(file), 1e3)
            timed("dict diff", lambda: [k for k, v in changed_plain.items() if plain.get(k) != v], 1e6)
            timed("hamt diff", lambda: ours.diff(changed), 1e6)

    lookup = row("lookup: dict", samples["dict lookup"], "µs")
    insert = row("insert into a copy: dict", samples["dict insert"], "µs")
    build = row("build: dict", samples["dict build"], "ms")
    diff = row("two changes: two dicts", samples["dict diff"], "µs")
    goals: dict[str, Any] = {"goal": "<= 3 µs", "reached": lambda r: r.median <= 3}
    built: dict[str, Any] = {"goal": "<= 1 s", "reached": lambda r: r.median <= 1000}
    reads = f"reads {difference.nodes_read} nodes of {count:,}"
    rows = (
        lookup,
        row("lookup: immutables.Map", samples["immutables lookup"], "µs", baseline=lookup),
        row("lookup: our map", samples["hamt lookup"], "µs", baseline=lookup),
        row("lookup: the catalog (a dict beside the map)", samples["catalog lookup"], "µs", baseline=lookup, **goals),
        insert,
        row("insert: immutables.Map", samples["immutables insert"], "µs", baseline=insert),
        row("insert: our map", samples["hamt insert"], "µs", baseline=insert),
        row("insert: our map, and its root hash", samples["hash insert"], "µs", baseline=insert),
        build,
        row("build: immutables.Map", samples["immutables build"], "ms", baseline=build),
        row("build: our map", samples["hamt build"], "ms", baseline=build),
        row("build: the catalog and its id", samples["catalog build"], "ms", baseline=build, **built),
        row("build: the catalog from its file, checked", samples["catalog read"], "ms", baseline=build),
        diff,
        row("two changes: our map", samples["hamt diff"], "µs", baseline=diff, note=reads),
    )
    return Table("catalog", f"the catalog, {NAMES:,} names", rows)
