"""`cantrip mcp`: clients of the official SDK, and the official inspector, dispatch casts and read their receipts."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError

from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.retention import Tiers, collect
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import End
from cantrip_acp.tuplespace.tuples import Pattern, now_iso
from cantrip_acp.tuplespace.workers.worker import StepCall, StepResult, Worker
from tests.cli.integration.test_cast_batch import RECIPE
from tests.support import openai_replies, processes
from tests.support.processes import CANTRIP
from tests.support.provider_server import Wire

TOOLS = ["catalog.lookup", "catalog.list_by_lane", "tuple.dispatch", "tuple.observe", "receipt.get"]
HELLO = {"recipe": "greeter", "intent": "Say hello."}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "CANTRIP_STATE_DIR": str(folder / "state"), "MY_API_KEY": "a-secret-of-the-operator"}


def command(*words: str) -> list[str]:
    return [*CANTRIP, "mcp", *words]


@asynccontextmanager
async def on_stdio(folder: Path, *words: str, mode: str = "auto") -> AsyncIterator[Client]:
    program = str(processes.programs() / "cantrip")
    server = StdioServerParameters(command=program, args=["mcp", *words], cwd=folder, env=environment(folder))
    async with Client(server, mode=mode) as client:
        yield client


class HttpProcess:
    """A server that listens on a free port."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = processes.Popen(
            command(*words, "--http", "--port", "0", "--json"), cwd=folder, text=True, env=environment(folder),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        found = json.loads(line)
        self.url: str = found["url"]
        self.token_file = Path(found["token_file"])
        self.token = self.token_file.read_text().strip()

    def end(self) -> tuple[int, str]:
        self.process.terminate()
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr

    def post(self, **headers: str) -> tuple[int, dict[str, str], str]:
        """The status, headers and body that a request for the list of tools gets."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        ours = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request("POST", parts.path, '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', ours | named)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., HttpProcess]]:
    started: list[HttpProcess] = []

    def start(*words: str) -> HttpProcess:
        started.append(HttpProcess(folder, *words))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@asynccontextmanager
async def on_http(server: HttpProcess, mode: str = "auto") -> AsyncIterator[Client]:
    web = create_mcp_http_client(headers={"Authorization": f"Bearer {server.token}"})
    async with web, Client(streamable_http_client(server.url, http_client=web), mode=mode) as client:
        yield client


Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["stdio", "http", "stdio legacy", "http legacy"])
def connect(request: pytest.FixtureRequest, folder: Path, serve: Callable[..., HttpProcess]) -> Connect:
    """Connects to a new server by each transport, in the protocol's present version and with the older handshake."""
    transport, _, mode = request.param.partition(" ")
    if transport == "stdio":
        return lambda *words: on_stdio(folder, *words, mode=mode or "auto")
    return lambda *words: on_http(serve(*words), mode or "auto")


