"""The fetch gate against a real server, and against addresses, redirects and answers that mean harm."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.gates.web.download import parse_address
from cantrip_acp.gates.web.fetch import FETCH, hosts_in
from cantrip_acp.recipes import load_for_session, recipe
from cantrip_acp.types.errors import DefinitionError, GateError, UntrustedRecipe
from tests.support.gate_calls import Pages, call_in, context_of, serving

HTML = {"Content-Type": "text/html; charset=utf-8"}
TEXT = {"Content-Type": "text/plain"}


async def fetched(url: str, host: str | None = None, timeout_s: float = 20, **args: Any) -> str:
    context = context_of(None, private_hosts=(host,) if host else (), timeout_s=timeout_s)
    return str((await call_in(context, FETCH, url=url, **args)).result)


async def test_a_page_as_markdown() -> None:
    page = """<html><head><title>The &amp; title</title><style>p{}</style><script>evil()</script></head><body>
    <nav><a href="/menu">menu</a></nav><h2>Part</h2><p>A <a href="../b?x=1">link</a> and <b>bold</b>.</p>
    <pre>def f():
    return 1</pre><img src="data:image/png;base64,AAAA" alt="dot"><a href="javascript:alert(1)">press</a></body></html>"""
    with serving({"/a/page": (200, HTML, page.encode())}) as site:
        text = await fetched(site.url("/a/page#part"), site.host)
        raw = await fetched(site.url("/a/page"), site.host, raw=True)
    assert text.startswith("# The & title\n")
    assert f"[link]({site.url('/b?x=1')})" in text
    assert "**bold**" in text
    assert "def f():\n    return 1" in text
    assert not any(word in text for word in ("evil", "p{}", "menu", "AAAA", "alert(1)"))
    assert raw == page
    (_, headers), _ = site.asked
    assert headers["user-agent"].startswith("cantrip-acp/")
    assert headers["host"] == site.host
    assert not headers.keys() & {"cookie", "authorization", "referer"}


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        (TEXT, b"plain\r\ntext\x1b[31m", "plain\ntext[31m"),
        ({"Content-Type": "application/json"}, b'{"a": 1}', '{"a": 1}'),
        ({"Content-Type": "application/vnd.api+json"}, b"[]", "[]"),
        ({}, b"no type", "no type"),
        ({}, b"<!DOCTYPE html><p>page</p>", "page"),
        ({"Content-Type": "text/plain; charset=iso-8859-1"}, "é".encode("latin-1"), "é"),
        ({"Content-Type": "text/html"}, "<meta charset=shift_jis><p>日本".encode("shift_jis"), "日本"),
        ({"Content-Type": "text/plain; charset=punycode"}, b"abc", "abc"),
        ({"Content-Type": "text/plain; charset=no-such"}, "é".encode(), "é"),
        (TEXT, "\ufefftext".encode("utf-16-le"), "text"),
        (TEXT, b"caf\xe9", "café"),
        ({**TEXT, "Content-Encoding": "gzip"}, gzip.compress(b"packed", mtime=0), "packed"),
        ({**TEXT, "Content-Encoding": "deflate"}, zlib.compress(b"packed"), "packed"),
        ({**TEXT, "Content-Encoding": "deflate"}, zlib.compress(b"packed")[2:-4], "packed"),
        (TEXT, b"", "[the text is empty]"),
    ],
)
async def test_texts(headers: dict[str, str], body: bytes, text: str) -> None:
    with serving({"/": (200, headers, body)}) as site:
        assert await fetched(site.url("/"), site.host) == text


@pytest.mark.parametrize(
    ("status", "headers", "body", "says"),
    [
        (200, {"Content-Type": "image/png"}, b"\x89PNG", "image/png"),
        (200, {"Content-Type": "application/octet-stream"}, b"\0\1\2", "cannot be read as text"),
        (200, {"Content-Type": "application/pdf"}, b"%PDF", "application/pdf"),
        (200, {**TEXT, "Content-Encoding": "br"}, b"x", "encoding 'br'"),
        (200, {**TEXT, "Content-Encoding": "gzip"}, b"no gzip", "cannot be unpacked"),
        (404, HTML, b"<p>gone</p>", "answered 404"),
        (500, TEXT, b"trouble here", "trouble here"),
        (302, {"Location": "file:///etc/passwd"}, b"", "only http and https"),
        (302, {"Location": "http://user:word@127.0.0.1/"}, b"", "user name or password"),
        (302, {"Location": "/"}, b"", "redirects more than"),
        (301, {"Location": "http://[fe80::1%25eth0]/"}, b"", "this gate refuses"),
    ],
)
async def test_what_is_no_text(status: int, headers: dict[str, str], body: bytes, says: str) -> None:
    with serving({"/": (status, headers, body)}) as site:
        with pytest.raises(GateError, match=says):
            await fetched(site.url("/"), site.host)


PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001::1]", "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[ff02::1]",
    "[2001:db8::1]", "localhost", "LOCALHOST.", "ip6-localhost",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_private_addresses(scheme: str, host: str) -> None:
    with pytest.raises(GateError, match=r"not fetched|cannot be found"):
        await fetched(f"{scheme}://{host}:8080/")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.org/", "gopher://example.org/", "data:text/plain,x", "//example.org", "",
        "http://", "http:///path", "http://user@example.org/", "http://a:b@example.org/", "http://exa mple.org/",
        "http://example.org\\@127.0.0.1/", "http://example.org/a\r\nHost: b", "http://0x7f000001/", "http://2130706433/",
        "http://127.1/", "http://0177.0.0.1/", "http://[::1", "http://[fe80::1%25eth0]/", "http://example.org:22/",
        "http://example.org:0/", "http://example.org:99999/", "http://%31%32%37.0.0.1/", "http://ex_.ample!.org/",
        "http://①②⑦.⓪.⓪.①:9/", "http://example.org/" + "a" * 9_000,
    ],
)  # fmt: skip
async def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(GateError):
        await fetched(url)


def test_an_address_is_taken_apart() -> None:
    target = parse_address("HTTPS://BÜCHER.example/ä b".replace(" ", "%20") + "?q=ü#part")
    assert (target.host, target.port, target.secure) == ("xn--bcher-kva.example", 443, True)
    assert target.path == "/%C3%A4%20b?q=%C3%BC"


async def test_a_redirect_is_judged_as_the_first_address_was() -> None:
    with serving({"/": (200, TEXT, b"inner secret")}) as inside:
        pages: Pages = {"/": (302, {"Location": inside.url("/")}, b""), "/own": (307, {"Location": "/there"}, b""),
                        "/there": (200, TEXT, b"here")}  # fmt: skip
        with serving(pages) as site:
            with pytest.raises(GateError, match="not fetched"):
                await fetched(site.url("/"), site.host)
            assert await fetched(site.url("/own"), site.host) == f"here\n\n[from {site.url('/there')}]"
        assert not inside.asked


def answers(*addresses: str) -> list[Any]:
    families = {True: socket.AF_INET6, False: socket.AF_INET}
    return [(families[":" in a], socket.SOCK_STREAM, 6, "", (a, 80)) for a in addresses]


async def test_a_name_is_asked_once_and_its_judged_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, reached = [], []

    def changing(host: str, *rest: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return answers("93.184.215.14") if len(asked) == 1 else answers("127.0.0.1")

    def connect(address: tuple[str, int], **more: Any) -> Any:
        reached.append(address)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(GateError, match="cannot be reached"):
        await fetched("http://rebinding.example/")
    assert asked == ["rebinding.example"]
    assert reached == [("93.184.215.14", 80)]


async def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: answers("93.184.215.14", "10.0.0.1"))
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: pytest.fail("connected"))
    with pytest.raises(GateError, match=r"leads to 10\.0\.0\.1"):
        await fetched("http://mixed.example/")


async def test_the_user_names_hosts_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"/": (200, TEXT, b"mine")}) as site:
        monkeypatch.setenv("CANTRIP_FETCH_PRIVATE_HOSTS", f"localhost:1, 127.0.0.1:{site.port}")
        assert await fetched(site.url("/")) == "mine"
        monkeypatch.setenv("CANTRIP_FETCH_PRIVATE_HOSTS", "http://x/")
        with pytest.raises(GateError, match="CANTRIP_FETCH_PRIVATE_HOSTS is not valid"):
            await fetched(site.url("/"))


async def test_what_is_packed_small_and_large_inside() -> None:
    bomb = gzip.compress(b"\0" * 200_000_000, 9)
    with serving({"/": (200, {**TEXT, "Content-Encoding": "gzip"}, bomb)}) as site:
        before = time.monotonic()
        text = await fetched(site.url("/"), site.host)
    assert "larger than the limit of this gate" in text
    assert time.monotonic() - before < 60


async def test_a_large_answer_is_cut_and_can_be_paged() -> None:
    body = b"".join(b"%06d\n" % n for n in range(900_000))
    with serving({"/": (200, TEXT, body)}) as site:
        text = await fetched(site.url("/"), site.host, offset=7, max_chars=14)
        beyond = await fetched(site.url("/"), site.host, offset=900_000_000)
    assert text.startswith("000001\n000002\n\n\n[characters 7 to 21 of 5,000,000; go on with offset=21;")
    assert "was cut" in text
    assert beyond.startswith("[nothing at this offset")


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[str]:
    """A server that never ends what it says."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = False

    def serve() -> None:
        while not over:
            try:
                line, _ = listener.accept()
                line.sendall(first)
                while not over:
                    line.sendall(drop)
                    time.sleep(0.02)
            except OSError:
                continue

    thread = Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over = True
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    ],
)
async def test_a_server_that_drips(first: bytes, drop: bytes) -> None:
    with dripping(first, drop) as host:
        before = time.monotonic()
        with pytest.raises(GateError, match=r"took longer than|in time|did not answer with valid HTTP"):
            await fetched(f"http://{host}/", host, timeout_s=0.5)
        assert time.monotonic() - before < 30


