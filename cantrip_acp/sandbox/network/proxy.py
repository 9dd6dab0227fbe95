"""Filtering proxy of one command: passes HTTP and HTTPS to the hosts that `bash_network` lists, and asks about others.

The proxy runs on the host and accepts connections from inside a sandbox, so every byte of a request is hostile. For
each connection it resolves the name once and connects to exactly the address that it checked. It does not follow
redirects: the client must send a new request. A refusal is reported to the client and in the command's output.

A program that knows no proxy connects to `name_server.ADDRESS`, where all names lead. Then TLS or the Host field names the host,
and the same rules hold. Such a program reads no text of ours before TLS has begun, so a refusal is an alert of TLS.

A question holds the connection. Connections to the same host and port share one question, whose answer holds for the command.
The name is not resolved before somebody has allowed the host, because a name that is looked up leaves this machine too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from cantrip_acp.sandbox.network import http_head, tls_sni
from cantrip_acp.sandbox.network.hosts import (
    AllowedHosts,
    host_name,
    is_in_private_network,
    is_name,
    may_be_asked_about,
)
from cantrip_acp.sandbox.network.name_server import ADDRESS, SILENT, NameServer
from cantrip_acp.sandbox.network.proxy_pipe import Broken, ProxyPipe, TooLong, forward_body
from cantrip_acp.sandbox.network.upstream import Upstream, UpstreamError, UpstreamPipe

MOST_CONNECTIONS = 128
HEAD_TIMEOUT = 30.0
CONNECT_TIMEOUT = 15.0
LOOK_UP_TIMEOUT = 3.0
"""Seconds to look up a name that the user's proxy looks up too. Behind it there may be no name server for the internet."""
MOST_REFUSED = 3
"""How many refused questions a command may cause. After them, hosts that are not listed are refused without a question."""
_MOST_REPORTS = 20
"""The maximum number of different refusals that are reported in one command's output."""

_REASON = 200
"""The most characters of the reason in a status line."""
NOBODY_TO_ASK = (
    "nobody can be asked here. If the task needs this host, say so in your answer: a person can list it in bash_network or "
    "allow it with --allow-host"
)

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


AskHost = Callable[[str, int, int, str], Awaitable[str]]
"""Asks whether a host and port may be reached, for the connection from this port inside, at a private address (empty: at any of the
internet). Returns why not; empty if allowed."""


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """Why a request is refused: an HTTP status, a short reason, and a text."""

    status: int
    reason: str
    text: str


