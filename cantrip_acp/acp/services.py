"""What a client lends to the gates of a session: the files that are open in it (ACP, File System).

Each only where the client offers it; a gate that is not served here works as it does anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.acp.filegates import FileGates
    from cantrip_acp.acp.session import Session
    from cantrip_acp.gates.contract import GateInvocation

_FILES = frozenset({"read_file", "write_file", "edit_file", "search"})


def services(session: Session) -> Callable[[GateInvocation], GateInvocation]:
    """What gives a session's calls over to its client."""
    files: FileGates | None = None
    client = session.client

    def lend(invocation: GateInvocation) -> GateInvocation:
        nonlocal files
        if invocation.gate.name in _FILES and (client.reads_files or client.writes_files):
            if files is None:
                from cantrip_acp.acp.buffers import Buffers
                from cantrip_acp.acp.filegates import FileGates

                buffers = Buffers(session.connection, session.id, reads=client.reads_files, writes=client.writes_files)
                files = FileGates(buffers, (session.note.cwd, *session.note.directories))
            return files.lend(invocation)
        return invocation

    return lend
