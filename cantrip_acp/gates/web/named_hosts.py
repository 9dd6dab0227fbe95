"""Named hosts: allows requests only to hosts that the user or the program named, because a request can leak data.

A host is named by an address in an intent, by `allow` (the command line or a program), by the circle's ``bash_network``, or
by `CANTRIP_FETCH_PRIVATE_HOSTS`. Addresses in a fetched page do not count, because a page is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.web.network_question import BASH_NETWORK, allowed
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateInvocation, Proceed
    from cantrip_acp.loom.loom import Loom


class NamedHosts:
    """The hosts that were named so far. As an interceptor, it refuses requests to other hosts.

    ``ways`` is the hint for people how to name a host. ``{host}`` in it is replaced by the host.
    """

    def __init__(self, ways: str = "The user can name it by its address in the intent") -> None:
        self.patterns: set[str] = set()
        """Patterns of lasting permissions, such as ``host example.org``."""
        self._ways = ways
        self.allowed: list[str] = []
        """The texts passed to `allow`."""
        self.of_commands: set[str] = set()
        """The patterns of hosts that commands may reach too: those of `allow`, but not those of intents, in which an address is
        something to read."""

    def add_from_text(self, intent: str | None) -> None:
        """Add the hosts of the addresses in the user's text."""
        if intent and "://" in intent:
            from cantrip_acp.gates.web.fetch import hosts_in

            self.patterns |= hosts_in(intent)

    def add_from_thread(self, loom: Loom, turn_id: str | None) -> None:
        """Add the hosts in the intents of the thread that ends in this turn."""
        if turn_id is not None:
            for cast_id in dict.fromkeys(turn.cast_id for turn in loom.thread(turn_id) if turn.cast_id is not None):
                begun, _ = loom.cast_of(cast_id)
                self.add_from_text(begun.intent if begun is not None else None)

    def allow(self, hosts: Iterable[str]) -> None:
        """Add hosts, each given as ``NAME``, ``NAME:PORT`` or an address. Raises `DefinitionError` for an invalid host."""
        from cantrip_acp.gates.web.fetch import hosts_in

        for host in hosts:
            found = hosts_in(host if "://" in host else f"http://{host}")
            if not found or "*" in host:
                raise DefinitionError(f"{host[:200]!r} is not a valid host, such as example.org or localhost:3000")
            self.patterns |= found
            self.of_commands |= found
            self.allowed.append(host)

    def names(self, invocation: GateInvocation) -> bool:
        """Whether the host of a call was named. True for calls that send no request."""
        gate = invocation.gate
        if gate is BASH_NETWORK:
            assert gate.covers is not None
            return gate.covers(invocation.args)[0] in self.of_commands
        if gate.kind != "fetch" or gate.covers is None:
            return True
        pattern = gate.covers(invocation.args)[0]
        if not pattern.startswith(("host ", "=")) or pattern in self.patterns:
            return True
        from cantrip_acp.gates.web.fetch import FETCH, is_named

        return gate.handler is FETCH.handler and is_named(invocation.args, invocation.context)

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        """Refuse a call to a host that was not named. Otherwise proceed."""
        if invocation.gate is BASH_NETWORK and self.names(invocation):
            return allowed("by --allow-host")
        if self.names(invocation) or invocation.gate is BASH_NETWORK:
            return await proceed(invocation)
        assert invocation.gate.covers is not None
        host = invocation.gate.covers(invocation.args)[0].removeprefix("host ")
        why = (
            f"{invocation.gate.name} is refused: nobody named the host {host}, and a request could carry data to it. Nothing "
            f"was sent. {self._ways.format(host=host)}"
        )
        return GateReply(
            why, is_error=True, annotations={"permission": "refused", "error": f"nobody named the host {host}"}
        )