async def call(client: Client, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The structured content of an answer. The client has checked it against the tool's schema."""
    result = await client.call_tool(name, arguments, **more)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def error(client: Client, name: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.structured_content
    [content] = result.content
    return str(getattr(content, "text", ""))


async def test_a_client_dispatches_a_cast_and_reads_its_receipt(connect: Connect) -> None:
    seen: list[tuple[float, str | None]] = []

    async def progress(number: float, total: float | None, message: str | None) -> None:
        seen.append((number, message))

    async with connect("greeter.cantrip.yaml", "--work") as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        assert all(tool.description and tool.output_schema for tool in tools)
        assert [t.name for t in tools if not (t.annotations and t.annotations.read_only_hint)] == ["tuple.dispatch"]
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert (capabilities.resources, capabilities.prompts) == (None, None)

        listed = await call(client, "catalog.list_by_lane", {"lane": "mcp"})
        assert "agent.cast.greeter" in [each["name"] for each in listed["capabilities"]]
        put = await call(client, "tuple.dispatch", HELLO)
        assert (put["new"], put["lane"]) == (True, "mcp")
        ended = await call(client, "tuple.observe", {"tuple_id": put["tuple_id"]}, progress_callback=progress)
        assert (ended["state"], ended["ended"], ended["cost"]["usd"]) == ("done", True, 0.001)
        receipt = (await call(client, "receipt.get", {"receipt_id": ended["receipt_id"]}))["receipt"]
        assert (receipt["exit"], receipt["result"]["result"], receipt["tuple_id"]) == (0, "Hello.", put["tuple_id"])
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][1] == "done"


async def test_one_call_can_wait_and_the_same_work_is_done_once(folder: Path) -> None:
    seen: list[str | None] = []

    async def progress(number: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with on_stdio(folder, "greeter.cantrip.yaml", "--work") as client:
        work = {**HELLO, "wait_s": 30}
        first = await call(client, "tuple.dispatch", work, progress_callback=progress)
        assert (first["new"], first["state"]) == (True, "done")
        assert (seen[0], seen[-1]) == ("put into lane mcp", "done")
        again = await call(client, "tuple.dispatch", work, progress_callback=progress)
        assert (again["new"], again["receipt_id"]) == (False, first["receipt_id"])
        assert "give another number in map_pos" in again["hint"]
        other = await call(client, "tuple.dispatch", {**work, "map_pos": {"sample": 1}})
        assert other["new"]
        assert other["receipt_id"] != first["receipt_id"]
        failed = await call(client, "tuple.dispatch", {**work, "intent": "endless"})
        assert (failed["state"], failed["ended"]) == ("failed", True)
        assert "the cast was cut off: max_turns" in failed["error"]


async def test_a_changed_file_is_other_work_unless_it_still_waits(folder: Path) -> None:
    recipe = (folder / "greeter.cantrip.yaml").read_text().replace("gates: [done", "gates: [read_file, done")
    (folder / "greeter.cantrip.yaml").write_text(recipe)
    (folder / "code.py").write_text("1")
    async with on_stdio(folder, "greeter.cantrip.yaml") as client:
        waiting = await call(client, "tuple.dispatch", HELLO)
        (folder / "code.py").write_text("2")
        same = await call(client, "tuple.dispatch", HELLO)
        assert (same["new"], same["tuple_id"]) == (False, waiting["tuple_id"])
    async with on_stdio(folder, "greeter.cantrip.yaml", "--work") as client:
        ended = await call(client, "tuple.observe", {"tuple_id": waiting["tuple_id"], "timeout_s": 30})
        assert ended["state"] == "done"
        # The files had changed before it ran.
        second = await call(client, "tuple.dispatch", {**HELLO, "wait_s": 30})
        assert (second["new"], second["state"]) == (True, "done")
        assert not (await call(client, "tuple.dispatch", HELLO))["new"]
        (folder / "code.py").write_text("3")
        assert (await call(client, "tuple.dispatch", HELLO))["new"]


@pytest.mark.parametrize("shared", [False, True])
async def test_casts_of_the_server_do_not_read_each_other(folder: Path, shared: bool) -> None:
    with Wire(lambda _: openai_replies.chat_stream({"content": "The answer is 42."})) as model:
        memory = "{culture: true, sessions: 8" + (", batches: true}" if shared else "}")
        crystal = f'{{provider: local, model: m, base_url: "{model.url}/v1"}}'
        (folder / "greeter.cantrip.yaml").write_text(
            f"name: greeter\ncrystal: {crystal}\nmemory: {memory}\ncircle: {{gates: [done], wards: [{{max_turns: 3}}]}}\n"
        )
        async with on_stdio(folder, "greeter.cantrip.yaml", "--work") as client:
            for number in (1, 2):
                work = {**HELLO, "map_pos": {"sample": number}, "wait_s": 30}
                assert (await call(client, "tuple.dispatch", work))["state"] == "done"
        texts = [each.body.decode() for each in model.requests if each.path.endswith("/chat/completions")]
    assert ["The answer is 42." in text for text in texts] == [False, shared]


async def test_an_answer_with_a_known_etag_is_short(folder: Path) -> None:
    async with on_stdio(folder, "greeter.cantrip.yaml", "--work") as client:
        done = await call(client, "tuple.dispatch", {**HELLO, "wait_s": 30})
        for name, arguments in (
            ("catalog.lookup", {"name": "agent.cast.greeter"}),
            ("catalog.list_by_lane", {}),
            ("tuple.observe", {"tuple_id": done["tuple_id"]}),
            ("receipt.get", {"receipt_id": done["receipt_id"]}),
        ):
            etag = (await call(client, name, arguments))["etag"]
            result = await client.call_tool(name, {**arguments, "if_none_match": etag})
            assert result.structured_content == {"etag": etag, "not_modified": True}
            assert len(result.model_dump_json(exclude_none=True)) < 300
            assert "not_modified" not in await call(client, name, {**arguments, "if_none_match": "another"})


async def test_what_a_client_names_is_checked(folder: Path) -> None:
    step = {"yool": "agent.cast.greeter", "args": {"intent": "x"}}
    async with on_stdio(folder, "greeter.cantrip.yaml", "--lane", "a", "--lane", "b") as client:
        for name, arguments, message in (
            ("tuple.dispatch", {}, "needs recipe and intent, or payload"),
            ("tuple.dispatch", {"recipe": "greter", "intent": "x"}, "does not dispatch 'greter'; similar: greeter"),
            ("tuple.dispatch", {**HELLO, "payload": [step]}, "not both"),
            ("tuple.dispatch", {**HELLO, "lane": "c"}, "puts no tuples into lane 'c'; known: a, b"),
            ("tuple.dispatch", {**HELLO, "authority": {"user": "root"}}, "tuple.dispatch has no argument 'authority'"),
            ("tuple.dispatch", {**HELLO, "agent_term": {}}, "no argument 'agent_term'; similar: agent_terms"),
            ("tuple.dispatch", {**HELLO, "intent": " "}, "needs the argument intent, a text that is not empty"),
            ("tuple.dispatch", {**HELLO, "agent_terms": {"budget_usd": -1}}, "agent_terms.budget_usd: -1 is less than"),
            ("tuple.dispatch", {**HELLO, "agent_terms": {"deadline_iso": "soon"}}, "agent_terms"),
            ("tuple.dispatch", {"payload": [{"yool": "agent.cast.gretter"}]}, "similar: agent.cast.greeter"),
            ("tuple.dispatch", {"payload": [{**step, "args": {"intent": "x", "model": "y"}}]}, "no argument 'model'"),
            ("tuple.dispatch", {"payload": [{**step, "args": {"intent": "x", "recipe": "y"}}]}, "has another text now"),
            ("tuple.dispatch", {"payload": [{**step, "after": ["nothing"]}]}, "nothing"),
            ("tuple.dispatch", {**HELLO, "intent": "use a-secret-of-the-operator"}, "a text in it is a secret"),
            ("catalog.lookup", {"name": "agent.cast.greter"}, "did you mean 'agent.cast.greeter'"),
            ("catalog.list_by_lane", {"lane": "mcp"}, "no capability is in lane 'mcp'"),
            ("tuple.observe", {"tuple_id": "1"}, "tuple_id"),
            ("tuple.observe", {"tuple_id": "sha256:" + "0" * 64}, "is in lanes a, b; tuple.dispatch returns"),
            ("receipt.get", {"receipt_id": "sha256:" + "0" * 64}, "tuple.observe names the receipts of a tuple"),
        ):
            assert message in await error(client, name, arguments), (name, arguments)
        with pytest.raises(MCPError, match=r"no tool is named 'tuple.out'; there are catalog.lookup"):
            await client.call_tool("tuple.out", {})
        assert (await call(client, "tuple.dispatch", HELLO))["lane"] == "a"


async def test_the_operator_sets_authority_and_limits(folder: Path) -> None:
    limits = ("--max-usd", "0.5", "--max-tokens", "1000", "--max-retries", "1", "--max-waiting", "2")
    async with on_stdio(folder, "greeter.cantrip.yaml", *limits) as client:
        wanted = {"budget_usd": 9, "budget_tokens": 10, "max_retries": 50, "cpu_quota_pct": 50}
        put = await call(client, "tuple.dispatch", {**HELLO, "agent_terms": wanted, "src_ptr": ["commit://abc"]})
        assert put["agent_terms"] == {"budget_usd": 0.5, "budget_tokens": 10, "max_retries": 1, "cpu_quota_pct": 50}
        assert (await call(client, "tuple.dispatch", HELLO))["agent_terms"]["budget_usd"] == 0.5
        full = await error(client, "tuple.dispatch", {**HELLO, "map_pos": {"sample": 1}})
        assert "lane 'mcp' is full: 2 tuples wait in it. Nothing was put into it" in full
        # Known work needs no place.
        assert not (await call(client, "tuple.dispatch", HELLO))["new"]
        is_a_tuple = await error(client, "receipt.get", {"receipt_id": put["tuple_id"]})
        assert "is the id of a tuple" in is_a_tuple
    shown = processes.run(
        [*CANTRIP, "tuple", "rd", put["tuple_id"]], cwd=folder, capture_output=True, text=True, env=environment(folder)
    )
    work = json.loads(shown.stdout)["tuple"]
    assert work["authority"].keys() == {"user", "agent", "recipes"}
    assert (work["authority"]["agent"], work["authority"]["recipes"]) == ("cantrip-mcp", ["greeter"])
    assert work["src_ptr"] == ["commit://abc"]
    assert work["payload"][0]["args"]["recipe"].startswith("sha256:")


async def test_all_tuples_can_share_a_budget(folder: Path) -> None:
    words = ("greeter.cantrip.yaml", "--work", "--budget-usd", "0.0015")
    for number in (0, 1):
        # What was spent counts in the next start.
        async with on_stdio(folder, *words) as client:
            done = await call(client, "tuple.dispatch", {**HELLO, "map_pos": {"sample": number}, "wait_s": 30})
            assert done["state"] == "done"
    async with on_stdio(folder, *words) as client:
        refused = await error(client, "tuple.dispatch", {**HELLO, "map_pos": {"sample": 2}})
        assert "the budget that all tuples of this server share is spent. Nothing was put" in refused
        assert not (await call(client, "tuple.dispatch", {**HELLO, "map_pos": {"sample": 0}}))["new"]
    async with on_stdio(folder, *words[:2]) as client:
        done = await call(client, "tuple.dispatch", {**HELLO, "map_pos": {"sample": 2}, "wait_s": 30})
        assert done["state"] == "done"


async def test_without_recipes_the_workers_of_the_lane_decide(folder: Path) -> None:
    (folder / "other.cantrip.yaml").write_text(RECIPE.replace("name: greeter", "name: other"))
    async with (
        on_stdio(folder, "--lane", "build") as client,
        on_stdio(folder, "greeter.cantrip.yaml", "other.cantrip.yaml", "--lane", "build", "--work") as worker,
    ):
        assert "started without recipes; give payload" in await error(client, "tuple.dispatch", HELLO)
        listed = await call(worker, "catalog.list_by_lane", {"lane": "build"})
        digests = {each["name"]: each["version"] for each in listed["capabilities"]}
        payload = [
            {"yool": name, "args": {"intent": "Say hello.", "recipe": digests.get(name, "")}}
            for name in ("agent.cast.greeter", "agent.cast.other", "agent.lint.ruff")
        ]
        # No worker has all of its steps, so it stays for one that has.
        stays = await call(client, "tuple.dispatch", {"payload": payload})
        done = await call(client, "tuple.dispatch", {"payload": payload[:2], "wait_s": 30})
        assert [(each["step"], each["exit"]) for each in done["receipts"]] == [(0, 0), (1, 0), (None, 0)]
        still = await call(client, "tuple.observe", {"tuple_id": stays["tuple_id"], "timeout_s": 0})
        assert still["state"] == "waiting"
        assert done["cost"]["usd"] == pytest.approx(0.002)
        step = await call(client, "receipt.get", {"receipt_id": done["receipts"][1]["receipt_id"]})
        assert step["receipt"]["yool"] == "agent.cast.other"


AGENTS = """\
### lint-agent
- yool_id: agent.lint.ruff
- lane: build
- Role: enforces style

### greeter
- yool_id: agent.cast.greeter
- agent_terms:
    budget_usd: 0.25
    budget_tokens: 5000
"""


async def test_the_catalog_of_the_project_is_looked_up(folder: Path) -> None:
    (folder / "AGENTS.md").write_text(AGENTS)
    (folder / ".cantrip").mkdir()
    (folder / "greeter.cantrip.yaml").rename(folder / ".cantrip" / "greeter.cantrip.yaml")
    build = [*CANTRIP, "catalog", "build"]
    processes.run(build, cwd=folder, stdout=subprocess.DEVNULL, env=environment(folder), check=True)
    async with on_stdio(folder, ".cantrip/greeter.cantrip.yaml", "--max-usd", "0.1") as client:
        found = await call(client, "catalog.lookup", {"name": "agent.lint.ruff"})
        capability = found["capability"]
        assert (capability["kind"], capability["lane"], capability["dispatchable"]) == ("agent", "build", False)
        listed = await call(client, "catalog.list_by_lane", {"lane": "build"})
        assert [each["name"] for each in listed["capabilities"]] == ["agent.lint.ruff"]
        assert listed["catalog_id"] == found["catalog_id"]
        own = (await call(client, "catalog.lookup", {"name": "agent.cast.greeter"}))["capability"]
        assert (own["dispatchable"], own["dispatch_lanes"], own["lane"]) == (True, ["mcp"], "greeter")
        assert "intent" in own["input_schema"]["properties"]
        # The catalog's terms apply where the client and the operator say nothing else.
        put = await call(client, "tuple.dispatch", {**HELLO, "agent_terms": {"budget_tokens": 100}})
        assert put["agent_terms"] == {"budget_usd": 0.1, "budget_tokens": 100, "max_retries": 2}
        # A new catalog is seen without a new start.
        (folder / "AGENTS.md").write_text(AGENTS.replace("agent.lint.ruff", "agent.lint.eslint"))
        processes.run(build, cwd=folder, stdout=subprocess.DEVNULL, env=environment(folder), check=True)
        listed = await call(client, "catalog.list_by_lane", {"lane": "build", "if_none_match": listed["etag"]})
        assert [each["name"] for each in listed["capabilities"]] == ["agent.lint.eslint"]
        message = await error(client, "catalog.lookup", {"name": "agent.lint.ruff"})
        assert "no capability of the catalog is named 'agent.lint.ruff'" in message
        # A damaged one is not.
        (folder / ".catalog" / "capabilities.json").write_text("{}")
        assert (await call(client, "catalog.list_by_lane", {"lane": "build"}))["etag"] == listed["etag"]


async def test_tuples_of_other_lanes_are_not_seen(folder: Path) -> None:
    async with (
        on_stdio(folder, "greeter.cantrip.yaml", "--lane", "mine", "--work") as mine,
        on_stdio(folder, "greeter.cantrip.yaml", "--lane", "theirs") as theirs,
    ):
        done = await call(mine, "tuple.dispatch", {**HELLO, "wait_s": 30})
        for name, arguments in (
            ("tuple.observe", {"tuple_id": done["tuple_id"]}),
            ("receipt.get", {"receipt_id": done["receipt_id"]}),
        ):
            assert "is in lane theirs" in await error(theirs, name, arguments)


async def test_a_damaged_receipt_is_refused(folder: Path) -> None:
    async with on_stdio(folder, "greeter.cantrip.yaml", "--work") as client:
        done = await call(client, "tuple.dispatch", {**HELLO, "wait_s": 30})
        with sqlite3.connect(folder / "state" / "tuples.db") as base:
            base.execute("DROP TRIGGER receipts_changed")
            base.execute("UPDATE receipts SET body = replace(body, 'Hello.', 'Evil..')")
        assert "is damaged" in await error(client, "receipt.get", {"receipt_id": done["receipt_id"]})


async def test_what_others_stored_is_answered_without_secrets(folder: Path) -> None:
    """This process, which stores the receipt, does not know the secret. The server does, and the answer has a mask."""
    secret = environment(folder)["MY_API_KEY"]
    async with on_stdio(folder, "greeter.cantrip.yaml") as client:
        done = await call(client, "tuple.dispatch", HELLO)
        with closing(open_store(folder / "state" / "tuples.db")) as store:
            (claim,) = store.claim(Pattern({"lane": "mcp"}), "w", lease_s=60)
            receipt = make_receipt(
                yool="a.b", tuple_id=claim.work.id, started_at=now_iso(), ended_at=now_iso(), exit=0, cost={},
                result={"said": f"Hello, {secret}."},
            )  # fmt: skip
            assert secret in str(receipt)
            store.acknowledge(End(claim=claim, receipt=receipt))
        answer = await call(client, "receipt.get", {"receipt_id": receipt["id"]})
        assert "Hello, [redacted]." in str(answer)
        assert secret not in str(answer)
        assert secret not in str(await call(client, "tuple.observe", {"tuple_id": done["tuple_id"]}))
        assert secret not in await error(client, "tuple.observe", {"tuple_id": secret})


async def test_observe_streams_events_over_http_while_the_tuple_runs(
    folder: Path, serve: Callable[..., HttpProcess]
) -> None:
    """As a client without any SDK reads it: one request, whose answer is a stream of server-sent events."""
    server = serve("--lane", "build")
    steps = [{"yool": "a.lint"}, {"yool": "a.test"}]
    async with on_http(server) as client:
        put = await call(client, "tuple.dispatch", {"lane": "build", "payload": steps, "flags": {"no_cache": True}})
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    headers["accept"] = "application/json, text/event-stream"

    def post(body: dict[str, Any]) -> http.client.HTTPResponse:
        connection.request("POST", parts.path, json.dumps({"jsonrpc": "2.0", **body}), headers)
        return connection.getresponse()

    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "curl", "version": "1"}}
    begun = post({"id": 1, "method": "initialize", "params": about})
    headers["mcp-session-id"] = begun.headers["mcp-session-id"]
    begun.read()
    post({"method": "notifications/initialized"}).read()
    asked = {"name": "tuple.observe", "arguments": {"tuple_id": put["tuple_id"], "timeout_s": 60}}
    answer = post({"id": 2, "method": "tools/call", "params": {**asked, "_meta": {"progressToken": "p"}}})
    assert answer.headers["content-type"].startswith("text/event-stream")

    def read() -> dict[str, Any]:
        while not (line := answer.readline()).startswith(b"data: {"):
            assert line
        message: dict[str, Any] = json.loads(line[6:])
        return message

    told = [read()]
    assert told[0]["params"]["message"] == "waits in lane build for a worker"
    go_on = anyio.Event()

    async def lint(_: StepCall) -> StepResult:
        return StepResult()

    async def test(_: StepCall) -> StepResult:
        await go_on.wait()
        return StepResult()

    with closing(open_store(folder / "state" / "tuples.db")) as store:
        worker = Worker(store, Pattern({"lane": "build"}), {"a.lint": lint, "a.test": test}, name="w")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            # The first step is told while the second one runs.
            while told[-1]["params"]["message"] != "step 1 (a.lint) done":
                told.append(await anyio.to_thread.run_sync(read))
            go_on.set()
            while "result" not in told[-1]:
                told.append(await anyio.to_thread.run_sync(read))
            worker.drain()
    connection.close()
    assert [each["params"]["progressToken"] for each in told[:-1]] == ["p"] * (len(told) - 1)
    assert told[-2]["params"]["message"] == "done"
    found = told[-1]["result"]["structuredContent"]
    assert [each["event"] for each in found["events"]] == ["claimed", "step", "step", "done"]