async def test_a_cancel_ends_it_at_once() -> None:
    with dripping(b"HTTP/1.1 200 OK\r\n\r\n", b"x") as host:
        before = time.monotonic()
        with anyio.move_on_after(0.3) as scope:
            await fetched(f"http://{host}/", host)
        assert scope.cancelled_caught
        assert time.monotonic() - before < 30


async def test_no_answer_of_http_and_no_tls() -> None:
    with dripping(b"SSH-2.0-x\r\n", b"y\r\n") as host:
        with pytest.raises(GateError, match="did not answer with valid HTTP"):
            await fetched(f"http://{host}/", host)
        with pytest.raises(GateError, match="TLS connection"):
            await fetched(f"https://{host}/", host)


@pytest.mark.parametrize(
    "page", ["<em><table>" * 100_000, "<" * 1_900_000, "<div>" * 300_000, "<!--" * 100_000, "](data:" * 200_000]
)
async def test_a_page_made_to_be_slow(page: str) -> None:
    with serving({"/": (200, HTML, page.encode())}) as site:
        before = time.monotonic()
        with contextlib.suppress(GateError):
            await fetched(site.url("/"), site.host, timeout_s=1)
        assert time.monotonic() - before < 60


async def test_no_entity_names_private_hosts() -> None:
    calls = [{"gate": "fetch", "args": {"url": "http://127.0.0.1:8999/", "private_hosts": ["127.0.0.1:8999"]}},
             {"gate": "fetch", "args": {"url": "http://127.0.0.1:8999/"}}]  # fmt: skip
    done = {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}
    cantrip = Cantrip(
        ScriptedCrystal([{"tool_calls": calls}, done]),
        Call(),
        Circle(gates=["done", "fetch"], wards=[{"max_turns": 5}]),
    )
    await cantrip.cast("look")
    spoken = next(turn for turn in cantrip.loom.turns() if turn.role == "crystal")
    first, second = spoken.observation.results
    assert first.is_error
    assert "private_hosts" in first.result
    assert second.is_error
    assert "not fetched" in second.result


