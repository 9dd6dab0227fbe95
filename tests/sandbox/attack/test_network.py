"""Network and sockets: nothing listens, connects or sends, by any family that the kernel has."""

from __future__ import annotations

import pytest

from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import calls, option, unseen

_NET = option("--unshare-net")
_SOCKET = calls("socket")
_OPEN = {"bash_network": True}
"""With the network on, as a ward may have it: what stays forbidden then."""


def made(name: str, family: int, kind: int, protocol: int = 0, outer: str | None = None) -> Attack:
    program = f"""
try:
    socket.socket({family}, {kind}, {protocol}); broke("made")
except OSError as error: print(error)
"""
    return Attack(f"a socket: {name}", program, _SOCKET, python=True, wards=_OPEN, outer=outer)


_NO_FAMILY = "this kernel does not have that family, or asks for capabilities that were dropped"

ATTACKS = [
    Attack("connect to this machine", "exec 3<>/dev/tcp/127.0.0.1/@PORT@ && broke connected", _NET, host=Scene.connected),
    Attack(
        "connect by an address of IPv6",
        "exec 3<>'/dev/tcp/::ffff:127.0.0.1/@PORT@' && broke connected",
        _NET,
        host=Scene.connected,
    ),
    Attack(
        "send a datagram",
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "    try: s.connect(('192.0.2.1', 9)); broke('there is a route')\n"
        "    except OSError as e: print(e)",
        _NET,
        python=True,
        outer="this machine has no route to anywhere",
    ),
    Attack(
        "see the machine's interfaces",
        "[ $(grep -c : /proc/net/dev) -gt 1 ] && broke sees",
        _NET,
        outer="this machine has no interface but its loopback",
    ),
    Attack(
        "see who listens on the machine",
        "grep -qi \":$(printf %04X @PORT@) \" /proc/net/tcp && broke sees",
        _NET,
    ),
    Attack(
        "an abstract socket of the machine",
        "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s: s.sendto(b'x', '\\0@ABSTRACT@'); broke('sent')",
        _SOCKET,
        python=True,
        wards=_OPEN,
        host=Scene.connected,
    ),
    Attack(
        "an abstract socket, without the network",
        "try:\n"
        "    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s: s.connect('\\0x' + str(os.getpid()))\n"
        "except PermissionError as e: print(e)\n"
        "except OSError as e: broke('asked the kernel', e)",
        _SOCKET,
        python=True,
    ),
    Attack(
        "a service's socket that is shown",
        "with socket.socket(socket.AF_UNIX) as s: s.connect('../service.sock' if os.path.exists('../service.sock') else 's'); "
        "broke('connected')",
        _SOCKET,
        python=True,
        wards=_OPEN,
        prepare=lambda scene: _serve(scene),
        host=Scene.connected,
    ),
    Attack(
        "a service's socket by its path",
        "ls -l @UNIX@ && broke sees",
        unseen("@BESIDE@"),
    ),
    Attack(
        "a pair of datagram sockets that sends anywhere",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'x', '\\0@ABSTRACT@'); broke('sent')",
        calls("socketpair"),
        python=True,
        wards=_OPEN,
        host=Scene.connected,
    ),
    made("datagrams of the machine", 1, 2),
    made("packets", 17, 3, 3, _NO_FAMILY),
    made("raw IP", 2, 3, 1, _NO_FAMILY),
    made("SCTP", 2, 1, 132, _NO_FAMILY),
    made("UDP-Lite", 2, 2, 136, _NO_FAMILY),
    made("MPTCP", 2, 1, 262, _NO_FAMILY),
    made("vsock", 40, 1, 0, _NO_FAMILY),
    made("the kernel's cryptography", 38, 5, 0, _NO_FAMILY),
    made("bluetooth", 31, 3, 1, _NO_FAMILY),
    made("TIPC", 30, 2, 0, _NO_FAMILY),
    made("CAN", 29, 3, 1, _NO_FAMILY),
    made("XDP", 44, 3, 0, _NO_FAMILY),
    made("netlink: generic", 16, 3, 16),
    made("netlink: audit", 16, 3, 9, _NO_FAMILY),
    made("netlink: transformations", 16, 3, 6, _NO_FAMILY),
    made("netlink: firewall", 16, 3, 12, _NO_FAMILY),
    made("netlink: device events", 16, 3, 15),
]  # fmt: skip


def _serve(scene: Scene) -> None:
    """What a careless service does: its socket in the workspace."""
    path = str(scene.workspace / "s")
    scene.unix.close()
    import socket

    scene.unix = socket.socket(socket.AF_UNIX)
    scene.unix.bind(path)
    scene.unix.listen()
    scene.unix.setblocking(False)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")
