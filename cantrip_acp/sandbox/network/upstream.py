"""The proxy of the user's environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY), which the filtering proxy goes through.

Name and password of the user are sent to that proxy alone: no text, no log and no variable of a sandbox has them.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import anyio

from cantrip_acp.sandbox.network.proxy_pipe import Broken, ProxyPipe

CONNECT_TIMEOUT = 15.0
ANSWER_TIMEOUT = 60.0
"""Seconds in which the proxy must have opened a tunnel. It may have to look up a name, and to ask others."""
_LARGEST = 64 * 1024


class UpstreamError(Exception):
    """The proxy cannot be used. The text names it, and says what to do."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A proxy of the environment. ``variable`` names it; ``login`` is the value of Proxy-Authorization, or empty."""

    host: str
    port: int
    tls: bool
    variable: str
    login: str = field(repr=False)

    @classmethod
    def of(cls, host: str, port: int, *, plain: bool) -> Upstream | None:
        """The proxy for a host and port (``plain``: for HTTP without TLS); None if there is none. Raises `UpstreamError`."""
        proxies = getproxies_environment()
        scheme = next((each for each in ("http" if plain else "https", "all") if proxies.get(each)), None)
        if scheme is None or _is_direct(host, port, proxies):
            return None
        name = f"{scheme.upper()}_PROXY"
        text = proxies[scheme]
        try:
            url = urlsplit(text if "://" in text else f"http://{text}")
            if url.scheme not in ("http", "https") or not url.hostname:
                raise ValueError(f"only http:// and https:// can be used, and it begins with {url.scheme}://")
            found = url.port or (443 if url.scheme == "https" else 80)
        except ValueError as error:
            # The text of the standard library's error may have a part of the address, which may be the password.
            why = str(error) if str(error).startswith("only ") else "it is no address of a proxy"
            raise UpstreamError(
                f"{name} in the environment of Cantrip names a proxy that it cannot use: {why}"
            ) from None
        user = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
        login = f"Basic {base64.b64encode(user.encode()).decode()}" if url.username else ""
        return cls(url.hostname, found, url.scheme == "https", name, login)

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable} in the environment of Cantrip)"

    async def connect(self) -> UpstreamPipe:
        """A connection to it. Raises `UpstreamError`."""
        context = ssl.create_default_context() if self.tls else None
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                pipe = UpstreamPipe(*await asyncio.open_connection(self.host, self.port, ssl=context, limit=_LARGEST))
            pipe.upstream = self
            return pipe
        except TimeoutError as error:
            raise UpstreamError(f"{self} does not answer") from error
        except OSError as error:
            raise UpstreamError(f"{self} cannot be reached: {error.strerror or type(error).__name__}") from error

    async def tunnel(self, host: str, port: int) -> ProxyPipe:
        """A tunnel through it to a host and port. Raises `UpstreamError`."""
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = f"Proxy-Authorization: {self.login}\r\n" if self.login else ""
        pipe = await self.connect()
        pipe.upstream = None
        try:
            with anyio.fail_after(ANSWER_TIMEOUT):
                await pipe.send(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n{login}\r\n".encode())
                head = await pipe.read_until(b"\r\n\r\n", _LARGEST)
            self.check(head)
            return pipe
        except (OSError, TimeoutError, Broken) as error:
            pipe.abort()
            raise UpstreamError(f"{self} did not open a tunnel") from error
        except BaseException:
            pipe.abort()
            raise

    async def check_login(self, pipe: ProxyPipe) -> None:
        """Read the first line of its answer to a request. Raises `UpstreamError` if it wants another user and password."""
        line = await pipe.read_until(b"\r\n", _LARGEST)
        if line.split(b" ")[1:2] == [b"407"]:
            self.check(line)
        pipe.put_back(line)

    def check(self, head: bytes) -> None:
        """Raise `UpstreamError` if this answer to a request for a tunnel is a refusal."""
        status = head.split(b" ")[1][:3] if head.startswith(b"HTTP/1.") and b" " in head else b""
        if status == b"407":
            why = "refuses the user and password" if self.login else "wants a user and a password"
            raise UpstreamError(f"{self} {why} (407). Write them into that variable: http://USER:PASSWORD@HOST:PORT")
        if not status.startswith(b"2"):
            words = status.decode("ascii", "replace")
            raise UpstreamError(f"{self} refuses it" + (f" ({words})" if words.isdigit() else ""))


class UpstreamPipe(ProxyPipe):
    """A connection to a proxy. ``upstream``: that proxy, until a tunnel through it is open."""

    upstream: Upstream | None = None


def _is_direct(host: str, port: int, proxies: dict[str, str]) -> bool:
    """Whether NO_PROXY names the host: a name, a domain, either with a port, a network such as 10.0.0.0/8, or `*`."""
    for each in proxies.get("no", "").lower().replace(" ", ",").split(","):
        name = each.removesuffix(f":{port}").removeprefix("*").removeprefix(".")
        if each == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
        with suppress(ValueError):
            if "/" in each and ipaddress.ip_address(host) in ipaddress.ip_network(each, strict=False):
                return True
    return False