class Proxy:
    """The proxy of one command. It calls ``report`` with a line of text for each new refusal.

    ``ask`` asks about a host that is not listed. None if nobody can be asked.
    """

    def __init__(self, allowed: AllowedHosts, report: Callable[[str], None], ask: AskHost | None = None) -> None:
        self._allowed = allowed
        self._report = report
        self._ask = ask
        self._asking = anyio.Lock()
        self._answers: dict[tuple[str, int, bool], str] = {}
        """What was answered: why a host and port are refused (True: at a private address), or an empty text."""
        self._reported: set[str] = set()
        self._count = 0

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve connections until cancelled, and answer questions for names. Closes the sockets.

        ``sockets``: that of the proxy, and then those for programs that know no proxy.
        """
        loop = asyncio.get_running_loop()
        streams = (each.getsockname()[0] for each in sockets[1:] if each.type == socket.SOCK_STREAM)
        names_lead_to = next(streams, ADDRESS)
        async with anyio.create_task_group() as group:
            opened: list[asyncio.Server | asyncio.DatagramTransport] = []
            try:
                for each in sockets:
                    port = each.getsockname()[1]
                    if each.type == socket.SOCK_DGRAM:
                        made = await loop.create_datagram_endpoint(
                            partial(NameServer, self._exists, names_lead_to), sock=each
                        )
                        opened.append(made[0])
                        continue

                    def connected(
                        reader: asyncio.StreamReader,
                        writer: asyncio.StreamWriter,
                        at: int | None = None if each is sockets[0] else port,
                    ) -> None:
                        group.start_soon(self._connection, ProxyPipe(reader, writer), at)

                    server = await asyncio.start_server(
                        connected, sock=each, limit=http_head.LARGEST, start_serving=False
                    )
                    # A cancel while it starts must close it, too: else the event loop goes on to take the descriptor, whatever it
                    # is by then, for one that it watches.
                    opened.append(server)
                    await server.start_serving()
                await anyio.sleep_forever()
            finally:
                for one in opened:
                    one.close()
                for each in sockets:
                    each.close()

    def _exists(self, name: str) -> bool:
        """Whether a name leads to a host that may be reached, or that somebody can be asked about."""
        if self._allowed.lists_name(name):
            return True
        if "." not in name or name.endswith(SILENT) or not is_name(name):
            return False
        if self._ask is None:
            allowed = f"allowed: {self._allowed.shown()}"
            text = (
                f"the network refuses {name}: the ward bash_network does not list it ({allowed}), and {NOBODY_TO_ASK}"
            )
            self._report_refusal(Refusal(403, "", text))
        return self._ask is not None

    async def _connection(self, client: ProxyPipe, at: int | None = None) -> None:
        """Serve one connection to the proxy. ``at``: the port, if it comes from a program that knows no proxy."""
        self._count += 1
        too_many = self._count > MOST_CONNECTIONS
        try:
            try:
                if too_many:
                    raise Refusal(503, "Too many connections", f"more than {MOST_CONNECTIONS} connections at once")
                if at is not None and await client.next_byte() == tls_sni.HANDSHAKE:
                    await self._direct_tls(client, at)
                else:
                    await self._request(client, at=at)
            except Refusal as refusal:
                self._report_refusal(refusal, always=at is not None)
                if at is not None and client.buffered()[:1] == bytes([tls_sni.HANDSHAKE]):
                    await client.send(tls_sni.alert(refusal.status == 403))
                else:
                    await _answer(client, refusal)
            if not too_many:
                await client.linger()
        except (OSError, Broken):
            # One side disconnected or stopped sending. Only the connection must be closed.
            client.abort()
        except BaseException:
            client.abort()
            raise
        finally:
            self._count -= 1
            client.close()

    def _report_refusal(self, refusal: Refusal, *, always: bool = False) -> None:
        """Report it in the command's output if it is about a host, or ``always``: if the client shows no text of ours."""
        if (refusal.status not in (403, 502) and not always) or refusal.text in self._reported:
            return
        if len(self._reported) < _MOST_REPORTS:
            self._reported.add(refusal.text)
            self._report(f"cantrip: {refusal.text}")

    async def _direct_tls(self, client: ProxyPipe, port: int) -> None:
        """Relay TLS of a program that knows no proxy. The host is the one that TLS asks for."""
        hello = await _hello(client)
        if hello is None:
            return
        if hello.server_name is None:
            text = f"the network refuses TLS to port {port} that names no host (SNI)"
            raise Refusal(403, "TLS names no host", text)
        try:
            host = host_name(hello.server_name)
        except ValueError as error:
            raise Refusal(400, "Bad Request", f"TLS names no valid host: {error}"[:600]) from error
        server = await self._connect(host, port, client)
        try:
            await _run_both(client.copy_to(server), server.copy_to(client))
        finally:
            server.abort()

    async def _request(
        self,
        client: ProxyPipe,
        within: tuple[str, int] | None = None,
        server: ProxyPipe | None = None,
        at: int | None = None,
    ) -> None:
        head = await self._head(client, within, at)
        if server is not None:
            await _exchange(client, server, head)
            return
        server = await self._connect(head.host, head.port, client, plain=head.method != "CONNECT")
        try:
            if head.method == "CONNECT":
                await self._tunnel(client, server, head)
            else:
                await _exchange(client, server, head)
        finally:
            # The request has ended, and the whole answer was sent.
            server.abort()

    async def _head(self, client: ProxyPipe, within: tuple[str, int] | None, at: int | None) -> http_head.Head:
        try:
            with anyio.fail_after(HEAD_TIMEOUT):
                data = await client.read_until(b"\r\n\r\n", http_head.LARGEST)
            return http_head.parse(data, within, at)
        except TimeoutError as error:
            raise Refusal(408, "Request Timeout", "the head of the request did not arrive in time") from error
        except TooLong as error:
            raise Refusal(431, _REASONS[431], "the head of the request is too long") from error
        except http_head.BadRequest as error:
            raise Refusal(400, "Bad Request", f"the request is not valid: {error}") from error

    async def _why_refused(self, host: str, port: int, client: ProxyPipe, private: str = "") -> str:
        """Why a host that is not listed may not be reached; empty if somebody allowed it. One question is open at a time.

        ``private``: its address in a private network, if it leads there.
        """
        if self._ask is None:
            return NOBODY_TO_ASK
        if not may_be_asked_about(host):
            return "it is an address of this machine or of a private network, which only that list can allow"
        async with self._asking:
            key = (host, port, bool(private))
            if (known := self._answers.get(key)) is not None:
                return known
            if sum(1 for answer in self._answers.values() if answer) >= MOST_REFUSED:
                return (
                    f"{MOST_REFUSED} hosts that this command wanted were refused already, so nobody is asked about more"
                )
            answer = self._answers[key] = await self._ask(host, port, client.peer_port, private)
            return answer

    async def _connect(self, host: str, port: int, client: ProxyPipe, *, plain: bool = False) -> ProxyPipe:
        """Connect to a listed host, or to one that somebody allows now. ``plain``: for HTTP without TLS. Raises `Refusal`."""
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._allowed.allows(host, port):
            why = await self._why_refused(host, port, client)
            if why:
                allowed = f"allowed: {self._allowed.shown()}"
                text = f"the network refuses {shown}: the ward bash_network does not list it ({allowed}), and {why}"
                raise Refusal(403, f"{shown} is not in bash_network; {why}"[:_REASON], text)
        try:
            upstream = Upstream.of(host, port, plain=plain)
            addresses = await _addresses(host, port, optional=upstream is not None)
            if addresses:
                addresses = await self._allowed_addresses(host, port, addresses, client)
            if upstream is not None:
                return await (upstream.connect() if plain else upstream.tunnel(host, port))
        except UpstreamError as error:
            raise Refusal(502, f"{shown} cannot be reached", f"{shown} cannot be reached: {error}") from error
        return await _dial(addresses, port, shown)

    async def _allowed_addresses(self, host: str, port: int, addresses: list[str], client: ProxyPipe) -> list[str]:
        """Those of a host's addresses that may be reached. Raises `Refusal` if there is none."""
        found = [a for a in addresses if self._allowed.allows_address(a, port, host)]
        if found:
            return found
        why = "which is not an address of the internet, and the ward bash_network does not list that address itself"
        if is_in_private_network(addresses[0]):
            why = "which is in a private network, and the ward bash_network does not say so (private: true)"
            if self._ask is not None and not (more := await self._why_refused(host, port, client, addresses[0])):
                return [a for a in addresses if is_in_private_network(a)]
            if self._ask is not None:
                why = f"{why}; {more}"
        shown, allowed = f"{host}:{port}", f"allowed: {self._allowed.shown()}"
        text = f"the network refuses {shown}: it leads to {addresses[0]}, {why} ({allowed})"
        raise Refusal(403, f"{shown} has a private address", text)

    async def _tunnel(self, client: ProxyPipe, server: ProxyPipe, head: http_head.Head) -> None:
        """Relay data between a client and its host, after a check that the client's first bytes are for that host."""
        await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if await client.next_byte() != tls_sni.HANDSHAKE:
            # Some clients send plain HTTP through a tunnel. Then the request is checked like any other.
            if client.buffered():
                await self._request(client, (head.host, head.port), server)
            return
        hello = await _hello(client)
        if hello is None:
            return
        if hello.server_name is not None and not _same(hello.server_name, head.host):
            name = hello.server_name[:253].encode("ascii", "replace").decode()
            refusal = Refusal(
                403,
                "another host in the tunnel",
                f"the network refuses a tunnel to {head.host}:{head.port} in which TLS asks for {name!r}",
            )
            self._report_refusal(refusal)
            return
        await _run_both(client.copy_to(server), server.copy_to(client))


