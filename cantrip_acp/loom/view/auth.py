"""Who may ask, and what the browser is told: the token, the names of the host, the headers of every answer.

The page's own files are public; nothing of a loom is in them. Everything else wants the token, which the page has from its
address's fragment, which a browser sends to nobody. A page of another origin that knows the port can therefore ask nothing,
under whatever name it reaches us (DNS rebinding): names other than our own are refused before anything else is looked at.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Refused(Exception):
    """A request that is answered with a status other than 200."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True)
class Guard:
    """What one server admits. ``hosts`` are further names of it (a proxy's), ``frames`` origins that may show it in a frame."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    hosts: Sequence[str] = ()
    frames: Sequence[str] = ()

    def host(self, headers: Mapping[str, str]) -> None:
        """Raises `Refused` for a name that is not ours."""
        given = headers.get("Host", "")
        if given not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}", *self.hosts):
            raise Refused(403, "this server answers to 127.0.0.1 and localhost alone")

    def caller(self, headers: Mapping[str, str], *, changes: bool) -> None:
        """Raises `Refused` for one without the token, for another page, and for a change that no page of ours asks for."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise Refused(403, "the token is missing or wrong; open the address that `cantrip loom view` printed")
        if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "another site's page may not ask this")
        origin = headers.get("Origin")
        if origin is None and not changes:
            return
        if origin is None or origin.partition("://")[2] != headers.get("Host"):
            raise Refused(403, "only this server's own page may do that")

    def headers(self) -> dict[str, str]:
        """What goes with every answer."""
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
"""What the page may do, served or in a file: load nothing from elsewhere, send nothing, make no script of text."""
