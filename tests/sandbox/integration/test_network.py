"""A list of hosts in `bash_network`: those are reached with real programs, and nothing else is, whatever is tried."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.sandbox import Outcome
from cantrip_acp.sandbox.launch import self_test
from cantrip_acp.sandbox.network import netns_listener
from cantrip_acp.sandbox.policy.policy import PROXY_PORT
from cantrip_acp.types.errors import SandboxError
from tests.sandbox.integration.conftest import GIT, Make
from tests.support.tls_servers import Served, make_certificate, serve


@pytest.fixture
def site() -> Iterator[Served]:
    with serve() as served:
        yield served


@pytest.fixture
def other() -> Iterator[Served]:
    with serve() as served:
        yield served


@pytest.fixture
def certificate(workspace: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = make_certificate(workspace.parent)
    # What commands see is the certificate without its key.
    (workspace / "ca.crt").write_text(made.read_text().partition("-----BEGIN PRIVATE KEY")[0])
    return made


def at(served: Served) -> str:
    return f"127.0.0.1:{served.port}"


async def run(make: Make, command: str, *hosts: str) -> Outcome:
    return await make(bash_network=list(hosts)).run(command)


async def raw(make: Make, sent: str, *hosts: str) -> str:
    """What the proxy answers to these bytes (as printf reads them)."""
    script = f"exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; printf '{sent}' >&3; timeout 5 cat <&3"
    return (await run(make, script, *hosts)).stdout


async def test_http_with_curl_python_and_git(workspace: Path, make: Make, site: Served, tmp_path: Path) -> None:
    outcome = await run(
        make,
        f"curl -sS http://{at(site)}/a?b=c; curl -sS --data-binary @/etc/passwd http://{at(site)}/post; "
        f"head -c 300000 /dev/zero | curl -sS -T - http://{at(site)}/chunked; "
        f"curl -sS http://{at(site)}/large | wc -c; curl -sSI http://{at(site)}/head | head -1; "
        f"python3 -c \"import urllib.request as u; print(u.urlopen('http://{at(site)}/python').read().decode())\"",
        at(site),
    )
    assert outcome.exit_code == 0, outcome
    assert outcome.stdout.splitlines()[0] == "GET /a?b=c 0"
    assert "PUT /chunked 300000" in outcome.stdout
    assert "5000000" in outcome.stdout
    assert "200 OK" in outcome.stdout
    assert "GET /python 0" in outcome.stdout
    assert outcome.stderr == ""
    assert {request[2] for request in site.requests} == {at(site)}

    env = {**os.environ, **GIT}
    source, bare = tmp_path / "source", tmp_path / "served" / "project.git"
    source.mkdir()
    (source / "file").write_text("cloned\n")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["commit", "-q", "-m", "x"],
        ["clone", "-q", "--bare", ".", str(bare)],
    ):
        subprocess.run(["git", *words], cwd=source, env=env, check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, env=env, check=True)
    with serve(folder=bare.parent) as files:
        command = f"git clone -q http://{at(files)}/project.git /tmp/c && cat /tmp/c/file"
        assert (await run(make, command, at(files))).stdout == "cloned\n"


async def test_https_end_to_end(make: Make, certificate: Path) -> None:
    with serve(certificate) as site:
        hosts = (f"LocalHost.:{site.port}", at(site))
        outcome = await run(
            make,
            f"curl -sS --cacert ca.crt https://localhost:{site.port}/one; "
            f"curl -sS --cacert ca.crt https://127.0.0.1:{site.port}/two; curl -sS https://localhost:{site.port}/three; "
            f'SSL_CERT_FILE=ca.crt python3 -c "import urllib.request as u; '
            f"print(u.urlopen('https://localhost:{site.port}/four').read().decode())\"",
            *hosts,
        )
        assert "GET /one 0\nGET /two 0\nGET /four 0\n" in outcome.stdout, outcome
        # The proxy is no man in the middle: what the certificate does not vouch for, the client itself refuses.
        assert "certificate" in outcome.stderr
        assert [r[1] for r in site.requests] == ["/one", "/two", "/four"]


async def test_others_are_refused_clearly_and_once(make: Make, site: Served, other: Served) -> None:
    outcome = await run(
        make,
        f"for i in 1 2 3; do curl -sS http://{at(other)}/; done; curl -sS -o /dev/null -w '%{{http_code}}' http://x.example/; "
        f"curl -sS https://secret.example/; curl -sS --noproxy x http://localhost:{site.port}/; true",
        at(site),
    )
    assert other.requests == []
    assert site.requests == []
    assert outcome.stdout.count(f"cantrip: the network refuses {at(other)}") == 3
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("cantrip:")]
    assert len(lines) == len(set(lines)) == 4
    assert f"allowed: {at(site)}" in lines[0]
    assert "bash_network" in lines[0]
    assert "secret.example:443" in outcome.stderr
    assert "403" in outcome.stdout


async def test_an_address_that_is_not_public_must_be_listed_itself(make: Make, site: Served) -> None:
    outcome = await run(make, f"curl -sS http://localhost:{site.port}/", f"localhost:{site.port}")
    assert "not an address of the internet" in outcome.stdout
    assert site.requests == []
    both = await run(make, f"curl -sS http://localhost:{site.port}/", f"localhost:{site.port}", at(site))
    assert both.stdout == "GET / 0\n"
    # And an address does not stand for its names, nor a port for others.
    assert "403" in await raw(make, f"CONNECT 127.0.0.1:{site.port} HTTP/1.1\\r\\n\\r\\n", f"localhost:{site.port}")
    assert "403" in await raw(make, f"CONNECT 127.0.0.1:{site.port} HTTP/1.1\\r\\n\\r\\n", "127.0.0.1")


async def test_nothing_leaves_beside_the_proxy(make: Make, site: Served) -> None:
    program = (
        "import socket\n"
        f"for a in (('127.0.0.1', {site.port}), ('1.1.1.1', 53), ('169.254.169.254', 80)):\n"
        "    try: socket.create_connection(a, 2); print('connected', a)\n"
        "    except OSError: print('no')\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "try: u.sendto(b'x', ('8.8.8.8', 53)); print('sent')\n"
        "except OSError: print('no')\n"
        "try: socket.getaddrinfo('example.org', 80); print('found')\n"
        "except OSError: print('no')\n"
        "try: socket.socket(socket.AF_UNIX).connect('/run/x'); print('unix')\n"
        "except OSError: print('no')\n"
    )
    outcome = await run(make, f"python3 - <<'EOF'\n{program}EOF\nls /proc/self/fd; cat /proc/net/dev | wc -l", at(site))
    assert outcome.stdout.split()[:6] == ["no"] * 6, outcome
    assert outcome.stdout.split()[-1] == "3"
    assert site.requests == []


async def test_a_redirect_is_the_clients_to_follow(make: Make, site: Served, other: Served) -> None:
    outcome = await run(make, f"curl -sSL 'http://{at(site)}/away?http://{at(other)}/x'", at(site))
    assert f"refuses {at(other)}" in outcome.stdout
    assert other.requests == []
    assert len(site.requests) == 1


HOSTILE = {
    "another Host": "GET http://{site}/ HTTP/1.1\\r\\nHost: {other}\\r\\n\\r\\n",
    "two Hosts": "GET http://{site}/ HTTP/1.1\\r\\nHost: {site}\\r\\nHost: {other}\\r\\n\\r\\n",
    "a user that looks like a host": "GET http://{site}@{other}/ HTTP/1.1\\r\\n\\r\\n",
    "a host before a backslash": "GET http://{other}\\\\@{site}/ HTTP/1.1\\r\\n\\r\\n",
    "two lengths": "POST http://{site}/ HTTP/1.1\\r\\nContent-Length: 0\\r\\nContent-Length: 9\\r\\n\\r\\n",
    "length and chunks": "POST http://{site}/ HTTP/1.1\\r\\nContent-Length: 9\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n",
    "odd chunks": "POST http://{site}/ HTTP/1.1\\r\\nTransfer-Encoding: xchunked\\r\\n\\r\\n",
    "a space before the colon": "GET http://{site}/ HTTP/1.1\\r\\nHost : {other}\\r\\n\\r\\n",
    "a folded line": "GET http://{site}/ HTTP/1.1\\r\\nA: b\\r\\n Host: {other}\\r\\n\\r\\n",
    "a bare line feed": "GET http://{site}/ HTTP/1.1\\r\\nA: b\\nHost: {other}\\r\\n\\r\\n",
    "only a path": "GET / HTTP/1.1\\r\\nHost: {site}\\r\\n\\r\\n",
    "another scheme": "GET ftp://{site}/ HTTP/1.1\\r\\n\\r\\n",
    "a newer version": "GET http://{site}/ HTTP/2.0\\r\\n\\r\\n",
    "no port": "CONNECT 127.0.0.1 HTTP/1.1\\r\\n\\r\\n",
    "a number for an address": "CONNECT 2130706433:{port} HTTP/1.1\\r\\n\\r\\n",
    "a short address": "CONNECT 127.1:{port} HTTP/1.1\\r\\n\\r\\n",
    "not HTTP": "\\001\\002\\003\\r\\n\\r\\n",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_requests(name: str, make: Make, site: Served, other: Served) -> None:
    sent = HOSTILE[name].format(site=at(site), other=at(other), port=site.port)
    answer = await raw(make, sent, at(site))
    assert answer.startswith("HTTP/1.1 40"), answer
    assert site.requests == []
    assert other.requests == []


async def test_nothing_is_smuggled_behind_a_request(make: Make, site: Served) -> None:
    first = f"GET http://{at(site)}/first HTTP/1.1\\r\\nConnection: keep-alive\\r\\n\\r\\n"
    second = f"GET http://{at(site)}/second HTTP/1.1\\r\\nHost: inner.example\\r\\n\\r\\n"
    answer = await raw(make, first + second, at(site))
    assert "GET /first 0" in answer
    assert [r[1] for r in site.requests] == ["/first"]
    tunnel = f"CONNECT {at(site)} HTTP/1.1\\r\\n\\r\\n"
    plain = f"GET /tunnelled HTTP/1.1\\r\\nHost: {at(site)}\\r\\n\\r\\n"
    assert "GET /tunnelled 0" in await raw(make, tunnel + plain + second, at(site))
    assert "400 Bad" in await raw(make, tunnel + "GET / HTTP/1.1\\r\\nHost: inner.example\\r\\n\\r\\n", at(site))
    assert [r[1] for r in site.requests] == ["/first", "/tunnelled"]


@pytest.mark.parametrize("kind", ["an answer", "an answer in a tunnel", "a refusal"])
async def test_the_answer_outlives_what_is_sent_behind_it(kind: str, make: Make, site: Served) -> None:
    """Who is still writing when the answer comes reads it all the same: no reset, no broken pipe."""
    first, answer = {
        "an answer": (f"GET http://{at(site)}/first HTTP/1.1\\r\\n\\r\\n", "GET /first 0"),
        "an answer in a tunnel": (
            f"CONNECT {at(site)} HTTP/1.1\\r\\n\\r\\nGET /first HTTP/1.1\\r\\nHost: {at(site)}\\r\\n\\r\\n",
            "GET /first 0",
        ),
        "a refusal": ("GET http://inner.example/ HTTP/1.1\\r\\n\\r\\n", "403 inner.example:80 is not in bash_network"),
    }[kind]
    outcome = await run(
        make,
        f"exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; printf '{first}' >&3; sleep 0.3; "
        "for i in 1 2 3; do printf %0300000d 0 >&3; sleep 0.1; done; timeout 5 cat <&3",
        at(site),
    )
    assert answer in outcome.stdout, outcome
    assert outcome.exit_code == 0, outcome
    assert "reset" not in outcome.stderr + outcome.stdout, outcome
    assert [r[1] for r in site.requests] == ["/first"] * (kind != "a refusal")


async def test_a_client_that_stays_is_left_in_the_end(make: Make, site: Served) -> None:
    outcome = await run(
        make,
        f"exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; printf 'GET http://{at(site)}/first HTTP/1.1\\r\\n\\r\\n' >&3; "
        "cat <&3; trap '' PIPE; SECONDS=0; while [ $SECONDS -lt 30 ] && echo more >&3; do sleep 0.1; done 2>/dev/null; "
        "echo $SECONDS",
        at(site),
    )
    assert 1 <= int(outcome.stdout.split()[-1]) < 20, outcome


async def test_a_tunnel_that_asks_for_another_name(make: Make, certificate: Path) -> None:
    with serve(certificate) as site:
        outcome = await run(
            make,
            f"curl -sSk --connect-to inner.example:443:localhost:{site.port} https://inner.example/; true",
            f"localhost:{site.port}",
            at(site),
        )
        assert site.requests == []
        assert "TLS asks for 'inner.example'" in outcome.stderr


async def test_heads_without_end_and_floods(make: Make, site: Served) -> None:
    outcome = await run(
        make,
        f"(printf 'GET http://{at(site)}/ HTTP/1.1\\r\\nA: '; head -c 200000 /dev/zero | tr '\\0' a) "
        f"| timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; cat >&3; head -1 <&3' 2>/dev/null; "
        f"for i in $(seq 300); do exec {{fd}}<>/dev/tcp/127.0.0.1/{PROXY_PORT} || break; done; sleep 0.2; "
        f"curl -sS -m 5 http://{at(site)}/after; true",
        at(site),
    )
    assert "cantrip: more than 128 connections at once" in outcome.stdout
    # The next command has a proxy of its own.
    assert (await run(make, f"curl -sS http://{at(site)}/next", at(site))).stdout == "GET /next 0\n"


async def test_open_connections_end_with_the_command(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.perf_counter()
        command = f"curl -sS http://127.0.0.1:{port}/ & sleep 0.7"
        outcome = await run(make, command, f"127.0.0.1:{port}")
        assert outcome.exit_code == 0
        assert time.perf_counter() - began < 60
        accepted, _ = silent.accept()
        accepted.settimeout(60)
        with accepted:
            assert accepted.recv(4096).startswith(b"GET / HTTP/1.1\r\n")
            try:
                assert accepted.recv(4096) == b""
            except ConnectionResetError:
                pass
    assert not [fd for fd in os.listdir("/proc/self/fd") if _is_listener(int(fd), PROXY_PORT)]


def _is_listener(fd: int, port: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            return bool(found.getsockname()[1] == port)
    except (OSError, IndexError, TypeError):
        return False


async def test_without_a_door_no_command_runs(
    workspace: Path, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("")
    monkeypatch.setattr(netns_listener, "_PROGRAM", str(broken))
    monkeypatch.setattr(netns_listener, "_helper", netns_listener._Helper())
    # Without a list there is nothing to let through, so the command runs without the proxy.
    assert (await make(bash_network=[]).run("echo $HTTP_PROXY; echo ran")).stdout.endswith("ran\n")
    with pytest.raises(SandboxError, match=r"cannot (listen|be entered)"):
        await make(writable=True, bash_network=["example.org"]).run("touch ran")
    assert not (workspace / "ran").exists()


async def test_what_doctor_tries() -> None:
    await self_test.check_network_list()


async def test_programs_serve_themselves_inside(make: Make) -> None:
    program = (
        "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & "
        "curl -sS --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/"
    )
    assert (await run(make, program, "example.org")).stdout == "200"