async def _addresses(host: str, port: int, *, optional: bool) -> list[str]:
    """The addresses of a host. Raises `Refusal` if there is none; ``optional``: then the list is empty, and we wait less long."""
    loop = asyncio.get_running_loop()
    try:
        with anyio.fail_after(LOOK_UP_TIMEOUT if optional else CONNECT_TIMEOUT):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        if optional:
            return []
        raise Refusal(502, f"{host} cannot be found", f"{host} cannot be found: {error or 'no answer'}") from error
    return list(dict.fromkeys(str(address[4][0]) for address in found))


async def _dial(addresses: Sequence[str], port: int, shown: str) -> ProxyPipe:
    """Connect to the first of these checked addresses that answers. The name is not resolved again. Raises `Refusal`."""
    failure: OSError | None = None
    for address in addresses[:4]:
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                return ProxyPipe(*await asyncio.open_connection(address, port, limit=http_head.LARGEST))
        except TimeoutError:
            failure = OSError(0, "no answer")
        except OSError as error:
            failure = error
    words = (failure.strerror if failure is not None else None) or "no connection"
    raise Refusal(502, f"{shown} cannot be reached", f"{shown} cannot be reached: {words}")


async def _hello(client: ProxyPipe) -> tls_sni.Hello | None:
    """Read the first message of TLS, and leave it in the buffer. None if it is none, or the stream ends."""
    while True:
        try:
            hello = tls_sni.read(client.buffered())
        except tls_sni.NotTls:
            return None
        if hello is not None or not await client.refill():
            return hello


