"""The routes of the page's server, without HTTP: from a path and its parameters to the JSON answer."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.view.auth import Refused
from cantrip_acp.loom.view.reader import LoomReader
from cantrip_acp.text import codecs
from cantrip_acp.types.errors import LoomError, LoomLocked, TurnNotFound

WAIT_S = 20.0
"""How long a request for changes may wait, in seconds."""

LONGEST_NOTE = 4_000

Parameters = Mapping[str, str]


class Routes:
    """The answers about one loom. With ``readonly``, rewards are refused. Raises `Refused`."""

    def __init__(self, reading: LoomReader, *, readonly: bool = False) -> None:
        self._reading = reading
        self._readonly = readonly
        self._routes: dict[str, Callable[[Parameters], Any]] = {
            "loom": lambda _: reading.about() | {"readonly": readonly},
            "nodes": lambda p: reading.nodes(whole(p, "from")),
            "numbers": lambda p: reading.numbers(whole(p, "from")),
            "rows": lambda p: reading.rows(_list(p.get("n", ""))),
            "casts": lambda p: reading.casts(whole(p, "from")),
            "rewards": lambda p: reading.rewards(whole(p, "from")),
            "turn": lambda p: reading.turn(self._number(p), whole=p.get("whole") == "1"),
            "find": lambda p: {"n": reading.find(p.get("id", ""))},
            "cast": lambda p: reading.cast(whole(p, "n"), whole=p.get("whole") == "1"),
            "search": lambda p: reading.search(p.get("q", "")[:1000], whole(p, "from")),
            "wait": lambda p: {"version": reading.wait(whole(p, "seen"), min(WAIT_S, whole(p, "ms", 0) / 1000))},
        }

    def get(self, name: str, parameters: Parameters) -> bytes:
        """The JSON answer to a request."""
        route = self._routes.get(name)
        if route is None:
            raise Refused(404, f"there is no /api/{name}")
        try:
            answer = route(parameters)
        except TurnNotFound as error:
            raise Refused(404, str(error)) from error
        except LoomError as error:
            raise Refused(503, str(error)) from error
        return answer if isinstance(answer, bytes) else msgspec.json.encode(answer, enc_hook=str)

    def _number(self, parameters: Parameters) -> int:
        return self._reading.find(parameters["id"]) if "id" in parameters else whole(parameters, "n")

    def reward(self, body: bytes) -> bytes:
        """Give a turn a reward: ``{"id": …, "reward": number, "note": text or null}``."""
        if self._readonly:
            raise Refused(403, "this view is for reading only; use `cantrip loom reward`")
        try:
            request = codecs.json_decoder(_RouteRequest).decode(body)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Refused(400, f"this is not a reward: {error}") from error
        try:
            with Loom.open(self._reading.where) as loom:
                loom.annotate_reward(request.id, request.reward, by=_me(), note=request.note or None)
        except LoomLocked as error:
            raise Refused(
                409, "a session is writing this loom; give the reward when it has ended, or there by /reward"
            ) from error
        except TurnNotFound as error:
            raise Refused(404, str(error)) from error
        except LoomError as error:
            raise Refused(409, str(error)) from error
        self._reading.look(at_once=True)
        return msgspec.json.encode({"id": request.id, "reward": request.reward})


class _RouteRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    reward: float
    note: str | None = None

    def __post_init__(self) -> None:
        if not -1e12 < self.reward < 1e12:
            raise ValueError("a reward must be a number")
        if len(self.note or "") > LONGEST_NOTE:
            raise ValueError(f"a note has at most {LONGEST_NOTE:,} characters")


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "viewer"


def whole(parameters: Parameters, name: str, otherwise: int | None = 0) -> int:
    """A parameter that is a whole number, 0 or more. Raises `Refused`."""
    text = parameters.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 12:
        raise Refused(400, f"{name} must be a whole number")
    return int(text)


def _list(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    if not all(part.isascii() and part.isdigit() and len(part) <= 12 for part in parts):
        raise Refused(400, "n must be a list of whole numbers")
    return [int(part) for part in parts]
