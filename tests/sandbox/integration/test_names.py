"""Programs that know no proxy: names of allowed hosts lead through the filtering proxy, and others fail at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.sandbox import Outcome
from cantrip_acp.sandbox.network import name_server
from cantrip_acp.sandbox.network.hosts import AllowedHosts, is_public
from cantrip_acp.sandbox.network.proxy import Proxy
from tests.sandbox.integration.conftest import Make
from tests.support.tls_servers import Served, make_certificate, serve

WITHOUT_PROXY = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy NODE_USE_ENV_PROXY; "
SITE = "site.corp.example"
JAVA = """
import java.net.*; import java.io.*; import java.security.*; import javax.net.ssl.*;
public class Get {
  public static void main(String[] a) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream in = new FileInputStream("ca.crt")) {
      store.setCertificateEntry("ca", java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(in));
    }
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    HttpsURLConnection.setDefaultSSLSocketFactory(context.getSocketFactory());
    System.out.print(new String(new URL(a[0]).openStream().readAllBytes()));
  }
}
"""
PYTHON = (
    "import socket, ssl, sys; c = ssl.create_default_context(cafile='ca.crt'); "
    "s = c.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2]))), server_hostname=sys.argv[1]); "
    "s.sendall(b'GET /python HTTP/1.1\\r\\nConnection: close\\r\\nHost: ' + sys.argv[1].encode() + b'\\r\\n\\r\\n'); "
    "print(s.makefile().read())"
)
CLIENTS = {
    "curl": "curl -sS --noproxy '*' --cacert ca.crt https://@SITE@/path",
    "node": "NODE_EXTRA_CA_CERTS=ca.crt node -e \"fetch('https://@SITE@/path').then(r => r.text()).then(console.log)\"",
    "java": "java Get.java https://@SITE@/path",
    "python3": f'python3 -c "{PYTHON}" $(echo @SITE@ | tr : " ")',
    "openssl": "(printf 'GET /path HTTP/1.1\\r\\nHost: @SITE@\\r\\n\\r\\n'; sleep 1) "
    "| openssl s_client -quiet -CAfile ca.crt -verify_return_error -connect @SITE@",
    "wget": "wget -qO- --no-proxy --ca-certificate=ca.crt https://@SITE@/path",
    "git": "GIT_SSL_CAINFO=ca.crt git ls-remote https://@SITE@/project.git",
    "go": "SSL_CERT_FILE=ca.crt go run get.go https://@SITE@/path",
}


@pytest.fixture
def site(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A TLS server of this machine that names below .example lead to, at every port, as if it were on the internet."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = make_certificate(workspace.parent)
    (workspace / "ca.crt").write_text(made.read_text().partition("-----BEGIN PRIVATE KEY")[0])
    with serve(made) as served:
        lead_here(monkeypatch, served)
        yield served


def lead_here(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    found, opened = asyncio.BaseEventLoop.getaddrinfo, asyncio.open_connection

    async def getaddrinfo(self: asyncio.BaseEventLoop, host: Any, port: Any, **more: Any) -> Any:
        return await found(self, "127.0.0.1" if str(host).endswith(".example") else host, port, **more)

    async def open_connection(host: str, port: int, **more: Any) -> Any:
        return await opened("127.0.0.1", served.port, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr("cantrip_acp.sandbox.network.hosts.is_public", lambda address: True)


async def run(make: Make, command: str, *hosts: str) -> Outcome:
    return await make(bash_network=list(hosts)).run(WITHOUT_PROXY + command)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("listed", [SITE, "*.example"])
async def test_clients_without_a_proxy(client: str, listed: str, workspace: Path, make: Make, site: Served) -> None:
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    (workspace / "Get.java").write_text(JAVA)
    command = CLIENTS[client].replace("@SITE@", f"{SITE}:443" if client in ("python3", "openssl") else SITE)
    outcome = await run(make, command, "*.corp.example" if listed != SITE else listed)
    assert site.requests, outcome
    if client != "git":
        assert "GET /p" in outcome.stdout, outcome
    assert "cantrip:" not in outcome.stderr


async def test_plain_http_and_a_listed_port(make: Make, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as served:
        lead_here(monkeypatch, served)
        outcome = await run(
            make,
            f"curl -sS http://{SITE}/a; curl -sS http://{SITE}:8001/b; printf x | curl -sS -T - http://{SITE}/c",
            SITE, f"{SITE}:8001",
        )  # fmt: skip
        assert outcome.stdout == "GET /a 0\nGET /b 0\nPUT /c 1\n", outcome
        assert [request[2] for request in served.requests] == [SITE, f"{SITE}:8001", SITE]


async def test_what_is_not_allowed_fails_at_once(make: Make, site: Served) -> None:
    began = time.monotonic()
    outcome = await run(
        make,
        "curl -sS https://other.example/; echo $?; getent hosts x.invalid router; "
        f"curl -sSk --connect-to ::{name_server.ADDRESS}: https://hidden.example/; echo $?; "
        f"curl -sSk --connect-to ::{name_server.ADDRESS}: http://hidden.example/; "
        f"curl -sSk https://{name_server.ADDRESS}/; "
        f"curl -sS http://{SITE}:22/",
        SITE,
    )  # fmt: skip
    assert time.monotonic() - began < 15
    assert outcome.stdout.splitlines()[0] == "6"
    assert "the network refuses other.example: the ward bash_network does not list it" in outcome.stderr
    # TLS cannot show a text, so its alert says that the access is denied, and the command's output says why.
    assert "access denied" in outcome.stderr
    assert outcome.stderr.count("the network refuses hidden.example:443") == 1
    assert "the network refuses hidden.example:80" in outcome.stdout
    assert "names no host" in outcome.stderr
    assert f"Failed to connect to {SITE} port 22" in outcome.stderr
    assert "invalid" not in outcome.stderr
    assert site.requests == []


async def test_a_host_that_is_not_listed_is_asked_about(make: Make, site: Served) -> None:
    asked = []

    async def ask(host: str, port: int, command: str, program: str, address: str) -> str:
        asked.append((host, port, program))
        return "" if host.startswith("yes") else "the user refused it"

    command = "curl -sS --noproxy '*' --cacert ca.crt https://yes.corp.example/a https://no.corp.example/b"
    outcome = await make(bash_network=[]).run(WITHOUT_PROXY + command, ask=ask)
    assert outcome.stdout == "GET /a 0\n", outcome
    assert "the user refused it" in outcome.stderr
    assert asked == [("yes.corp.example", 443, "curl"), ("no.corp.example", 443, "curl")]


@pytest.mark.parametrize(
    ("listed", "answers", "reached", "said"),
    [
        (
            (SITE,),
            None,
            False,
            "which is in a private network, and the ward bash_network does not say so (private: true)",
        ),
        (({"host": SITE, "private": True},), None, True, ""),
        ((SITE,), {"10.1.2.3": ""}, True, ""),
        ((SITE,), {"10.1.2.3": "the user refused it"}, False, "the user refused it"),
        ((), {"": "", "10.1.2.3": ""}, True, ""),
        ((), {"": "no"}, False, "does not list it (allowed: none), and no"),
    ],
)
async def test_a_host_in_a_private_network(
    listed: tuple[Any, ...],
    answers: dict[str, str] | None,
    reached: bool,
    said: str,
    make: Make,
    site: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def getaddrinfo(self: Any, host: Any, port: int, **more: Any) -> Any:
        return [(2, 1, 6, "", ("10.1.2.3" if host == SITE else "127.0.0.1", port))]

    async def ask(host: str, port: int, command: str, program: str, address: str) -> str:
        assert answers is not None
        asked.append(address)
        return answers[address]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("cantrip_acp.sandbox.network.hosts.is_public", is_public)
    command = f"curl -sS --cacert ca.crt https://{SITE}/a; curl -sS --cacert ca.crt https://{SITE}/a"
    outcome = await make(bash_network=list(listed)).run(command, ask=None if answers is None else ask)
    assert outcome.stdout == ("GET /a 0\n" * 2 if reached else ""), outcome
    assert said in outcome.stderr
    assert asked == list(answers or {})


async def test_commands_that_share_a_network_have_names_of_their_own(make: Make, site: Served) -> None:
    """Each command's questions and refusals are its own, while another one runs beside it."""
    first, second = make(bash_network=[]), make(bash_network=[])
    await first.share_network(0)
    second.join(first)
    asked: dict[str, list[str]] = {"first": [], "second": []}
    begun = asyncio.Event()

    def asker(name: str) -> Any:
        async def ask(host: str, port: int, command: str, program: str, address: str) -> str:
            asked[name].append(host)
            begun.set()
            return "no" if host.startswith("no") else ""

        return ask

    get = "curl -sS --noproxy '*' --cacert ca.crt https://"
    async with asyncio.TaskGroup() as group:
        until = "until test -e /tmp/never; do sleep 0.05; done"
        running: list[Any] = []
        one = group.create_task(
            first.run(f"{WITHOUT_PROXY}{get}a.corp.example/a; {until}", ask=asker("first"), started=running.append)
        )
        await begun.wait()
        two = await second.run(f"{WITHOUT_PROXY}{get}b.corp.example/b; {get}no.corp.example/c", ask=asker("second"))
        running[0].end("enough")
    assert two.stdout == "GET /b 0\n", two
    assert "no.corp.example:443" in two.stderr
    assert "no.corp.example" not in one.result().stderr
    assert asked == {"first": ["a.corp.example"], "second": ["b.corp.example", "no.corp.example"]}


