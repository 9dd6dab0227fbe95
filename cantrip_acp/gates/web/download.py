"""Download: gets one web address over HTTP or HTTPS, only from public hosts, with limits on size and time.

A host name is resolved once for each request. All its addresses are checked, and the connection uses one of them. So a name
server cannot change its answer between the check and the connection. Each redirect is checked like the first address. No
cookies or credentials are sent. A proxy in the environment is not used, because it would resolve the name again.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import time
import zlib
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from cantrip_acp.sandbox import AllowedHosts, hosts
from cantrip_acp.types.errors import GateError
from cantrip_acp.version import __version__

MAX_BYTES = 5_000_000
"""The most bytes of a body, compressed and decompressed."""
MOST_REDIRECTS = 5
CONNECT_WITHIN = 10.0
USER_AGENT = f"cantrip-acp/{__version__} (a program that reads for its user)"
_LONGEST_URL = 8_000
_PIECE = 65_536
_REDIRECTS = (301, 302, 303, 307, 308)
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer. ``url`` is the final address. ``cut``: the body had more than `MAX_BYTES`.

    ``redirect`` is the address of a redirect to another host, which was not followed.
    """

    url: str
    status: int
    reason: str
    content_type: str
    body: bytes
    cut: bool
    redirect: str | None = None


