"""Free ports, and hosts of the tests' own: network namespaces on one bridge, whose links can be cut and joined."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


def free_port() -> int:
    """A port of the loopback address that nobody has, and that nobody is given who asks for any: those begin at 32768."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("none of a hundred ports is free")


class NoNetworks(Exception):
    """Why there can be none here."""


@dataclass(frozen=True)
class Host:
    """A network namespace with one link to the bridge."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """The words that run a command in it."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Lose every packet, as when a cable is pulled out."""
        _ip("link", "set", f"{self.name}o", "down")

    def join(self) -> None:
        """Let packets pass again."""
        _ip("link", "set", f"{self.name}o", "up")


@dataclass(frozen=True)
class Network:
    """A bridge, this machine's address on it, and its hosts."""

    address: str
    hosts: tuple[Host, ...]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NoNetworks(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def network(count: int) -> Iterator[Network]:
    """A network of this process with so many hosts. Raises `NoNetworks`."""
    if shutil.which("ip") is None:
        raise NoNetworks("there is no command ip; apt-get install iproute2")
    if os.geteuid() != 0:
        raise NoNetworks("only root may make network namespaces")
    mark = f"ct{os.getpid() % 65536:x}"
    subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    hosts = tuple(Host(f"{mark}h{number}", f"{subnet}.{10 + number}") for number in range(count))
    bridge = f"{mark}b"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in hosts:
            _ip("netns", "add", host.name)
            _ip("link", "add", f"{host.name}o", "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", f"{host.name}o", "master", bridge, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield Network(f"{subnet}.1", hosts)
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)