async def test_observe_waits_for_a_change_and_can_be_cancelled(folder: Path, connect: Connect) -> None:
    async with connect("greeter.cantrip.yaml", "--lane", "slow") as client:
        put = await call(client, "tuple.dispatch", HELLO)
        observe = {"tuple_id": put["tuple_id"], "until": "change", "timeout_s": 60, "if_none_match": put["etag"]}
        now = await call(client, "tuple.observe", {**observe, "timeout_s": 0})
        assert now == {"etag": put["etag"], "not_modified": True}
        waits = anyio.Event()

        async def progress(number: float, total: float | None, message: str | None) -> None:
            assert message == "waits in lane slow for a worker"
            waits.set()

        async with anyio.create_task_group() as tasks:
            # A cancelled call leaves the tuple and the server as they are.
            tasks.start_soon(lambda: call(client, "tuple.observe", observe, progress_callback=progress))
            await waits.wait()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            changed: dict[str, Any] = {}

            async def wait() -> None:
                changed.update(await call(client, "tuple.observe", observe))

            tasks.start_soon(wait)
            async with on_stdio(folder, "greeter.cantrip.yaml", "--lane", "slow", "--work"):
                while not changed:
                    await anyio.sleep(0.05)
        assert changed["state"] in ("claimed", "done")
        assert changed["etag"] != put["etag"]


