"""Reuses results of gates that declare their inputs: the same arguments, files, programs and environment give the same result.

A result is kept as a receipt in the state folder, sealed with a key that only this user has. A receipt that was changed, or
that another user or machine made, is never used. A hit makes the call's effects not again.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.gates.contract import GateInvocation, GateReply, InterceptorBase, Proceed
from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.logs import logger
from cantrip_acp.tuplespace.canonical_json import canonical_json, content_id
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.receipts import is_genuine, make_receipt, user_key
from cantrip_acp.types.records import Location
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.files.digests import FileDigests

_log = logger(__name__)
MAX_BYTES = 1 << 20
"""The largest receipt that is kept."""
KEPT_DAYS = 30


def with_gate_cache(cantrip: Cantrip, state_dir: Path, *, enabled: bool = True) -> Cantrip:
    """The cantrip with entities that reuse gate results. Unchanged if ``CANTRIP_NO_CACHE`` is set.

    With ``enabled`` False, reuse begins when the `SwitchableCache` among the interceptors is switched on.
    """
    if os.environ.get("CANTRIP_NO_CACHE"):
        return cantrip
    return cantrip.replace(interceptors=(*cantrip.interceptors, SwitchableCache(_cache(state_dir), enabled)))


@cache
def _cache(state_dir: Path) -> GateCache:
    return GateCache(state_dir)


class SwitchableCache(InterceptorBase):
    """The reuse of results for one session. ``enabled`` may change at any time."""

    innermost = True
    """Permissions and recorded answers come before it."""

    def __init__(self, cache: GateCache, enabled: bool) -> None:
        self._cache = cache
        self.enabled = enabled

    def __repr__(self) -> str:
        return f"SwitchableCache({self._cache!r}, {self.enabled})"

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        return await (self._cache(invocation, proceed) if self.enabled else proceed(invocation))


class GateCache(InterceptorBase):
    """An interceptor that answers in place of a gate if it has a receipt for the same input."""

    innermost = True
    """Permissions and recorded answers come before it."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "gate-receipts"
        self._digests: FileDigests | None = None
        self._key: bytes | None = None

    def __repr__(self) -> str:
        return f"GateCache({str(self._folder)!r})"

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        gate = invocation.gate
        if gate.inputs is None and not (gate.pure and gate.opens is None and gate.kind == "execute"):
            return await proceed(invocation)
        before = await anyio.to_thread.run_sync(self._input, invocation)
        if before is None:
            return await proceed(invocation)
        found = await anyio.to_thread.run_sync(self._find, before)
        if found is not None:
            return _reused(found)
        started = _now()
        reply = await proceed(invocation)
        if _may_keep(reply, invocation):
            await anyio.to_thread.run_sync(self._keep, invocation, before, reply, started)
        return reply

    def _input(self, invocation: GateInvocation) -> dict[str, Any] | None:
        """All inputs of a call's result, as JSON data. None if they are not known."""
        from cantrip_acp.files.digests import FileDigests, programs_digest
        from cantrip_acp.tuplespace.catalog.build import gate_yool

        gate, context = invocation.gate, invocation.context
        digests = self._digests = self._digests or FileDigests()
        try:
            inputs = gate.inputs(invocation.args, context) if gate.inputs is not None else None
            if gate.inputs is not None and inputs is None:
                return None
            given: dict[str, Any] = {
                "yool": gate_yool(gate.name),
                "version": __version__,
                "args": thaw(invocation.args),
                "options": content_id(json.loads(json.dumps(thaw(dict(gate.dependencies)), default=repr))),
                "wards": repr(context.wards),
            }
            if inputs is not None:
                files = {str(folder): digests.folder(Path(folder)) for folder in inputs.folders}
                if None in files.values():
                    return None
                given |= {
                    "files": files,
                    "programs": programs_digest(inputs.programs),
                    "environment": content_id({name: os.environ.get(name) for name in inputs.variables}),
                    "more": thaw(inputs.more),
                }
            return {"tuple_id": content_id(given), **given}
        except (TupleError, TypeError, OSError) as problem:
            _log.debug("no input for a receipt of gate %s: %s", gate.name, problem)
            return None

    def _path(self, tuple_id: str) -> Path:
        digits = tuple_id.removeprefix("sha256:")
        return self._folder / digits[:2] / f"{digits[2:]}.json"

    def _find(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The receipt for this input, if it exists and this user has sealed it."""
        path = self._path(given["tuple_id"])
        try:
            stored = json.loads(path.read_bytes())
            receipt, seal = stored["receipt"], stored["seal"]
            if (
                isinstance(receipt, dict)
                and hmac.compare_digest(str(seal), self._seal(receipt))
                and is_genuine(receipt)
                and receipt["tuple_id"] == given["tuple_id"]
                and receipt["yool"] == given["yool"]
                and _age_days(receipt) < KEPT_DAYS
            ):
                return receipt
            _log.warning("%s is not a receipt of this user and is not used", path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, TupleError) as problem:
            _log.warning("%s cannot be used: %s", path, problem)
        return None

    def _keep(self, invocation: GateInvocation, before: Mapping[str, Any], reply: GateReply, started: str) -> None:
        """Store the receipt, unless the files that the call reads have changed meanwhile."""
        if self._input(invocation) != before:
            return
        body = {
            "reply": thaw(reply.result),
            "title": reply.title or None,
            "locations": [[each.path, each.line] for each in reply.locations],
        }
        try:
            receipt = make_receipt(
                yool=before["yool"], tuple_id=before["tuple_id"], started_at=started, ended_at=_now(), exit=0, cost={},
                result=body,
            )  # fmt: skip
            content = canonical_json({"receipt": receipt, "seal": self._seal(receipt)})
            if len(content) > MAX_BYTES:
                return
            path = self._path(before["tuple_id"])
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
            new.write_bytes(content)
            os.replace(new, path)
        except (OSError, TupleError) as problem:
            # The call itself is not affected.
            _log.warning("the receipt of gate %s cannot be stored: %s", invocation.gate.name, problem)

    def _seal(self, receipt: Mapping[str, Any]) -> str:
        if self._key is None:
            self._key = user_key(self._folder / "key")
        return hmac.new(self._key, canonical_json(dict(receipt)), hashlib.sha256).hexdigest()


def _may_keep(reply: GateReply, invocation: GateInvocation) -> bool:
    """Whether a reply can be reused: it is complete and no failure, because a repeated call may succeed."""
    if reply.is_error or reply.diffs or reply.plan is not None or reply.attachments or reply.annotations:
        return False
    result = reply.result
    return not (isinstance(result, Mapping) and (result.get("ok") is False or result.get("timed_out")))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _age_days(receipt: Mapping[str, Any]) -> float:
    ended = datetime.datetime.fromisoformat(receipt["ended_at"])
    return (datetime.datetime.now(datetime.UTC) - ended).total_seconds() / 86_400


def _reused(receipt: Mapping[str, Any]) -> GateReply:
    """The stored reply, marked as reused."""
    body = receipt["result"]
    when = datetime.datetime.fromisoformat(receipt["ended_at"]).astimezone().strftime("%H:%M")
    title = f"{body['title'] or 'The same call'} · reused, nothing changed since {when}"
    return GateReply(
        body["reply"],
        title=title,
        locations=tuple(Location(path, line) for path, line in body["locations"]),
        annotations={"reused_receipt": receipt["id"], "reused_from": receipt["ended_at"]},
    )
