"""The proxy of the user's environment: requests go through it, its password stays outside, and its errors are clear."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.sandbox.network import upstream
from cantrip_acp.sandbox.network.upstream import Upstream, UpstreamError
from tests.sandbox.integration.conftest import Make
from tests.support.forward_proxy import ForwardProxy, forward_proxy
from tests.support.tls_servers import Served, make_certificate, serve

SITE = "site.corp.example"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def site(workspace: Path) -> Iterator[Served]:
    made = make_certificate(workspace.parent)
    (workspace / "ca.crt").write_text(made.read_text().partition("-----BEGIN PRIVATE KEY")[0])
    with serve(made) as served:
        yield served


@pytest.fixture
def proxy(site: Served) -> Iterator[ForwardProxy]:
    with forward_proxy(site.port) as found:
        yield found


GET = f"curl -sS -m 20 --cacert ca.crt https://{SITE}/a; "
DIRECT = f"unset HTTPS_PROXY https_proxy ALL_PROXY all_proxy; {GET}"


@pytest.mark.parametrize("command", [GET, DIRECT], ids=["with a proxy", "without"])
async def test_tls_goes_through_it(
    command: str, make: Make, site: Served, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name is unknown on this machine, as names of the internet are behind such a proxy.
    proxy.login = "Basic " + base64.b64encode(b"me:p@ss-word").decode()
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss-word@127.0.0.1:{proxy.port}")
    outcome = await make(bash_network=[SITE]).run(f"{command} env; cat /proc/self/environ")
    assert "GET /a 0" in outcome.stdout, outcome
    assert proxy.requests == [f"CONNECT {SITE}:443 HTTP/1.1"]
    assert "ss-word" not in outcome.stdout + outcome.stderr
    assert str(proxy.port) not in outcome.stdout


async def test_plain_http_goes_through_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as served, forward_proxy(served.port) as proxy:
        monkeypatch.setenv("all_proxy", f"http://me:word@127.0.0.1:{proxy.port}")
        proxy.login = "Basic " + base64.b64encode(b"me:word").decode()
        outcome = await make(bash_network=[SITE]).run(
            f"curl -sS http://{SITE}/a; printf xyz | curl -sS -T - http://{SITE}/b"
        )
        assert outcome.stdout == "GET /a 0\nPUT /b 3\n", outcome
        assert proxy.requests == [f"GET http://{SITE}/a HTTP/1.1", f"PUT http://{SITE}/b HTTP/1.1"]
        assert [request[2] for request in served.requests] == [SITE, SITE]


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("down", "cannot be reached: "),
        ("silent", "did not open a tunnel"),
        ("wants a login", "wants a user and a password (407)"),
        ("another login", "refuses the user and password (407)"),
        ("forbids", "refuses it (403)"),
        ("no proxy", "only http:// and https:// can be used"),
    ],
)
async def test_errors_name_the_proxy_and_no_password(
    case: str, said: str, scheme: str, make: Make, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "http" and case in ("silent", "forbids"):
        pytest.skip("for plain HTTP the proxy's answer is the answer")
    login = "" if case == "wants a login" else "me:hidden-word@"
    port = proxy.port
    if case == "down":
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
    proxy.login = "Basic other" if "login" in case else ""
    proxy.status = {"silent": 0, "forbids": 403}.get(case)
    monkeypatch.setattr(upstream, "ANSWER_TIMEOUT", 1)
    monkeypatch.setenv(f"{scheme}_proxy", f"{'socks5' if case == 'no proxy' else 'http'}://{login}127.0.0.1:{port}")
    outcome = await make(bash_network=[SITE]).run(f"curl -sS -m 20 {scheme}://{SITE}/")
    assert said in outcome.stderr, outcome
    assert f"{scheme.upper()}_PROXY in the environment of Cantrip" in outcome.stderr
    assert "hidden-word" not in outcome.stderr + outcome.stdout


async def test_what_is_not_allowed_does_not_reach_it(
    make: Make, site: Served, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "direct.example")
    command = "; ".join(
        f"curl -sS -m 5 https://{host}/"
        for host in ("other.example", "localhost", "169.254.169.254", "127.0.0.1", "direct.example")
    )
    outcome = await make(bash_network=["localhost", "direct.example", SITE]).run(f"unset NO_PROXY no_proxy; {command}")
    assert proxy.requests == []
    assert "leads to 127.0.0.1" in outcome.stderr or "leads to ::1" in outcome.stderr
    assert "direct.example cannot be found" in outcome.stderr


@pytest.mark.parametrize(
    ("without", "host", "direct"),
    [
        ("", "a.corp", False),
        ("*", "a.corp", True),
        ("corp", "a.corp", True),
        (".corp", "a.corp", True),
        ("*.corp", "a.corp", True),
        ("a.corp:443", "a.corp", True),
        ("a.corp:8443", "a.corp", False),
        ("orp, x", "a.corp", False),
        ("10.0.0.0/8,x", "10.1.2.3", True),
        ("10.0.0.0/8,x", "11.1.2.3", False),
    ],
)
def test_no_proxy(without: str, host: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "user:word@proxy.corp:3128")
    monkeypatch.setenv("NO_PROXY", without)
    found = Upstream.of(host, 443, plain=False)
    assert (found is None) == direct
    assert Upstream.of(host, 80, plain=True) is None
    assert "word" not in f"{found} {found!r}"


@pytest.mark.parametrize(
    "address", ["http://me:se[cret@x:1", "http://me:secret@x:port", "http://", "ftp://me:secret@x"]
)
def test_no_error_shows_a_password(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address)
    with pytest.raises(UpstreamError) as caught:
        Upstream.of("a.corp", 443, plain=False)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