@pytest.fixture(scope="module")
def postgres() -> Any:
    from tests.support import postgres_server

    try:
        with postgres_server.running() as server:
            yield server
    except postgres_server.NoServer as why:
        pytest.skip(str(why))


async def test_a_worker_elsewhere_does_the_work_in_postgresql(folder: Path, postgres: Any) -> None:
    space = ("--lane", "greetings", "--space", postgres.new_schema())
    worker = processes.Popen(
        [*CANTRIP, "worker", "greeter.cantrip.yaml", *space], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(folder),
    )  # fmt: skip
    try:
        async with on_stdio(folder, "greeter.cantrip.yaml", *space) as client:
            done = await call(client, "tuple.dispatch", {**HELLO, "wait_s": 60})
            receipt = (await call(client, "receipt.get", {"receipt_id": done["receipt_id"]}))["receipt"]
            assert receipt["result"]["result"] == "Hello."
    finally:
        worker.terminate()
        worker.wait()


def test_http_needs_the_token_and_a_name_of_the_server(serve: Callable[..., HttpProcess]) -> None:
    server = serve("greeter.cantrip.yaml", "--server-name", "agents.example", "--allow-origin", "https://page.example")
    assert server.token_file.stat().st_mode & 0o777 == 0o600
    assert len(server.token) >= 40
    assert server.url.startswith("http://127.0.0.1:")
    bearer = f"Bearer {server.token}"
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": server.token}, {"authorization": bearer[:-1]}):
        status, answered, body = server.post(**headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer TOKEN" in body
        assert server.token not in body
    assert server.post(authorization=bearer, host="evil.example")[0] == 421
    assert server.post(authorization=bearer, origin="https://evil.example")[0] == 403
    for headers in ({}, {"host": "agents.example"}, {"origin": "https://page.example"}):
        # It is let through to the protocol, which wants a session first.
        assert server.post(authorization=bearer, **headers)[0] == 400
    status, stderr = server.end()
    assert status == 0
    assert server.token not in stderr


def test_the_token_stays_the_same_and_may_come_from_a_file(folder: Path, serve: Callable[..., HttpProcess]) -> None:
    token = folder / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o644)
    server = serve("greeter.cantrip.yaml", "--token-file", str(token))
    assert server.post(authorization="Bearer 0123456789abcdef0123")[0] == 400
    assert f"other users can read the token; run chmod 600 {token}" in server.end()[1]
    first, second = serve("greeter.cantrip.yaml"), serve("greeter.cantrip.yaml")
    assert first.token == second.token != "0123456789abcdef0123"