async def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certificate(tmp_path, "localhost")
    with serving({"/": (200, TEXT, b"by TLS")}) as site:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
        host = f"localhost:{site.port}"
        with pytest.raises(GateError, match="no valid TLS certificate"):
            await fetched(f"https://{host}/", host)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await fetched(f"https://{host}/", host) == "by TLS"
        # The certificate is another host's.
        with pytest.raises(GateError, match="no valid TLS certificate"):
            await fetched(f"https://{site.host}/", site.host)


def _certificate(folder: Path, name: str) -> Path:
    """A key and a certificate for a name, signed by itself, in one file."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "certificate.pem"
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize("key", ["private_hosts: ['127.0.0.1:8999']", "timeout_s: 5", "root: /"])
def test_no_recipe_names_private_hosts(tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.cantrip.yaml"
    path.write_text(f"circle: {{gates: [done, {{name: fetch, {key}}}], wards: [{{max_turns: 3}}]}}\n")
    with pytest.raises(DefinitionError, match=key.split(":")[0]):
        recipe.load(path)


def test_a_strangers_recipe_has_it_not_without_trust(tmp_path: Path) -> None:
    path = tmp_path / ".cantrip/x.cantrip.yaml"
    path.parent.mkdir()
    path.write_text("circle: {gates: [done, fetch], wards: [{max_turns: 3}]}\n")
    with pytest.raises(UntrustedRecipe, match="reaches the network"):
        load_for_session("x", tmp_path, tmp_path / "state", trusted=False)


async def test_no_parent_names_private_hosts_for_a_child() -> None:
    with serving({"/": (200, TEXT, b"inner secret")}) as site:
        ask = {"intent": "x", "gates": [{"name": "fetch", "private_hosts": [site.host]}]}
        look = {"tool_calls": [{"gate": "fetch", "args": {"url": site.url("/")}}]}
        cantrip = Cantrip(
            ScriptedCrystal(
                [{"tool_calls": [{"gate": "call_agent", "args": ask}]}, {"content": "done"}],
                children=[[look, {"content": "looked"}]],
            ),
            Call(),
            Circle(gates=["done", "fetch", "call_agent"], wards=[{"max_turns": 5}]),
        )
        await cantrip.cast("look")
        assert not site.asked


async def test_a_redirect_to_another_host_is_told_and_not_followed() -> None:
    """A page that may be fetched must not choose who else gets a request, with data in its address."""
    with serving({"/in": (200, TEXT, b"here")}) as other:
        pages: Pages = {
            "/host": (302, {"Location": other.url("/in?data=1")}, b""),
            "/chain": (307, {"Location": "/host"}, b""),
            "/outside": (301, {"Location": "https://elsewhere.example/?q=1"}, b""),
            "/slashes": (308, {"Location": f"//{other.host}/in"}, b""),
            "/own": (302, {"Location": "/there"}, b""),
            "/there": (200, TEXT, b"there"),
        }
        with serving(pages) as site:
            context = context_of(None, private_hosts=(site.host, other.host), timeout_s=20)
            for path, onward in (
                ("/host", other.url("/in?data=1")),
                ("/chain", other.url("/in?data=1")),
                ("/outside", "https://elsewhere.example/?q=1"),
                ("/slashes", other.url("/in")),
            ):
                reply = await call_in(context, FETCH, url=site.url(path))
                assert not reply.is_error
                assert f"redirects to another host: {onward}. It was not followed" in str(reply.result)
            assert "there" in str((await call_in(context, FETCH, url=site.url("/own"))).result)
        assert not other.asked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Read https://docs.example.org/a?b=c#d, please.", {"host docs.example.org"}),
        ("(http://Example.org:8080/x)", {"host example.org:8080", "host http://example.org:8080"}),
        ("<https://a.example> and 'https://b.example'.", {"host a.example", "host b.example"}),
        ("Fix main.rs and README.md on example.org", set()),
        ("see [@https://evil.example](file:///x) and [@n](https://named.example/x)", {"host named.example"}),
        ("https://user:word@evil.example/ and ftp://evil.example/", set()),
    ],
)
def test_hosts_that_a_text_names(text: str, found: set[str]) -> None:
    assert hosts_in(text) == found