async def _exchange(client: ProxyPipe, server: ProxyPipe, head: http_head.Head) -> None:
    """Relay one request and its answer. Raises `Refusal` if the user's proxy wants another password."""
    upstream = server.upstream if isinstance(server, UpstreamPipe) else None
    await server.send(head.encoded(upstream.login if upstream is not None else None))
    refused: UpstreamError | None = None

    async with anyio.create_task_group() as group:

        async def body() -> None:
            try:
                await forward_body(client, server, head.length)
            except (OSError, Broken):
                # The server may answer before it has read the whole body. The client still gets the answer.
                return

        group.start_soon(body)
        try:
            if upstream is not None:
                await upstream.check_login(server)
            await server.copy_to(client)
        except UpstreamError as error:
            refused = error
        except (OSError, Broken):
            pass
        group.cancel_scope.cancel()
    if refused is not None:
        shown = f"{head.host}:{head.port}"
        raise Refusal(502, f"{shown} cannot be reached", f"{shown} cannot be reached: {refused}")


async def _run_both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    async with anyio.create_task_group() as group:

        async def run(one: Coroutine[Any, Any, None]) -> None:
            try:
                await one
            except (OSError, Broken):
                group.cancel_scope.cancel()

        group.start_soon(run, first)
        group.start_soon(run, second)


async def _answer(client: ProxyPipe, refusal: Refusal) -> None:
    body = f"cantrip: {refusal.text}\n".encode("utf-8", "replace")
    reason = "".join(c if " " <= c <= "~" else "?" for c in refusal.reason)
    head = (
        f"HTTP/1.1 {refusal.status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        await client.send(head.encode("ascii") + body)
        await client.finish()
    except (OSError, Broken):
        return


def _same(name: str, host: str) -> bool:
    try:
        return host_name(name) == host
    except ValueError:
        return False