def test_connections_that_do_not_show_the_token_shut_nobody_out(serve: Callable[..., HttpProcess]) -> None:
    server = serve("greeter.cantrip.yaml")
    parts = urlsplit(server.url)
    bearer = f"Bearer {server.token}"
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    beginnings = (
        b"",
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
        b"POST /mcp HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    )
    with ExitStack() as held:
        halves = []
        # While the server is stopped they queue up, so that it meets many at once.
        server.process.send_signal(signal.SIGSTOP)
        for _ in range(400):
            half = held.enter_context(socket.socket())
            half.setblocking(False)
            half.connect_ex((parts.hostname or "", parts.port or 0))
            halves.append(half)
        server.process.send_signal(signal.SIGCONT)
        for number, half in enumerate(halves):
            half.settimeout(60)
            with suppress(ConnectionError):
                half.sendall(beginnings[number % 3])
        assert server.post(authorization=bearer)[0] == 400
        # None of them stays for ever.
        for half in halves:
            with suppress(ConnectionError):
                while half.recv(1000):
                    pass
        assert server.post(authorization=bearer)[0] == 400
    # They never used up the descriptors. A traceback for each would fill the pipe of a client that does not read stderr.
    assert "system resource" not in server.end()[1]


@pytest.mark.parametrize("twice", [False, True])
async def test_sigterm_ends_http_after_what_runs(serve: Callable[..., HttpProcess], twice: bool) -> None:
    server = serve("greeter.cantrip.yaml", "--work")
    async with on_http(server) as client:
        put = await call(client, "tuple.dispatch", {**HELLO, "intent": "slow" if twice else "Say hello."})
        observed = asyncio.create_task(client.call_tool("tuple.observe", {"tuple_id": put["tuple_id"]}))
        if twice:
            while (await call(client, "tuple.observe", {"tuple_id": put["tuple_id"], "timeout_s": 0}))[
                "state"
            ] == "waiting":
                await anyio.sleep(0.05)
        server.process.terminate()
        # A call that waits is answered with the present state.
        state = (await observed).structured_content
        assert state is not None
        assert state["state"] == "claimed" if twice else state["state"] in ("waiting", "claimed", "done")
        if twice:
            await asyncio.to_thread(lambda: server.process.stderr.readline())  # type: ignore[union-attr]
            server.process.terminate()
    _, stderr = await asyncio.to_thread(server.process.communicate, timeout=60)
    assert server.process.returncode == 0, stderr


async def test_the_end_of_a_server_on_stdio_gives_back_what_runs(folder: Path) -> None:
    for how in ("end of stdin", "SIGTERM"):
        process = processes.Popen(
            command("greeter.cantrip.yaml", "--work"), cwd=folder, text=True, env=environment(folder),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (
            {
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"},
                },
            },
            {"method": "notifications/initialized"},
            {
                "id": 2,
                "method": "tools/call",
                "params": {"name": "tuple.dispatch", "arguments": {**HELLO, "intent": "slow"}},
            },
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            if "id" in message:
                answer = json.loads(process.stdout.readline())
        identity = answer["result"]["structuredContent"]["tuple_id"]
        while show(folder, identity)["state"] != "claimed":
            await anyio.sleep(0.05)
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(60) == 0, how
        assert (show(folder, identity)["state"], show(folder, identity)["attempts"]) == ("waiting", 0)
        process.stdin.close()
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


def show(folder: Path, identity: str) -> dict[str, Any]:
    shown = processes.run(
        [*CANTRIP, "tuple", "rd", identity], cwd=folder, capture_output=True, text=True, env=environment(folder)
    )
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


async def test_names_without_dots_are_for_clients_that_refuse_dots(folder: Path) -> None:
    async with on_stdio(folder, "greeter.cantrip.yaml", "--plain-names") as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [name.replace(".", "_") for name in TOOLS]
        assert not any(name in tool.model_dump_json() for tool in tools for name in TOOLS)
        put = await call(client, "tuple_dispatch", HELLO)
        assert put["hint"] == "tuple_observe with tuple_id waits for the end."
        assert "tuple_observe" in await error(client, "receipt_get", {"receipt_id": put["tuple_id"]})


INSPECTOR = shutil.which("mcp-inspector")


@pytest.mark.skipif(
    INSPECTOR is None, reason="the MCP inspector is not installed (npm install -g @modelcontextprotocol/inspector)"
)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_official_inspector_dispatches_a_cast(
    folder: Path, transport: str, serve: Callable[..., HttpProcess]
) -> None:
    assert INSPECTOR is not None
    # The inspector hides its environment from the server.
    words = ("greeter.cantrip.yaml", "--work", "--state-dir", str(folder / "state"))
    own = {**environment(folder), "HOME": str(folder)}
    if transport == "http":
        server = serve(*words)
        target = [server.url, "--transport", "http", "--header", f"Authorization: Bearer {server.token}"]
    else:
        target = command(*words)

    def tool(name: str, **arguments: str) -> dict[str, Any]:
        given = [f"{key}={value}" for key, value in arguments.items()]
        asked = ["--method", "tools/call", "--tool-name", name, "--tool-arg", *given]
        done = subprocess.run(
            [INSPECTOR, "--cli", *target, *asked], cwd=folder, capture_output=True, text=True, env=own
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["structuredContent"]
        return found

    done = tool("tuple.dispatch", recipe="greeter", intent="Say hello.", wait_s="30")
    receipt = tool("receipt.get", receipt_id=done["receipt_id"])["receipt"]
    assert receipt["result"]["result"] == "Hello."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give the RECIPES that clients may cast, or --lane without --work"),
        (("--lane", "x", "--work"), "give the RECIPES"),
        (("greeter.cantrip.yaml", "--json"), "--json needs --http"),
        (("greeter.cantrip.yaml", "--token-file", "t"), "--token-file needs --http"),
        (("greeter.cantrip.yaml", "--port", "9000"), "--port needs --http"),
        (("greeter.cantrip.yaml", "--host", "::1"), "--host needs --http"),
        (("greeter.cantrip.yaml", "--concurrency", "2"), "--concurrency needs --work"),
        (("greeter.cantrip.yaml", "--loom", "x.loom.jsonl"), "--loom needs --work"),
        (("greeter.cantrip.yaml", "--lane", "a b"), "lane"),
        (("greeter.cantrip.yaml", "--http", "--host", "0.0.0.0"), "--host 0.0.0.0 needs --server-name"),
        (("greeter.cantrip.yaml", "--http", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1 port 8732"),
        (("greeter.cantrip.yaml", "--http", "--token-file", "nothing"), "nothing: cannot read the token: No such file"),
        (
            ("greeter.cantrip.yaml", "--http", "--token-file", "greeter.cantrip.yaml"),
            "one word of at least 16 characters",
        ),
        (("nope",), "no recipe is named 'nope'"),
    ],
)
def test_a_wrong_command_line_is_named(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = processes.run(
        command(*words), cwd=folder, input="", capture_output=True, text=True, timeout=60, env=environment(folder)
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    if "--json" in words:
        assert json.loads(done.stdout) == {"error": message, "exit_status": 2}
    else:
        assert done.stdout == ""


def test_no_heavy_import_is_made_before_the_command_runs() -> None:
    script = "import sys, cantrip_acp.cli.commands.mcp; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & {"mcp", "mcp_types", "uvicorn", "starlette", "pydantic"} == set()


async def test_a_large_result_is_beside_its_receipt_until_it_is_purged(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(RECIPE.replace("Hello.", "Hello. " * 5000))
    async with on_stdio(folder, "greeter.cantrip.yaml", "--work", "--space", "space.db") as client:
        put = await call(client, "tuple.dispatch", HELLO)
        ended = await call(client, "tuple.observe", {"tuple_id": put["tuple_id"]})
        answer = await call(client, "receipt.get", {"receipt_id": ended["receipt_id"]})
        assert answer["result"]["result"].startswith("Hello. Hello. ")
        assert set(answer["receipt"]["result"]) == set(answer["result"]) - {"result"}
        with closing(open_store(folder / "space.db")) as store:
            assert collect(store, Tiers(max_mb=0), dry_run=False).bodies == 1
        later = await call(client, "receipt.get", {"receipt_id": ended["receipt_id"], "if_none_match": answer["etag"]})
        assert later["receipt"] == answer["receipt"]
        assert "result" not in later
