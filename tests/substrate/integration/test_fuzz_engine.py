"""Anything at all on the engine's socket: it answers by the rules of JSON-RPC, gives nothing away, and goes on.

One engine takes all messages, so what one of them broke would show in the next.
`FUZZ=20 pytest tests/substrate/integration/test_fuzz_engine.py` runs twenty times as many.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Spec
from cantrip_acp.substrate.engine.engine import AgentTask, Engine
from cantrip_acp.substrate.engine.socket_server import MOST_CONNECTIONS, listen
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import AGENT, TYPES, install, of_type

TIMES = int(os.environ.get("FUZZ", "1"))
SETTINGS = settings(
    deadline=None,
    derandomize=TIMES == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
SECRET = "penguin"
"""A word of all that is outside. No message has it."""
OUTSIDE = ["vault", "vault-item", "pinned", "other-process"]


@dataclass
class Served:
    """An engine in its own thread, with a holder ``own`` at a socket."""

    substrate: Substrate
    engine: Engine
    path: str
    portal: BlockingPortal

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(self.path)
        return client

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        with self.connect() as client:
            client.sendall(request(method, params))
            return dict(json.loads(client.makefile("rb").readline()))


def request(method: Any, params: Any, number: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzz")
    with open_substrate(folder / "substrate.db") as substrate, start_blocking_portal() as portal:
        install(substrate)
        hidden = Spec(required=("text",))
        chunks = [
            NewChunk("vault", f"the {SECRET} vault", Spec(), {"text": SECRET}),
            NewChunk("vault-item", "item", hidden, {"text": SECRET}),
            NewChunk("pinned", "pinned", Spec(True, True), {"text": SECRET}),
            NewChunk("other-process", "run", Spec(), {"program": SECRET, "state": "ended", "text": SECRET}),
            NewChunk("shown", "shown", Spec(), {"text": "to read"}),
            NewChunk("own", "own", Spec(), {"text": "to write"}),
            NewChunk("list", "list", Spec(ordered=True), {"text": "a list"}),
        ]
        places = [NewPlacement("vault-item", "vault"), of_type("process", "other-process"), NewPlacement("list", "own")]
        substrate.commit(Change(chunks, places), author="user")

        async def cast(task: AgentTask) -> str:
            return "said"

        boundary = Boundary.of(read=["shown", TYPES], write=["own"], holder="own")
        with portal.wrap_async_context_manager(Engine(substrate, folder, cast)) as engine:
            engine.admit("own", boundary)
            serving = portal.start_task_soon(listen, engine, str(folder / "s"), "own", boundary)
            while not (folder / "s").exists():
                assert not serving.done()
                time.sleep(0.01)
            before, start = state(substrate), substrate.latest()
            yield Served(substrate, engine, str(folder / "s"), portal)
            assert not serving.done(), serving.exception()
            serving.cancel()
            assert state(substrate) == before
            for commit in substrate.log(limit=100_000)[:-start]:
                assert commit.author in ("program:own", "engine")
                assert commit.source.startswith("program:"), commit


def state(substrate: Substrate) -> Any:
    """All that nobody at the socket may change. Instances of a type, and references to a chunk, are no change of it."""
    fixed = [*OUTSIDE, "shown", TYPES, AGENT, "type:session", "type:program"]
    return [
        (
            each,
            substrate.chunk(each),
            [
                p
                for p in substrate.scope(each).placed
                if p.kind == "relates" or not p.chunk.source.startswith("program:")
            ],
            [
                p
                for p in substrate.placements(each)
                if not substrate.chunk(p.scope).source.startswith("program:") and p.scope not in ("own", "list")
            ],
        )
        for each in fixed
    ]


ids = st.sampled_from(
    [
        *OUTSIDE,
        "shown",
        "own",
        "list",
        "mine",
        "mine-2",
        "own:input",
        "type:program",
        "type:session",
        AGENT,
        TYPES,
        "nothing",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | ids
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=6
)


def loose(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return good | good | good | good | values


names = st.sampled_from(["mine", "item", "pinned", "prompt", "vault-item", "the vault"])
specs = st.fixed_dictionaries(
    {},
    optional={
        "propagate": loose(st.booleans()),
        "ordered": st.booleans(),
        "accepts": st.lists(names, max_size=2),
        "required": st.lists(names, max_size=1),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=5),
        "read": loose(st.lists(ids, max_size=2)),
        "write": st.lists(ids, max_size=2),
        "runtime": st.just("vm"),
    },
)
places = st.fixed_dictionaries(
    {"chunk": loose(ids), "scope": loose(ids)},
    optional={"kind": st.sampled_from(["instance", "relates"]), "sequence": loose(st.integers(0, 5))},
)
commits = st.fixed_dictionaries(
    {},
    optional={
        "chunks": loose(
            st.lists(
                st.fixed_dictionaries(
                    {"id": ids, "name": names}, optional={"spec": loose(specs), "body": loose(bodies)}
                ),
                max_size=3,
            )
        ),
        "placements": loose(st.lists(places, max_size=4)),
        "removals": loose(st.lists(places, max_size=2)),
        "author": st.just("user"),
        "source": st.just("user"),
    },
)
calls = st.one_of(
    st.tuples(
        st.just("scope"), st.fixed_dictionaries({}, optional={"id": loose(ids), "at": loose(st.integers(0, 50))})
    ),
    st.tuples(
        st.just("search"),
        st.fixed_dictionaries(
            {"query": loose(st.sampled_from(["text", "p", "to read", '"', "*"]))},
            optional={"limit": loose(st.integers(0, 5))},
        ),
    ),
    st.tuples(st.just("commit"), commits),
    st.tuples(st.just("commit"), commits),
    st.tuples(
        st.just("run"),
        st.fixed_dictionaries(
            {
                "program": loose(ids),
                "input": loose(
                    st.fixed_dictionaries(
                        {"intent": st.text(max_size=3)}, optional={"scopes": loose(st.lists(ids, max_size=2))}
                    )
                ),
            },
            optional={"read": loose(st.lists(ids, max_size=3)), "write": loose(st.lists(ids, max_size=3))},
        ),
    ),
    st.tuples(st.just("await"), st.fixed_dictionaries({"process": loose(ids)}, optional={"timeout_s": st.just(0)})),
    st.tuples(values, values),
)
numbers = (
    st.integers(-(2**53), 2**70) | st.text(max_size=5) | st.none() | st.floats(allow_nan=False, allow_infinity=False)
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    method, params = draw(calls)
    whole: Any = {"jsonrpc": "2.0", "id": draw(numbers), "method": method, "params": params}
    change = draw(st.integers(0, 9))
    if change == 0:
        del whole[draw(st.sampled_from(sorted(whole)))]
    elif change == 1:
        whole[draw(st.sampled_from(sorted(whole)))] = draw(values)
    elif change == 2:
        whole = draw(
            st.sampled_from([[whole], [whole, whole], [], whole["params"], {"jsonrpc": "2.0", "id": 1, "result": 1}])
        )
    line = json.dumps(whole, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if change == 3:
        at = draw(st.integers(0, len(line)))
        line = line[:at] + draw(st.binary(max_size=3)) + line[at + draw(st.integers(0, 3)) :]
    elif change == 4:
        line = draw(st.binary(max_size=30) | st.just(b"[" * 10_000) | st.just(b"\xef\xbb\xbf" + line))
    return line.replace(b"\n", b" ") + b"\n"


def expected(line: bytes) -> list[Any]:
    """The ids of the answers to a line."""
    if not line.strip():
        return []
    try:
        message = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [None]
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        return [None]
    number = message.get("id")
    if isinstance(number, (bool, list, dict)):
        return [None]
    return [number] if "id" in message else []


@settings(SETTINGS, max_examples=60 * TIMES)
@given(st.lists(messages(), min_size=1, max_size=6), st.lists(st.integers(1, 300), max_size=8))
def test_every_line_gets_its_answer_and_nothing_else(served: Served, lines: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(lines) + request("scope", {"id": "own"}, "last")
    with served.connect() as client:
        for cut in cuts:
            client.sendall(sent[:cut])
            sent = sent[cut:]
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        got = client.makefile("rb").read()
    assert SECRET.encode() not in got
    answers = [json.loads(each) for each in got.splitlines()]
    wanted = [number for line in lines for number in expected(line)]
    # An id is told back as it was.
    assert [answer["id"] for answer in answers] == [*wanted, "last"]
    for answer in answers:
        assert answer["jsonrpc"] == "2.0"
        assert ("result" in answer) != ("error" in answer)
        if "error" in answer:
            assert isinstance(answer["error"]["code"], int)
            assert isinstance(answer["error"]["message"], str)
            assert answer["error"]["code"] != -32603, (lines, answer)
            assert "Traceback" not in answer["error"]["message"]
    assert answers[-1]["result"]["chunk"]["id"] == "own"


@settings(SETTINGS, max_examples=15 * TIMES)
@given(st.lists(st.tuples(messages(), st.integers(0, 400), st.booleans()), min_size=1, max_size=24))
def test_connections_that_break_off_leave_the_engine_alive(
    served: Served, broken: list[tuple[bytes, int, bool]]
) -> None:
    clients = []
    for line, cut, stays in broken:
        client = served.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(line[:cut])
        if stays:
            clients.append(client)
        else:
            client.close()
    for client in clients:
        client.close()
    # Their places are free again as soon as their end was seen.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, json.JSONDecodeError):
            assert served.ask("scope", id="own")["result"]["chunk"]["id"] == "own"
            return
    raise AssertionError("no connection is free any more")


def test_a_place_is_free_again_although_its_client_awaited_something(served: Served) -> None:
    """Only `MOST_CONNECTIONS` are served: what clients left behind must not count."""
    mine = {
        "chunks": [{"id": "endless", "name": "endless", "body": {"state": "running"}}],
        "placements": [{"chunk": "endless", "scope": "own"}],
    }
    assert "result" in served.ask("commit", **mine)
    for _ in range(MOST_CONNECTIONS + 2):
        with served.connect() as client:
            client.sendall(request("await", {"process": "endless"}))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, json.JSONDecodeError):
            assert "result" in served.ask("scope", id="own")
            return
    raise AssertionError("no connection is free any more")


def test_numbers_and_notifications_follow_json_rpc(served: Served) -> None:
    with served.connect() as client:
        client.sendall(
            b'{"jsonrpc": "2.0", "method": "search"}\n{"jsonrpc": "2.0", "method": "nothing", "params": []}\n'
        )
        client.sendall(
            request("scope", {"id": "own"}, None) + request("scope", {"id": "own"}, True) + request("scope", [], "x")
        )
        client.shutdown(socket.SHUT_WR)
        answers = [json.loads(line) for line in client.makefile("rb")]
    assert [(each["id"], each.get("error", {}).get("code")) for each in answers] == [
        (None, None),
        (None, -32600),
        ("x", -32602),
    ]


def new(chunk: str, *places: tuple[str, str, str], body: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "chunks": [{"id": chunk, "name": chunk, "spec": spec, "body": body or {"text": chunk}}],
        "placements": [{"chunk": c, "scope": s, "kind": k} for c, s, k in places],
    }


def test_the_engine_writes_no_input_where_the_caller_may_not(served: Served) -> None:
    """The engine places an input on the types that a program accepts: a scope must not be made a type for that."""
    program = new(
        "trick",
        ("trick", "own", "instance"),
        ("trick", "type:program", "instance"),
        ("shown", "trick", "relates"),
        propagate=True,
        accepts=["shown"],
    )
    program["chunks"][0]["body"] = {"text": "x", "executable": "true"}
    assert "may not make it a type" in served.ask("commit", **program)["error"]["message"]
    # Nor in two steps.
    later = copy.deepcopy(program) | {"placements": []}
    program["chunks"][0]["spec"] = {"propagate": True}
    assert "result" in served.ask("commit", **program)
    assert "may not make it a type" in served.ask("commit", **later)["error"]["message"]
    assert served.substrate.scope("shown").placed == ()


def test_the_record_of_a_run_is_the_engines(served: Served) -> None:
    process = served.ask("run", program=AGENT, input={"intent": "x"})["result"]["process"]
    assert served.ask("await", process=process)["result"]["text"] == "said"
    record = served.substrate.scope(process)
    for change in (
        {"chunks": [{"id": "own", "name": "own"}]},
        {"removals": [{"chunk": process, "scope": "own", "kind": "relates"}]},
        {"removals": [{"chunk": process, "scope": "type:process"}]},
        {"removals": [{"chunk": f"{process}:input", "scope": process}]},
        {"chunks": [{"id": process, "name": "x", "body": {"program": "x"}}]},
    ):
        assert served.ask("commit", **change)["error"]["code"] == -32001, change
    assert served.substrate.scope(process) == record


def test_a_program_that_cannot_be_started_ends_alone(served: Served) -> None:
    program = new(
        "nul",
        ("nul", "own", "instance"),
        ("nul", "type:program", "instance"),
        body={"text": "x", "executable": "a\0b", "args": ["\0"]},
    )
    assert "result" in served.ask("commit", **program)
    end = served.ask("await", process=served.ask("run", program="nul")["result"]["process"])["result"]
    assert (end["state"], "cannot contain a NUL" in end["text"]) == ("failed", True)
    again = served.ask("run", program="nul", input={"args": ["x" * 90_000] * 1})["result"]["process"]
    assert served.ask("await", process=again)["result"]["state"] == "failed"
    assert "result" in served.ask("scope", id="own")