@dataclass(frozen=True, slots=True)
class _Address:
    """A parsed and checked address. ``host`` is normalized."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @property
    def shown(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def _is_same_site(before: _Address, after: _Address) -> bool:
    """Whether a permission for one address covers the other: same host and port, and not from https to http."""
    if before.secure == after.secure:
        return before.header == after.header
    return after.secure and before.host == after.host and (before.port, after.port) == (80, 443)


def check(url: str, private: AllowedHosts) -> None:
    """Raise `GateError` for an address that is always refused. Names are not resolved here."""
    target = parse_address(url)
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        return
    if not private.allows(target.host, target.port):
        _check_public(target, [target.host])


def _check_public(target: _Address, addresses: list[str]) -> None:
    # Refuse a name if only one of its addresses is not public. A normal public name has no such address.
    closed = [address for address in addresses if not hosts.is_public(address)]
    if closed:
        leads = "" if closed[0] == target.host else f" (it leads to {closed[0]})"
        raise GateError(
            f"{target.shown} is not fetched{leads}: only public addresses of the internet are allowed, not those of this machine, "
            "a private network or a cloud's own services. The user can allow a host by CANTRIP_FETCH_PRIVATE_HOSTS"
        )


class Download:
    """One download. `get` runs in a thread, and `abort` ends it from another thread.

    ``private`` are hosts that the user allowed on this machine or in a private network. ``seconds`` is the total time.
    """

    def __init__(self, private: AllowedHosts, seconds: float) -> None:
        self._private = private
        self._deadline = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._over = False

    def abort(self) -> None:
        """End the download. May be called at any time."""
        self._over = True
        line = self._socket
        if line is not None:
            # Shut down the plain socket, because closing the TLS socket would break the reading thread.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    def get(self, url: str) -> Answer:
        """Download an address. Raises `GateError` for a refused address or a failure. A redirect to another host is returned
        but not followed."""
        target = parse_address(url)
        for _ in range(MOST_REDIRECTS + 1):
            try:
                answer, onward = self._request(target)
            except ssl.SSLCertVerificationError as error:
                raise GateError(f"{target.shown} has no valid TLS certificate: {error.verify_message}") from None
            except ssl.SSLError as error:
                raise GateError(f"the TLS connection to {target.shown} failed: {error.reason or error}") from None
            except TimeoutError:
                raise GateError(f"{target.shown} did not answer in time") from None
            except OSError as error:
                raise GateError(f"{target.shown} cannot be reached: {error.strerror or error}") from None
            except http.client.HTTPException as error:
                raise GateError(f"{target.shown} did not answer with valid HTTP ({type(error).__name__})") from None
            if onward is None:
                return answer
            try:
                found = parse_address(urljoin(target.url, onward))
            except (GateError, ValueError) as problem:
                raise GateError(f"{target.url} redirects to an address that this gate refuses: {problem}") from None
            if not _is_same_site(target, found):
                # The new address may carry data to a host that nobody allowed, so the caller must decide again.
                check(found.url, self._private)
                return replace(answer, redirect=found.url)
            target = found
        raise GateError(f"{url} redirects more than {MOST_REDIRECTS} times")

    def _request(self, target: _Address) -> tuple[Answer, str | None]:
        """Send one request. Returns the answer, and the target of a redirect or None."""
        line = self._connect(target)
        try:
            connection = http.client.HTTPConnection(target.host, target.port)
            connection.sock = line
            connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
            for name, value in (
                ("Host", target.header),
                ("User-Agent", USER_AGENT),
                ("Accept", "text/html, text/markdown, text/plain, application/json, text/*;q=0.9, */*;q=0.1"),
                ("Accept-Encoding", "gzip, deflate"),
                ("Connection", "close"),
            ):
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            onward = response.getheader("Location")
            if response.status in _REDIRECTS and onward:
                return Answer(target.url, response.status, response.reason, "", b"", False), onward
            body, cut = self._body(response)
            kind = response.getheader("Content-Type") or ""
            return Answer(target.url, response.status, response.reason, kind, body, cut), None
        finally:
            self._socket = None
            line.close()

    def _connect(self, target: _Address) -> socket.socket:
        """Connect to a checked address of the host. Raises `GateError` if the host is not allowed."""
        failure: OSError | None = None
        for address in self._addresses(target)[:4]:
            try:
                line = socket.create_connection(
                    (address, target.port), timeout=min(CONNECT_WITHIN, self._seconds_left())
                )
            except OSError as error:
                failure = error
                continue
            # From here `abort` can end the connection. After an earlier abort, `_seconds_left` raises before anything is sent.
            self._socket = line
            if target.secure:
                try:
                    line = self._socket = ssl.create_default_context().wrap_socket(line, server_hostname=target.host)
                except BaseException:
                    line.close()
                    raise
            line.settimeout(self._seconds_left())
            return line
        raise failure or OSError("it has no address")

    def _addresses(self, target: _Address) -> list[str]:
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            words = (error.strerror if isinstance(error, OSError) else None) or "no such name"
            raise GateError(f"{target.host} cannot be found: {words}") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if self._private.allows(target.host, target.port):
            return addresses
        _check_public(target, addresses)
        return addresses

    def _seconds_left(self) -> float:
        left = self._deadline - time.monotonic()
        if self._over or left <= 0:
            raise TimeoutError
        return left

    def _body(self, response: http.client.HTTPResponse) -> tuple[bytes, bool]:
        """Read and decompress the body. Returns it, and whether it was cut."""
        packing = (response.getheader("Content-Encoding") or "identity").strip().lower()
        if packing not in ("", "identity") and packing not in _PACKED:
            raise GateError(f"the answer has the content encoding {packing[:40]!r}, which this gate does not support")
        packed, cut = bytearray(), False
        line = self._socket
        while True:
            if line is not None:
                line.settimeout(self._seconds_left())
            piece = response.read1(_PIECE)
            if not piece:
                break
            packed += piece
            if len(packed) > MAX_BYTES:
                packed, cut = packed[:MAX_BYTES], True
                break
        if packing not in _PACKED:
            return bytes(packed), cut
        return _unpacked(bytes(packed), _PACKED[packing], cut)


def _unpacked(data: bytes, bits: int, cut: bool) -> tuple[bytes, bool]:
    """Decompress at most `MAX_BYTES`, because small data may decompress to very large data."""
    if bits == 15 and data and data[0] & 0x0F != 8:
        # Some servers send "deflate" without its header.
        bits = -15
    unpacker = zlib.decompressobj(bits)
    try:
        out = unpacker.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise GateError(f"the answer cannot be unpacked: {error}") from None
    return out, cut or bool(unpacker.unconsumed_tail)


def parse_address(url: str) -> _Address:
    """Parse an address and check its text. Raises `GateError` for an invalid address."""
    url = url.strip()
    if len(url) > _LONGEST_URL:
        raise GateError(f"the address is longer than {_LONGEST_URL:,} characters")
    if _FORBIDDEN.search(url):
        raise GateError(
            "the address has a space, a control character or a backslash", "encode these characters (a space is %20)"
        )
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
        given = parts.hostname
    except ValueError as error:
        raise GateError(f"{url[:200]!r} is not a valid address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise GateError(f"only http and https addresses are fetched, such as https://example.org/, not {url[:200]!r}")
    if "@" in parts.netloc:
        raise GateError("the address has a user name or password, which this gate does not send; leave them out")
    if not given:
        raise GateError(f"{url[:200]!r} has no host")
    try:
        host = hosts.host_name(f"[{given}]" if ":" in given else given)
    except (ValueError, ipaddress.AddressValueError) as error:
        raise GateError(f"{given[:200]!r} is not a valid host: {error}") from None
    secure = parts.scheme == "https"
    if port is None:
        port = 443 if secure else 80
    if port < 1024 and port not in (80, 443):
        raise GateError(f"port {port} is not allowed: below 1024, only ports 80 and 443 are used for web pages")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?[]|{}^`")
    shown = f"[{host}]" if ":" in host else host
    at = "" if port == (443 if secure else 80) else f":{port}"
    return _Address(f"{parts.scheme}://{shown}{at}{path}", secure, host, port, path)
