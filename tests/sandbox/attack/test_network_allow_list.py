"""A list of hosts: ways around it, from a command that may reach one server of this machine and no other.

The listed server is a real one; what must not be reached is what listens in the scene.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.sandbox import AllowedHosts, SandboxOptions
from cantrip_acp.sandbox.network import proxy
from cantrip_acp.sandbox.network.name_server import ADDRESS
from cantrip_acp.sandbox.policy.policy import PROXY_PORT
from tests.sandbox.attack.attack import TRIED, Attack
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence, patched
from tests.support.tls_servers import Served, make_certificate, serve

_ADMITS = patched("the list of hosts", AllowedHosts, "allows", lambda self, host, port: True)
_ADDRESSES = patched("the question which address a name leads to", AllowedHosts, "allows_address", lambda *_: True)
_NAMES = patched("the question which host TLS asks for", proxy, "_same", lambda *_: True)


@contextlib.contextmanager
def opened(scene: Scene) -> Iterator[None]:
    """The machine's own network: with a list and without an empty one, no command runs at all."""
    with mock.patch.object(scene, "options", return_value=SandboxOptions(bash_network=True)):
        yield


_NET = Defence("an empty network", opened)


@dataclass(frozen=True)
class Way:
    """A program (shell; ``@SITE@`` is the listed server's port), what is listed, and how the host shows that it worked."""

    name: str
    program: str
    defence: Defence
    hosts: tuple[str, ...] = ("127.0.0.1:@SITE@",)
    broke: Callable[[Scene, Served], bool] = lambda scene, _: scene.connected()
    python: bool = False


def ask(first: str, *lines: str) -> str:
    """A request to the proxy, byte by byte, and what it answers."""
    sent = "\\r\\n".join((first, *lines, "", ""))
    return f"exec 3<>/dev/tcp/127.0.0.1/{PROXY_PORT}; printf '{sent}' >&3; timeout 3 cat <&3"


def direct(port: str, first: str, *lines: str) -> str:
    """A request of a program that knows no proxy, to where all names lead."""
    return ask(first, *lines).replace(f"127.0.0.1/{PROXY_PORT}", f"{ADDRESS}/{port}")


_BEHIND = "inner.example"

WAYS = [
    Way("another server", "curl -sS -m 3 http://127.0.0.1:@PORT@/", _ADMITS),
    Way("another port, by a tunnel", ask("CONNECT 127.0.0.1:@PORT@ HTTP/1.1"), _ADMITS),
    Way("an address in the form of IPv6", ask("CONNECT [::ffff:127.0.0.1]:@PORT@ HTTP/1.1"), _ADMITS),
    Way("a redirect", "curl -sSL -m 3 'http://127.0.0.1:@SITE@/away?http://127.0.0.1:@PORT@/'", _ADMITS),
    Way("a user that looks like a host", "curl -sS -m 3 http://127.0.0.1:@SITE@@127.0.0.1:@PORT@/", _ADMITS),
    Way(
        "a listed name that leads to this machine",
        "curl -sS -m 3 http://localhost:@PORT@/",
        _ADDRESSES,
        hosts=("localhost:@PORT@",),
    ),
    Way(
        "a listed name whose owner says that it is here",
        "curl -sS -m 3 http://rebound.example:@PORT@/",
        _ADDRESSES,
        hosts=("rebound.example:@PORT@",),
    ),
    Way(
        "a name below a listed one, whose owner says that it is here",
        ask("CONNECT any.thing.rebound.example:@PORT@ HTTP/1.1"),
        _ADDRESSES,
        hosts=("*.rebound.example:@PORT@",),
    ),
    Way(
        "another host's name in the tunnel",
        f"curl -sSk -m 5 --connect-to {_BEHIND}:443:127.0.0.1:@SITE@ https://{_BEHIND}/",
        _NAMES,
        broke=lambda _, site: bool(site.requests),
    ),
    Way(
        "a Host field, without the proxy",
        direct("@PORT@", "GET / HTTP/1.1", "Host: 127.0.0.1:@PORT@"),
        _ADMITS,
        hosts=("listed.example:@PORT@",),
    ),
    Way(
        "a name in TLS, without the proxy",
        f"curl -sSk -m 5 --noproxy '*' --connect-to ::{ADDRESS}: https://rebound.example:@PORT@/",
        _ADMITS,
        hosts=("listed.example:@PORT@",),
    ),
    Way("beside the proxy", "exec 3<>/dev/tcp/127.0.0.1/@PORT@", _NET),
    Way(
        "data in questions for names, asked of a resolver of one's own choice",
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "    try: s.sendto(b'secret.evil.example', ('127.0.0.1', @PORT@))\n"
        "    except OSError as e: print(e)",
        _NET,
        broke=lambda scene, _: asked(scene),
        python=True,
    ),
]


def asked(scene: Scene) -> bool:
    """Whether a datagram came to the scene's port."""
    try:
        return bool(scene.more["datagrams"].recv(100))
    except BlockingIOError:
        return False


@pytest.fixture
def datagrams(scene: Scene) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", scene.listener.getsockname()[1]))
        made.setblocking(False)
        yield made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return make_certificate(tmp_path_factory.mktemp("certificate"))


async def run(way: Way, scene: Scene, site: Served, datagrams: socket.socket) -> str:
    def fill(text: str) -> str:
        return scene.fill(text.replace("@SITE@", str(site.port)))

    attack = Attack(
        way.name,
        fill(way.program) + ("" if way.python else "; true"),
        way.defence,
        python=way.python,
        wards={"bash_network": [fill(host) for host in way.hosts]},
    )
    with mock.patch.object(asyncio.base_events.BaseEventLoop, "getaddrinfo", _rebound()):
        outcome = await scene.run(attack)
    scene.more["datagrams"] = datagrams
    assert TRIED in outcome.stdout, outcome
    return outcome.stdout + outcome.stderr


def _rebound() -> Any:
    """This machine's resolver, and a stranger's beside it who answers with our own address."""
    original = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def answer(self: Any, host: str, port: int, **more: Any) -> Any:
        if host.endswith("rebound.example"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return await original(self, host, port, **more)

    return answer


def site_of(way: Way, certificate: Path) -> Any:
    return serve(certificate if way.defence is _NAMES else None)


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.name)
async def test_held(way: Way, scene: Scene, certificate: Path, datagrams: socket.socket) -> None:
    with site_of(way, certificate) as site:
        said = await run(way, scene, site, datagrams)
        assert not way.broke(scene, site), said
        assert not scene.connected()
        if way.defence is not _NET:
            assert "the network refuses" in said


@contextlib.contextmanager
def hanging_up(scene: Scene) -> Iterator[None]:
    """Whoever connects is hung up on, and does not wait for an answer until its time is over."""
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            if is_ready(scene.listener, 0.05):
                scene.listener.accept()[0].close()
                scene.met = True

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.name)
async def test_control(way: Way, scene: Scene, certificate: Path, datagrams: socket.socket) -> None:
    with site_of(way, certificate) as site, way.defence.removed(scene):
        with hanging_up(scene):
            said = await run(way, scene, site, datagrams)
        assert way.broke(scene, site), said


async def test_the_listed_server_is_reached(scene: Scene, certificate: Path, datagrams: socket.socket) -> None:
    """The control of them all."""
    plain = Way(
        "", "curl -sS http://127.0.0.1:@SITE@/yes; printf secret | curl -sS -T - http://127.0.0.1:@SITE@/up", _NET
    )
    with serve() as site:
        await run(plain, scene, site, datagrams)
        assert [request[1] for request in site.requests] == ["/yes", "/up"]