async def test_names_of_this_machine_and_ports_of_the_command_stay(make: Make, site: Served) -> None:
    outcome = await run(
        make,
        "getent hosts localhost sandbox; python3 - <<'EOF'\n"
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 8443)); print(socket.create_connection(('localhost', 8443)).getpeername())\n"
        "print(socket.socket(socket.AF_INET6).connect_ex(('::1', 443)) > 0, socket.socket().connect_ex(('127.0.0.1', 443)) > 0)\n"
        "EOF",
        f"{SITE}:8443", SITE,
    )  # fmt: skip
    assert "127.0.0.1" in outcome.stdout or "::1" in outcome.stdout
    assert "('127.0.0.1', 8443)\nTrue True\n" in outcome.stdout, outcome


async def test_a_flood_of_questions_ends(make: Make, site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "MOST_QUESTIONS", 50)
    program = (
        "import socket\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "u.connect(('127.0.0.1', 53))\n"
        "u.settimeout(1)\n"
        "count = 0\n"
        "q = b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4site\\4corp\\7example\\0\\0\\1\\0\\1'\n"
        "while True:\n"
        "    try: u.send(q); u.recv(512); count += 1\n"
        "    except TimeoutError: pass\n"
        "    except OSError as e: print(count, type(e).__name__); break\n"
    )
    outcome = await run(make, f"python3 - <<'EOF'\n{program}EOF", SITE)
    assert outcome.stdout == "50 ConnectionRefusedError\n", outcome


