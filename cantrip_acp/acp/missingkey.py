"""A session that cannot begin for want of a key: the user is asked to set one and goes on, where the client shows forms.

The form asks what to do next and never for the key, which no form may carry (ACP, Elicitation). Keys in the configuration
folder's ``.env`` and in the keyring are found without restarting the agent. A client that opens a terminal to sign in
(`auth.terminal`) is refused at once, which is how it knows to offer that: a form would only send its user away for the key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from cantrip_acp.acp.envelope import AUTH_REQUIRED, RpcError

if TYPE_CHECKING:
    from cantrip_acp.acp.protocol import ClientAbilities
    from cantrip_acp.acp.wire import Connection, Request

TRIES = 5

_T = TypeVar("_T")


async def with_a_key(
    connection: Connection, client: ClientAbilities, request: Request, begin: Callable[[], Awaitable[_T]]
) -> _T:
    """What ``begin`` gives, once there is a key. Raises its `RpcError` -32000 where nobody is asked, or gives up."""
    for _ in range(TRIES):
        try:
            return await begin()
        except RpcError as problem:
            if problem.code != AUTH_REQUIRED or not client.forms or client.auth_terminal or request.id is None:
                raise
            if isinstance(problem.data, dict) and problem.data.get("reason") == "signed_out":
                # Whoever signed out is not signed in again by a form: `authenticate` does that.
                raise
            import msgspec

            from cantrip_acp.acp.elicitation import Form, ask, question

            form = Form(
                message=f"{problem.message} Or set a key now (`cantrip-acp --sign-in` in a terminal does it), and go on.",
                requested_schema=question("Go on", [("again", "A key is set now: look again"), ("stop", "Stop here")]),
                request_id=msgspec.Raw(request.id.raw),
            )
            if await ask(connection, form) != "again":
                raise
    return await begin()
