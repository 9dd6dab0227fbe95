"""The wire by itself: a `Connection` on pipes, with handlers of the test's own."""

import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from cantrip_acp.acp.wire.byte_streams import DescriptorReader, DescriptorWriter
from cantrip_acp.acp.wire.connection import Connection, Disconnected, Method, Request, RpcError
from cantrip_acp.acp.wire.send_queue import HIGH_WATER

pytestmark = pytest.mark.anyio


class Params(msgspec.Struct):
    text: str = ""
    count: int = 0


class Peer:
    """The other side: raw bytes in both directions."""

    def __init__(self, to_us: int, from_us: int) -> None:
        self._out = to_us
        self._reader = DescriptorReader(from_us)
        self._buffer = b""

    def raw(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._out, view) :]

    def send(self, **message: Any) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def next(self) -> Any:
        with anyio.fail_after(60):
            while b"\n" not in self._buffer:
                self._buffer += await self._reader.receive()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def silent(self) -> None:
        with anyio.move_on_after(0.1):
            raise AssertionError(f"unexpected: {await self.next()}")

    def hang_up(self) -> None:
        os.close(self._out)


@asynccontextmanager
async def connected(methods: dict[str, Method] | None = None, **options: Any) -> AsyncIterator[tuple[Connection, Peer]]:
    to_us_read, to_us_write = os.pipe()
    from_us_read, from_us_write = os.pipe()
    run = options.pop("run", {})
    connection = Connection(DescriptorReader(to_us_read), DescriptorWriter(from_us_write), methods or {}, **options)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: connection.run(**run))
            yield connection, Peer(to_us_write, from_us_read)
            connection.stop()
    finally:
        for fd in (to_us_read, to_us_write, from_us_read, from_us_write):
            try:
                os.close(fd)
            except OSError:
                pass


def echo(params: Params, request: Request) -> Any:
    return {"text": params.text}


async def slowly(params: Params, request: Request) -> Any:
    await anyio.sleep(10)


ECHO = {"echo": Method(Params, echo)}


@pytest.mark.parametrize("id", [0, 1, -5, 12345678901234567890123, "", "a", "é☃\u0000", "1", None])
async def test_ids_are_echoed_exactly(id: Any) -> None:
    async with connected(ECHO) as (_, peer):
        peer.send(id=id, method="echo", params={"text": "x"})
        reply = await peer.next()
        assert reply == {"jsonrpc": "2.0", "id": id, "result": {"text": "x"}}
        assert type(reply["id"]) is type(id)


BAD_LINES = [
    (b"nonsense", -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method"', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": NaN}}', -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "echo"} {}', -32700),
    (b"\xff\xfe\x00", -32700),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "\xff"}}', -32700),
    (b"[" * 200_000 + b"]" * 200_000, -32700),
    (b'{"a":' * 200_000, -32700),
    (b"1", -32600),
    (b'"text"', -32600),
    (b"null", -32600),
    (b"[]", -32600),
    (b"{}", -32600),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "echo"}, {"jsonrpc": "2.0", "id": 2, "method": "echo"}]', -32600),
    (b'{"jsonrpc": "2.0", "method": 1, "params": "bar"}', -32600),
    (b'{"jsonrpc": "2.0", "id": {}, "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "id": [1], "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "id": true, "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1.5, "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1e400, "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "id": -1e400, "result": {}}', -32600),
    (b'{"jsonrpc": "2.0", "id": 1%s, "method": "echo"}' % (b"0" * 5000), -32600),
    (b'{"jsonrpc": 1e400, "method": "echo"}', -32600),
    (b'{"jsonrpc": "2.0", "method": 1e400}', -32600),
]


@pytest.mark.parametrize(("line", "code"), BAD_LINES, ids=lambda value: repr(value)[:50])
async def test_a_bad_line_gets_an_error_with_a_null_id_and_the_connection_goes_on(line: bytes, code: int) -> None:
    async with connected(ECHO) as (_, peer):
        threading.Thread(target=peer.raw, args=(line + b"\n",)).start()
        reply = await peer.next()
        assert reply["id"] is None
        assert reply["error"]["code"] == code
        peer.send(id=2, method="echo", params={"text": "still here"})
        assert (await peer.next())["result"] == {"text": "still here"}