def query(name: bytes, kind: int = 1, flags: int = 0x0100, questions: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b".")) + b"\0"
    head = b"\x12\x34" + flags.to_bytes(2) + questions.to_bytes(2) + bytes(6)
    return head + labels + kind.to_bytes(2) + b"\0\1"


@pytest.mark.parametrize(
    ("sent", "code", "answers"),
    [
        (query(b"a.example"), 0, 1),
        (query(b"A.eXample"), 0, 1),
        (query(b"a.example") + b"\0\0\x29\x10\0\0\0\0\0\0\0", 0, 1),
        (query(b"a.example", kind=28), 0, 0),
        (query(b"b.example"), 3, 0),
        (query(b"a\xff.example"), 3, 0),
        (query(b"a b.example"), 3, 0),
        (query(b"x" * 63 + b".example"), 3, 0),
        (query(b"a.example", flags=0x8100), None, 0),
        (query(b"a.example", questions=2), None, 0),
        (query(b"a.example")[:20], None, 0),
        (query(b"a.example")[:-1], None, 0),
        (b"\x12\x34\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", None, 0),
        (b"", None, 0),
    ],
)
def test_answers(sent: bytes, code: int | None, answers: int) -> None:
    found = name_server.answer(sent, lambda name: name == "a.example")
    if code is None:
        assert found is None
        return
    assert found is not None
    assert (found[:2], found[3] & 15, found[7]) == (b"\x12\x34", code, answers)
    assert found.endswith(bytes([127, 77, 0, 1])) == bool(answers)


@pytest.mark.parametrize("steps", range(6))
async def test_a_proxy_that_ends_while_it_starts_watches_no_descriptor(steps: int) -> None:
    """The next file with its number must be watched again. A short command ends so."""
    loop = asyncio.get_running_loop()
    made = [socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)]
    made[1].bind(("127.0.0.1", 0))
    for each in made:
        each.setblocking(False)
    numbers = [each.fileno() for each in made]
    task = asyncio.create_task(Proxy(AllowedHosts.of(()), lambda line: None).serve(made))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    for each in made:
        each.close()
    for number in numbers:
        low = os.pipe()
        reading, writing = (fcntl.fcntl(each, fcntl.F_DUPFD, 200) for each in low)
        for descriptor in low:
            os.close(descriptor)
        os.dup2(reading, number)
        readable = asyncio.Event()
        loop.add_reader(number, readable.set)
        os.write(writing, b"x")
        async with asyncio.timeout(10):
            await readable.wait()
        loop.remove_reader(number)
        for descriptor in (reading, writing, number):
            os.close(descriptor)
