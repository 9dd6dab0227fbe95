"""Access control of the page's server: token, allowed host names, and the security headers of every answer.

The static files of the page are public and contain no loom data. Every other request needs the token. The page reads
the token from the fragment of its address, which a browser never sends. So a page of another origin that knows the port
can request nothing. A host name that is not ours is refused first, against DNS rebinding.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Refused(Exception):
    """A request that gets a status other than 200."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True)
class Guard:
    """The access rules of one server. ``hosts`` are its further names (of a proxy); ``frames`` are origins that may
    frame it."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    hosts: Sequence[str] = ()
    frames: Sequence[str] = ()

    def host(self, headers: Mapping[str, str]) -> None:
        """Raises `Refused` for a host name that is not ours."""
        given = headers.get("Host", "")
        if given not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}", *self.hosts):
            raise Refused(403, "this server only accepts requests for 127.0.0.1 and localhost")

    def caller(self, headers: Mapping[str, str], *, changes: bool) -> None:
        """Raises `Refused` without the token, for a request from another site, and for a change that our page did not
        send."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise Refused(403, "the token is missing or wrong; open the address that `cantrip loom view` printed")
        if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "a page of another site must not send this request")
        origin = headers.get("Origin")
        if origin is None and not changes:
            return
        if origin is None or origin.partition("://")[2] != headers.get("Host"):
            raise Refused(403, "only this server's own page may do that")

    def headers(self) -> dict[str, str]:
        """The headers of every answer."""
        ancestors = " ".join(self.frames) or "'none'"
        headers = {
            "Content-Security-Policy": f"{POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'; "
            f"frame-ancestors {ancestors}",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
            "Cache-Control": "no-store",
        }
        if not self.frames:
            headers["X-Frame-Options"] = "DENY"
        return headers


POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What the page may do, served or in a file: load nothing from elsewhere, send nothing, create no script from text."""
