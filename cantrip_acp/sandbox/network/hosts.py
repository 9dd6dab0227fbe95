"""Host lists of `bash_network`: which hosts a command may connect to, and which addresses are never allowed.

An entry is a host (`example.org`), all hosts below one (`*.example.org`), or an address (`192.0.2.7`,
`[2001:db8::1]`). A port other than 80 and 443 is written after it (`example.org:8443`). `private:` before a name means that it
may lead to an address of a private network, as a mirror in a company does (`private:mirror.corp`). Names are compared in ASCII
form, without case and a final dot, so `bücher.example` and `xn--bcher-kva.example` are equal.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from cantrip_acp.types.errors import DefinitionError

PORTS = (80, 443)
"""The ports of an entry without a port."""

PRIVATE = "private:"
"""Before a name: the host may have an address of a private network."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST = 253

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def host_name(text: str) -> str:
    """Convert a host to its normal form: a lower-case ASCII name, or an address as the standard library writes it.

    Raises ValueError for anything else. That includes numbers that only some resolvers accept as an address (`127.1`,
    `0x7f000001`).
    """
    if text.startswith("[") and text.endswith("]"):
        return str(_as_ipv4(ipaddress.IPv6Address(_without_zone(text[1:-1]))))
    if ":" in text:
        return str(_as_ipv4(ipaddress.IPv6Address(_without_zone(text))))
    name = text
    if not name.isascii():
        import idna

        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError as error:
            raise ValueError(f"{text!r} is not a host name: {error}") from error
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not a host name")
    if _NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(name))
    return name


def _without_zone(text: str) -> str:
    if "%" in text:
        raise ValueError("an IPv6 address with a zone (%) is not allowed")
    return text


def _as_ipv4(address: Address) -> Address:
    """Convert an IPv4-mapped IPv6 address (::ffff:192.0.2.1) to IPv4; return other addresses unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def split_port(text: str) -> tuple[str, int | None]:
    """Split `HOST:PORT` into host and port. The port is None if there is none. Raises ValueError."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address in brackets")
        host, port, found = host + bracket, rest[1:], bool(rest)
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        found = True
    else:
        host, port, found = text, "", False
    if not found:
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port number (1 to 65535)")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class _Rule:
    host: str
    below: bool
    ports: tuple[int, ...]
    private: bool

    def allows(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        return host.endswith("." + self.host) if self.below else host == self.host


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """A list of allowed hosts. ``entries``: the entries as they were written."""

    entries: tuple[str, ...]
    rules: tuple[_Rule, ...]

    @classmethod
    def of(cls, entries: Iterable[str]) -> AllowedHosts:
        """Parse entries. Raises `DefinitionError` for an entry that is not a host."""
        listed = tuple(entries)
        return cls(listed, tuple(_rule(entry) for entry in listed))

    def allows(self, host: str, port: int) -> bool:
        """Whether the list allows connections to this host (as `host_name` returns it) and port."""
        return any(rule.allows(host, port) for rule in self.rules)

    def allows_address(self, address: str, port: int, host: str = "") -> bool:
        """Whether the name of an allowed host may lead to this address.

        Every public address is allowed. Another one is allowed only if the list contains the address itself, or if it is of a
        private network and the list says so of the host.
        """
        if is_public(address) or self.allows(str(_as_ipv4(ipaddress.ip_address(address))), port):
            return True
        return is_in_private_network(address) and any(r.private and r.allows(host, port) for r in self.rules)

    def lists_name(self, host: str) -> bool:
        """Whether the list allows connections to a host of this name, at some port."""
        return not _is_address(host) and any(rule.allows(host, rule.ports[0]) for rule in self.rules)

    def ports(self) -> frozenset[int]:
        """The ports of the names in the list."""
        return frozenset(port for rule in self.rules if not _is_address(rule.host) for port in rule.ports)

    def loopback(self) -> tuple[str, ...]:
        """The loopback names and addresses of this machine that the list contains."""
        return tuple(sorted({r.host for r in self.rules if r.host == "localhost" or _is_loopback(r.host)}))

    def shown(self) -> str:
        return ", ".join(self.entries) or "none"


def _rule(entry: str) -> _Rule:
    text = entry.strip()
    private = text.startswith(PRIVATE)
    text = text.removeprefix(PRIVATE)
    try:
        if "://" in text or "/" in text or "@" in text:
            raise ValueError("write only the host, without a scheme, a path or a user")
        host, port = split_port(text) if text.count(":") < 2 or text.startswith("[") else (text, None)
        below = host.startswith("*.")
        if host in ("", "*"):
            raise ValueError("name a host, or write `bash_network: true` for the whole network")
        if "*" in host[1:] or (host.startswith("*") and not below):
            raise ValueError("`*` is allowed only as the first label, as in `*.example.org`")
        name = host_name(host[2:] if below else host)
        if below and ("." not in name or _is_address(name)):
            raise ValueError(f"`{host}` is too wide; name a domain, as in `*.example.org`")
        if private and _is_address(name):
            raise ValueError("write an address without `private:`; it allows this address and no other")
    except ValueError as error:
        raise DefinitionError(f"{entry!r}: {error}", where="bash_network") from error
    return _Rule(name, below, PORTS if port is None else (port,), private)


def may_be_asked_about(host: str) -> bool:
    """Whether a person can allow this host (as `host_name` returns it) when a command wants it.

    Addresses of this machine and of private networks are not: too much there trusts whoever reaches it. Only a list names them.
    """
    if _is_address(host):
        return is_public(host)
    return host != "localhost" and not host.endswith(".localhost")


def is_name(host: str) -> bool:
    """Whether a host is a name that somebody can be asked about, and not an address."""
    return not _is_address(host) and may_be_asked_about(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


# These networks are listed here because the standard library's definition of global addresses changed between versions.
_CLOSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        # An internal service of a cloud (Azure), at an address that looks public.
        "168.63.129.16/32",
    )
)  # fmt: skip
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""Networks of companies, homes and VPNs. This machine is not in them."""
_CLOUD = tuple(ipaddress.ip_network(text) for text in ("100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::/32"))
"""Services of clouds at such addresses, which give their credentials to whoever asks."""
_OPEN_6 = ipaddress.ip_network("2000::/3")
_CLOSED_6 = tuple(
    ipaddress.ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16")
)
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses behind a NAT64 gateway. The last 32 bits are the IPv4 address, which decides."""


def is_in_private_network(address: str) -> bool:
    """Whether an address is of another machine in a private network."""
    found = _as_ipv4(ipaddress.ip_address(address))
    return any(found in network for network in _PRIVATE) and not any(found in network for network in _CLOUD)


@lru_cache(maxsize=1024)
def is_public(address: str) -> bool:
    """Whether an address is on the internet, and not this machine, a local network or an internal service of a cloud."""
    try:
        found = _as_ipv4(ipaddress.ip_address(address))
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _CLOSED)
    if found in _TRANSLATED:
        return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found in _OPEN_6 and not any(found in network for network in _CLOSED_6)