@pytest.mark.parametrize(
    "members",
    [
        {"jsonrpc": "1.0", "method": "echo"},
        {"jsonrpc": None, "method": "echo"},
        {"jsonrpc": 2.0, "method": "echo"},
        {"method": 7},
        {"method": None},
        {"params": {}},
        {"method": "echo", "params": "text"},
        {"method": "echo", "params": 3},
    ],
)
async def test_a_bad_envelope_with_a_readable_id_gets_that_id(members: dict[str, Any]) -> None:
    async with connected(ECHO) as (_, peer):
        peer.raw(json.dumps({"jsonrpc": "2.0", "id": "mine", **members}).encode() + b"\n")
        reply = await peer.next()
        assert (reply["id"], reply["error"]["code"]) == ("mine", -32600)


async def test_a_number_out_of_range_in_any_member_ends_nothing() -> None:
    async with connected(ECHO) as (_, peer):
        for number in (b"1e400", b"-1e999", b"9" * 5000):
            for member in (b"jsonrpc", b"id", b"method", b"params", b"result", b"error"):
                peer.raw(b'{"jsonrpc":"2.0","id":1,"method":"echo","%s":%s}\n' % (member, number))
            peer.raw(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":%s}}\n' % number)
            peer.raw(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":%s}}\n' % number)
            peer.raw(b'{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"x"}}\n' % (number, number))
        peer.send(id="last", method="echo", params={"text": "still here"})
        while (reply := await peer.next())["id"] != "last":
            pass
        assert reply["result"] == {"text": "still here"}


async def test_without_jsonrpc_it_is_no_message() -> None:
    async with connected(ECHO) as (_, peer):
        peer.raw(b'{"id": 1, "method": "echo"}\n')
        assert (await peer.next())["error"]["code"] == -32600


async def test_half_a_surrogate_pair_is_read_as_a_replacement_character() -> None:
    async with connected(ECHO) as (_, peer):
        peer.raw(rb'{"jsonrpc":"2.0","id":"\ud83d","method":"echo","params":{"text":"cut \ud83d"}}' + b"\n")
        assert (await peer.next())["result"]["text"].startswith("cut ")


async def test_blank_lines_are_nothing() -> None:
    async with connected(ECHO) as (_, peer):
        peer.raw(b"\n  \r\n\t\n")
        await peer.silent()


async def test_params_may_be_absent_or_null() -> None:
    async with connected(ECHO) as (_, peer):
        peer.send(id=1, method="echo")
        assert (await peer.next())["result"] == {"text": ""}
        peer.send(id=2, method="echo", params=None)
        assert (await peer.next())["result"] == {"text": ""}


@pytest.mark.parametrize(
    ("params", "field"), [({"text": 1}, "text"), ({"count": "x"}, "count"), ({"text": None}, "text"), ([1], None)]
)
async def test_wrong_params_name_the_field(params: Any, field: str | None) -> None:
    async with connected(ECHO) as (_, peer):
        peer.send(id=1, method="echo", params=params)
        error = (await peer.next())["error"]
        assert error["code"] == -32602
        assert error["data"].get("field") == field
        assert field is None or field in error["message"]


async def test_unknown_methods() -> None:
    async with connected({**ECHO, "heard": Method(Params, lambda p, r: None, notification=True)}) as (_, peer):
        for method in ("nothing", "_custom/method", "$/unknown", "heard"):
            peer.send(id=1, method=method, params={})
            assert (await peer.next())["error"]["code"] == -32601


async def test_a_notification_is_never_answered() -> None:
    heard: list[str] = []
    methods = {
        **ECHO,
        "heard": Method(Params, lambda params, request: heard.append(params.text), notification=True),
        "broken": Method(Params, lambda params, request: 1 / 0, notification=True),
    }
    async with connected(methods) as (_, peer):
        peer.send(method="heard", params={"text": "yes"})
        peer.send(method="heard", params={"text": 1})
        peer.send(method="heard", params="wrong")
        peer.send(method="broken", params={})
        peer.send(method="echo", params={"text": "a request without an id"})
        peer.send(method="_custom/unknown")
        peer.send(method="$/unknown")
        peer.send(method="$/cancel_request", params={"requestId": 99})
        peer.send(method="$/cancel_request", params={})
        peer.send(method="$/cancel_request", params={"requestId": {}})
        await peer.silent()
        assert heard == ["yes"]


@pytest.mark.parametrize(
    ("said", "data", "message", "told"),
    [
        ("One line.", None, "One line.", None),
        ("One line.\n", {"reason": "x"}, "One line.", {"reason": "x"}),
        ("The file:\n  a: wrong\n\n  b: wrong", None, "The file:; a: wrong; b: wrong", "details"),
        ("The file:\n  a: wrong", {"reason": "x"}, "The file:; a: wrong", "details"),
        ("Failed: a\nb", {"details": "a\nb"}, "Failed: a; b", {"details": "a\nb"}),
        ("a\nb", "a word of the program's", "a; b", "a word of the program's"),
        ("\n\n", None, "Error", None),
    ],
)
async def test_an_error_is_one_line_and_its_data_has_the_lines(said: str, data: Any, message: str, told: Any) -> None:
    def fail(params: Params, request: Request) -> Any:
        raise RpcError(-32603, said, data)

    async with connected({"fail": Method(Params, fail)}) as (_, peer):
        peer.send(id=1, method="fail")
        error = (await peer.next())["error"]
    expected = {**(data or {}), "details": said} if told == "details" else told
    assert (error["message"], error.get("data")) == (message, expected)


async def test_a_fault_of_ours_tells_nothing_but_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    def fail(params: Params, request: Request) -> Any:
        raise ValueError("sk-secretsecretsecretsecret")

    async def fail_later(params: Params, request: Request) -> Any:
        await anyio.sleep(0)
        raise ValueError("sk-secretsecretsecretsecret")

    async with connected({"now": Method(Params, fail), "later": Method(Params, fail_later), **ECHO}) as (_, peer):
        for method in ("now", "later"):
            peer.send(id=1, method=method)
            reply = await peer.next()
            assert reply["error"]["code"] == -32603
            assert "secret" not in json.dumps(reply)
        peer.send(id=2, method="echo")
        assert "result" in await peer.next()
    assert "ValueError" in caplog.text


async def test_a_cancelled_request_is_answered_so() -> None:
    async with connected({"slowly": Method(Params, slowly)}) as (_, peer):
        for id in (1, "1"):
            peer.send(id=id, method="slowly")
        peer.send(method="$/cancel_request", params={"requestId": "1"})
        reply = await peer.next()
        assert (reply["id"], reply["error"]["code"]) == ("1", -32800)
        await peer.silent()
        peer.send(method="$/cancel_request", params={"requestId": 1})
        assert (await peer.next())["error"]["code"] == -32800


async def test_a_handler_that_ends_gracefully_is_cancelled_all_the_same() -> None:
    async def work(params: Params, request: Request) -> Any:
        told = anyio.Event()
        request.on_cancel = told.set
        await told.wait()
        return {"partial": True}

    async with connected({"work": Method(Params, work)}) as (_, peer):
        peer.send(id=1, method="work")
        await anyio.sleep(0.05)
        peer.send(method="$/cancel_request", params={"requestId": 1})
        assert (await peer.next())["error"]["code"] == -32800


async def test_many_requests_at_once_and_order_of_what_is_sent() -> None:
    async def work(params: Params, request: Request) -> Any:
        for n in range(3):
            await connection.notify("note", {"of": params.count, "n": n})
            await anyio.sleep(0.001 * (params.count % 3))
        return params.count

    async with connected({"work": Method(Params, work)}) as (connection, peer):
        for count in range(50):
            peer.send(id=count, method="work", params={"count": count})
        notes: dict[int, list[int]] = {count: [] for count in range(50)}
        for _ in range(200):
            message = await peer.next()
            if message.get("method") == "note":
                notes[message["params"]["of"]].append(message["params"]["n"])
            else:
                assert notes[message["id"]] == [0, 1, 2]
                assert message["result"] == message["id"]


async def test_what_follows_a_reply_follows_it() -> None:
    def work(params: Params, request: Request) -> Any:
        request.after.append(lambda: connection.notify_now("after", {}))
        return {}

    async with connected({"work": Method(Params, work)}) as (connection, peer):
        peer.send(id=1, method="work")
        assert (await peer.next())["id"] == 1
        assert (await peer.next())["method"] == "after"


async def test_asking_the_other_side() -> None:
    async with connected() as (connection, peer):
        answers: list[Any] = []

        async def ask(shape: Any = Any) -> None:
            try:
                answers.append(await connection.request("question", {"q": 1}, shape))
            except (RpcError, Disconnected) as problem:
                answers.append(problem)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            question = await peer.next()
            assert (question["method"], question["params"]) == ("question", {"q": 1})
            peer.send(id=question["id"], result={"a": 2})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            peer.send(id=(await peer.next())["id"], error={"code": -32601, "message": "no such thing", "data": [1]})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, Params)
            peer.send(id=(await peer.next())["id"], result={"text": 5})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            peer.send(id=(await peer.next())["id"], result=None)
        assert answers[0] == {"a": 2}
        assert (answers[1].code, answers[1].message, answers[1].data) == (-32601, "no such thing", [1])
        assert isinstance(answers[2], RpcError)
        assert answers[3] is None


async def test_answers_to_nothing_are_ignored() -> None:
    async with connected(ECHO) as (_, peer):
        peer.send(id=77, result={})
        peer.send(id="x", result={})
        peer.send(id=None, error={"code": -32700, "message": "you said nonsense"})
        peer.send(id=78, error="wrong shape")
        await peer.silent()
        peer.send(id=1, method="echo")
        assert "result" in await peer.next()


async def test_a_question_that_is_no_longer_waited_for_is_cancelled() -> None:
    async with connected() as (connection, peer):
        with anyio.move_on_after(0.05):
            await connection.request("question", {})
        question = await peer.next()
        cancel = await peer.next()
        assert (cancel["method"], cancel["params"]) == ("$/cancel_request", {"requestId": question["id"]})
        peer.send(id=question["id"], result="late")
        await peer.silent()


async def test_questions_fail_when_the_other_side_hangs_up() -> None:
    async with connected() as (connection, peer):
        failed: list[Exception] = []

        async def ask() -> None:
            try:
                await connection.request("question", {})
            except Disconnected as problem:
                failed.append(problem)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await peer.next()
                peer.hang_up()
        assert failed
        with pytest.raises(Disconnected):
            await connection.request("question", {})


async def test_a_slow_reader_slows_the_sender_and_nothing_else() -> None:
    async with connected(ECHO) as (connection, peer):
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await connection.notify("note", {"text": "x" * 1000})
                sent += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            seen = -1
            with anyio.fail_after(60):
                while sent != seen or not sent:
                    seen = sent
                    await anyio.sleep(0.2)
            # A pipe holds 64 KiB, and so does the outbox before senders wait.
            assert sent * 1000 < 65536 + 2 * HIGH_WATER
            # Requests are taken and answered in order all the same.
            peer.send(id=1, method="echo", params={"text": "hello"})
            while "id" not in (message := await peer.next()):
                pass
            assert message["result"] == {"text": "hello"}
            tasks.cancel_scope.cancel()


async def test_a_reader_that_has_gone_ends_the_connection_and_frees_senders() -> None:
    to_us_read, to_us_write = os.pipe()
    from_us_read, from_us_write = os.pipe()
    connection = Connection(DescriptorReader(to_us_read), DescriptorWriter(from_us_write), {})
    hung_up: list[bool] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def flood() -> None:
                while not connection.closed:
                    await connection.notify("note", {"text": "x" * 10_000})
                    await anyio.sleep(0)

            tasks.start_soon(lambda: connection.run(lambda: hung_up.append(True) or 0.1))
            tasks.start_soon(flood)
            await anyio.sleep(0.1)
            os.close(from_us_read)
    assert hung_up == [True]
    for fd in (to_us_read, to_us_write, from_us_write):
        os.close(fd)


async def test_at_the_end_what_runs_is_answered() -> None:
    async with connected({"slowly": Method(Params, slowly)}, run={"on_disconnect": lambda: 0.1}) as (connection, peer):
        peer.send(id=1, method="slowly")
        await anyio.sleep(0.05)
        connection.stop()
        assert (await peer.next())["error"]["code"] == -32800


async def test_what_cannot_be_encoded_as_it_stands_is_sent_as_well_as_possible() -> None:
    async with connected() as (connection, peer):
        connection.notify_now("note", {"text": "half \ud83d", "big": 10**30, "set": {1}, "nan": float("nan")})
        params = (await peer.next())["params"]
        assert params["text"].startswith("half ")
        assert params["big"] == 10**30
        assert params["nan"] is None
        connection.notify_now("note", {"fine": True})
        assert (await peer.next())["params"] == {"fine": True}


async def test_a_line_of_sixty_megabytes_is_read_and_one_beyond_the_limit_is_skipped() -> None:
    async with connected(ECHO) as (_, peer):
        text = "x" * (60 * 1024 * 1024)
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"count": 1, "more": text}})
        await anyio.to_thread.run_sync(peer.raw, line.encode() + b"\n")
        assert (await peer.next())["result"] == {"text": ""}
        await anyio.to_thread.run_sync(peer.raw, b"y" * (65 * 1024 * 1024) + b"\n")
        reply = await peer.next()
        assert (reply["id"], reply["error"]["code"]) == (None, -32700)
        peer.send(id=2, method="echo")
        assert (await peer.next())["id"] == 2
