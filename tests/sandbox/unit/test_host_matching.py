"""Which hosts and addresses a list admits, and how the proxy reads what is sent to it: pure functions."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.sandbox import AllowedHosts
from cantrip_acp.sandbox.network import http_head, tls_sni
from cantrip_acp.sandbox.network.hosts import host_name, is_public
from cantrip_acp.types.errors import DefinitionError


@pytest.mark.parametrize(
    ("entry", "host", "port", "admitted"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "EXAMPLE.org.", 80, True),
        ("Example.ORG.", "example.org", 80, True),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org", 8080, False),
        ("example.org:8080", "example.org", 8080, True),
        ("example.org:8080", "example.org", 443, False),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("xn--bcher-kva.example", "BÜCHER.example", 443, True),
        ("192.0.2.7", "192.0.2.7", 443, True),
        ("192.0.2.7", "::ffff:192.0.2.7", 443, True),
        ("[2001:db8::1]:8443", "2001:DB8:0::1", 8443, True),
        ("2001:db8::1", "[2001:db8::1]", 443, True),
        ("private:mirror.corp", "mirror.corp", 443, True),
        ("private:*.corp.example:8443", "a.corp.example", 8443, True),
    ],
)
def test_a_list_admits(entry: str, host: str, port: int, admitted: bool) -> None:
    assert AllowedHosts.of([entry]).allows(host_name(host), port) is admitted


@pytest.mark.parametrize(
    "entry",
    ["*", "*.org", "https://example.org", "example.org/x", "a@example.org", "ex ample.org", "a.*.org", "*example.org",
     "example.org:0", "example.org:99999", "example.org:x", "127.1", "0x7f.1", "1.2.3.4.5", "", "[::1", "fe80::1%eth0",
     "*.1.2.3.4", "a..b", "-", "x" * 64, "private:10.1.2.3", "private:", "private:*"],
)  # fmt: skip
def test_what_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(DefinitionError, match="bash_network"):
        AllowedHosts.of([entry])


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "192.0.0.192", "168.63.129.16", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1",
     "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2001:0:1::1", "nonsense"],
)  # fmt: skip
def test_addresses_that_are_not_the_internets(address: str) -> None:
    assert not is_public(address)
    if address not in ("nonsense", "fe80::1%eth0"):
        assert not AllowedHosts.of(["example.org"]).allows_address(address, 443)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("10.1.2.3", True), ("172.16.0.1", True), ("192.168.1.1", True), ("100.64.1.1", True), ("fd12::1", True),
     ("::ffff:10.0.0.1", True), ("127.0.0.1", False), ("::1", False), ("169.254.169.254", False), ("fe80::1", False),
     ("100.100.100.200", False), ("fd00:ec2::254", False), ("fd20:ce::254", False), ("168.63.129.16", False),
     ("0.0.0.0", False), ("224.0.0.1", False), ("192.0.0.192", False)],
)  # fmt: skip
def test_a_name_that_may_be_private(address: str, allowed: bool) -> None:
    listed = AllowedHosts.of(["private:mirror.corp", "other.corp"])
    assert listed.allows_address(address, 443, "mirror.corp") is allowed
    assert not listed.allows_address(address, 8443, "mirror.corp")
    assert not listed.allows_address(address, 443, "other.corp")


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:2800:21f::1", "64:ff9b::101:101"])
def test_addresses_that_are(address: str) -> None:
    assert AllowedHosts.of([]).allows_address(address, 443)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_request_or_a_bad_one(data: bytes) -> None:
    for sent in (data, b"GET http://a/ HTTP/1.1\r\n" + data + b"\r\n\r\n", b"CONNECT " + data + b" HTTP/1.1\r\n\r\n"):
        try:
            head = http_head.parse(sent)
        except http_head.BadRequest:
            continue
        if head.method != "CONNECT":
            encoded = head.encoded()
            assert encoded.count(b"\r\n\r\n") == 1
            assert encoded.endswith(b"\r\nConnection: close\r\n\r\n")
            assert sum(line.lower().startswith(b"host:") for line in encoded.split(b"\r\n")) == 1
            assert http_head.parse(encoded, (head.host, head.port)).path == head.path


def hello(name: str | None) -> bytes:
    """A real one."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def test_a_real_hello_in_pieces() -> None:
    whole = hello("www.example.org")
    assert all(tls_sni.read(whole[:n]) is None for n in range(len(whole)))
    assert tls_sni.read(whole) == tls_sni.Hello("www.example.org")
    assert tls_sni.read(whole + b"more") == tls_sni.Hello("www.example.org")
    assert tls_sni.read(hello(None)) == tls_sni.Hello(None)
    # The same message in records of forty bytes.
    body = whole[5:]
    parts = [body[i : i + 40] for i in range(0, len(body), 40)]
    split = b"".join(b"\x16\x03\x01" + len(p).to_bytes(2) + p for p in parts)
    assert tls_sni.read(split) == tls_sni.Hello("www.example.org")


HELLO = hello("example.org")


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 600))
def test_any_bytes_are_a_hello_or_none(data: bytes, at: int) -> None:
    whole = HELLO
    for sent in (data, b"\x16\x03" + data, whole[:at] + data + whole[at + len(data) :]):
        try:
            tls_sni.read(sent)
        except tls_sni.NotTls:
            continue
