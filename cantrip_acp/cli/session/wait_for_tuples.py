"""`cantrip tuple out --wait`: a line for each step as it ends."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.text.sanitize import clean_line, escaped_json

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.tuples import WorkTuple


def wait_for_tuples(store: TupleStore, works: Sequence[WorkTuple], *, as_json: bool) -> bool:
    """Wait until the tuples have ended. Returns whether all of them succeeded."""
    from cantrip_acp.tuplespace.monitoring.status import find_stuck

    waiting, seen, good, told = {work.id: work for work in works}, set[str](), True, set[str]()
    names, looked = len(waiting) > 1, False
    while True:
        for work in list(waiting.values()):
            # The state first: what ends after it is printed the next time.
            stored = store.get(work.id)
            state = stored.state if stored is not None else "taken"
            for receipt in (each.document for each in store.receipts(work.id)):
                if receipt["id"] in seen or "steps" in receipt or receipt["yool"] == "tuple.end":
                    continue
                seen.add(receipt["id"])
                _print(work.id, receipt, as_json=as_json, names=names)
            if state in ("done", "failed", "taken"):
                del waiting[work.id]
                good = good and state == "done"
                why = stored.error if stored is not None else None
                if state != "done" and not as_json:
                    line = f"{work.id[7:19]} {state}" + (f": {why}" if why else "")
                    click.echo(clean_line(line, 500), err=True)
        if not waiting:
            return good
        if looked:
            for lane in {work.lane for work in waiting.values()} - told:
                for each in find_stuck(store, lane):
                    told.add(lane)
                    click.echo(f"cantrip: {each.count} wait for a worker: {clean_line(each.reason)}", err=True)
        store.wait(1.0, threading.Event())
        looked = True


def _print(tuple_id: str, receipt: Mapping[str, Any], *, as_json: bool, names: bool) -> None:
    how = "failed" if receipt["exit"] else "reused" if "reused" in receipt else "ran"
    if as_json:
        row = {"tuple_id": tuple_id, "step": how, "receipt": receipt}
        click.echo(escaped_json(json.dumps(row, ensure_ascii=False)))
    else:
        cost = receipt["cost"]
        line = f"{tuple_id[7:19]}  " if names else ""
        line += f"{receipt['yool']:30}  {how:6}  {(cost.get('wall_ms') or 0) / 1000:.1f} s"
        if cost.get("usd"):
            line += f"  ${cost['usd']:.4f}"
        if receipt["exit"]:
            line += f"  {clean_line(str(receipt.get('error') or receipt['exit']), 300)}"
        click.echo(line)
    sys.stdout.flush()
