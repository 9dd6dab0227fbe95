"""Embedded crystal: queries a model that this machine runs itself, from weights in a GGUF file.

Providers: ``embedded`` (a model that `cantrip models pull` gets) and ``gguf`` (any GGUF file). Options: ``threads``,
``gpu_layers``, and those of `local.crystal`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import anyio.to_thread
import msgspec

from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.crystals.embedded import weights
from cantrip_acp.crystals.embedded.shared_model import ModelServer, ServerSettings
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.chat_stream import ChatAnswer
from cantrip_acp.crystals.openai.client import OpenAISdk
from cantrip_acp.crystals.text_tools import call_grammar
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import CrystalError

WINDOW = 8192
"""Tokens of the context window where the recipe gives none."""
_MOST_TOKENS = 1024
"""Tokens of an answer where the call gives no ``max_tokens``."""


_LOOK_TOKENS = 32
"""The number of tokens after which an answer is searched for repetition."""
_REPEATS = ((400, 50), (1600, 400))
"""Pairs (n, m): an answer repeats itself if its last n characters are one text of at most m characters, again and again."""


def repeated_unit(pieces: Sequence[str]) -> str | None:
    """The text that the end of an answer repeats again and again; None if it does not repeat. ``pieces`` are the last ones of
    the text."""
    text = "".join(pieces)
    for length, most in _REPEATS:
        if len(text) >= length:
            end = text[-length:]
            for size in range(1, most + 1):
                if end[size:] == end[:-size]:
                    return end[-size:]
    return None


class EmbeddedCrystal(LocalCrystal):
    """A model in a sandboxed process of its own, shared by all sessions of the user."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        super().__init__(endpoint)
        self._folder = folder
        self._server: ModelServer | None = None
        self._lock = Lock()

    def prepare(self) -> None:
        super().prepare()
        if not xllamacpp_installed():
            raise CrystalError(f"{self.sdk.who}: {_not_installed()}")

    async def query(self, query: Query, emit: Emit) -> Response:
        server = await anyio.to_thread.run_sync(self._ready)
        async with server.ready():
            # The server reports the path of the weights.
            return msgspec.structs.replace(await super().query(query, emit), model=self.model)

    @property
    def llama_cpp(self) -> bool:
        return True

    def extend(self, body: dict[str, Any], query: Query) -> None:
        super().extend(body, query)
        # A small model may repeat itself until its window is full.
        body.setdefault(self.limit_key, min(_MOST_TOKENS, (self.context_window or WINDOW) // 4))
        if "tools" in body and "logprobs" in body:
            # llama.cpp refuses to stream the tokens of an answer to a query with tool definitions.
            body["stream"] = False
            del body["stream_options"]
        elif "tools" not in body and query.tools and query.tool_choice == "required":
            # CRYSTAL-5 without asking again: the model can write nothing but a call.
            body["grammar"] = call_grammar(query.tools)
        if body["stream"]:
            # The counts of an answer that is not read to its end (`endless`).
            body["timings_per_token"] = True

    def endless(self, chat: ChatAnswer) -> str | None:
        pieces = chat.text or chat.thoughts
        if len(pieces) % _LOOK_TOKENS or (unit := repeated_unit(pieces[-_REPEATS[-1][0] :])) is None:
            return None
        return f"The answer was stopped, because it repeats {unit[:60]!r} without an end."

    def explained(self, error: CrystalError) -> CrystalError:
        if error.status is None and "no connection to" in str(error):
            return CrystalError(f"{self.sdk.who}: the model's process ended while it was asked", retryable=True)
        return error

    def _ready(self) -> ModelServer:
        """The running server with its settings. Raises `CrystalError` if weights or llama.cpp are missing."""
        with self._lock:
            if self._server is None:
                if sys.platform != "linux":
                    raise CrystalError(f"{self.sdk.who}: only Linux runs models itself; use a server such as Ollama")
                if not xllamacpp_installed():
                    raise CrystalError(f"{self.sdk.who}: {_not_installed()}")
                path = weights.find(self.endpoint.provider, self.model, self._folder)
                options = self.endpoint.options
                settings = ServerSettings(
                    os.path.realpath(path),
                    self.endpoint.info.context_window or WINDOW,
                    options.get("threads") or _processors(),
                    options.get("gpu_layers", 0),
                )
                self._server = ModelServer(settings, self.sdk.who)
                self.sdk = OpenAISdk(self.endpoint, weights.ADDRESS, socket=self._server.socket)
            return self._server


def _processors() -> int:
    """As many threads as the variable of other number-crunching programs allows, or one for each processor."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0))


def _not_installed() -> str:
    return f"llama.cpp is not installed; install it with: {install_command('embedded')}"


def xllamacpp_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("xllamacpp") is not None


def install_xllamacpp() -> None:
    """Install llama.cpp into the environment of this Python, with its pip or else with uv. Blocks. Raises
    `weights.PullError` with the words of that program."""
    import importlib
    import shutil
    import subprocess
    from importlib.metadata import requires
    from importlib.util import find_spec

    if xllamacpp_installed():
        return
    wanted = [each.partition(";")[0].strip() for each in requires("cantrip-acp") or () if each.startswith("xllamacpp")][
        :1
    ]
    uv = shutil.which("uv")
    if find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *wanted]
    elif uv is not None:
        command = [uv, "pip", "install", "--python", sys.executable, *wanted]
    else:
        raise weights.PullError(
            f"this Python ({sys.executable}) has no pip, and there is no uv, to install llama.cpp ({wanted[0]}) with"
        )
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        why = next(
            (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no reason was given"
        )
        raise weights.PullError(f"llama.cpp cannot be installed: {why}"[:1500])
    importlib.invalidate_caches()
