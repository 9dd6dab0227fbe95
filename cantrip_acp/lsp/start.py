"""The command ``cantrip lsp``: a language server on standard input and output.
An editor waits for the answer to ``initialize``, so only pygls and what answers it is imported before. The YAML parser and
the recipe models are imported with the first recipe.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import BinaryIO

from cantrip_acp.text.logs import MASKING, logger
from cantrip_acp.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cantrip_acp.lsp.server.language_server import Server

_log = logger(__name__)

USAGE = """\
Usage: cantrip lsp [OPTIONS]

Serve the Language Server Protocol on standard input and output: what an editor starts for recipes
(NAME.cantrip.yaml) and looms (NAME.loom.jsonl). Of recipes it says what
is wrong as you type, with the loader's own words and a fix where there is one, and completes keys, gates, wards, models and
paths. No recipe is run by looking at it; the lens above it casts it. Looms are read from disk, however large, with lenses
that fork, reward, replay, export and view.

Commands (workspace/executeCommand, one object as argument; a recipe notes intents as comments, "# intent: Say hello."):
COMMANDS
Options:
  --log-file FILE  append the log to FILE, with details, instead of warnings to standard error
  --stdio          taken for editors that pass it; there is no other way
  --version        print the version and exit
  --help           print this text and exit

Example (Neovim 0.11, init.lua; then open a recipe):
  vim.filetype.add({pattern = {['.*%.cantrip%.ya?ml'] = 'yaml.cantrip'}})
  vim.lsp.config('cantrip', {cmd = {'cantrip', 'lsp'}, filetypes = {'yaml.cantrip'}, root_markers = {'.cantrip', '.git'}})
  vim.lsp.enable('cantrip')

Example (asks for the handshake, then hangs up):
  printf 'Content-Length: 107\\r\\n\\r\\n%s' \\
    '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"processId":null,"rootUri":null,"capabilities":{}}}' | cantrip lsp
"""


def main(argv: list[str] | None = None) -> int:
    """Serve until the client disconnects; return the exit status."""
    log_file = _parse(sys.argv[1:] if argv is None else argv)
    missing = [name for name in ("pygls", "lsprotocol", "tree_sitter", "tree_sitter_yaml") if find_spec(name) is None]
    if missing:
        needed = f"the language server needs {', '.join(missing)}, not installed here"
        from cantrip_acp.files.installation import install_command

        sys.stderr.write(f"cantrip: {needed}; install it with: {install_command('lsp')}\n")
        return 1
    source, sink = _take_streams()
    # Looms are read in threads: switch threads every 1 ms, not every 5 ms, so that requests wait less.
    sys.setswitchinterval(0.001)
    # A keystroke creates thousands of objects, and nearly all are freed soon: collect garbage less often.
    gc.set_threshold(10_000, 20, 50)
    logging.basicConfig(
        level=logging.INFO if log_file else logging.WARNING,
        filename=log_file,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(MASKING)
    # pygls logs whole messages, and a recipe may contain secrets.
    logging.getLogger("pygls").setLevel(logging.WARNING if log_file else logging.CRITICAL)
    from pygls.io_ import StdoutWriter

    from cantrip_acp.lsp.server.features import make_server

    server = make_server()
    gc.freeze()
    server.protocol.set_writer(StdoutWriter(sink))
    try:
        return asyncio.run(_serve(server, source))
    except KeyboardInterrupt:
        return 130


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's input and output. Afterwards, descriptor 0 is /dev/null and 1 is stderr, so that prints of libraries
    never reach the client."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return source, sink


async def _serve(server: Server, source: BinaryIO) -> int:
    from pygls.io_ import StdinAsyncReader, run_async

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int = 0) -> None:
        if not ended.done():
            ended.set_result(status)

    def client_ended() -> None:
        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:  # the loop has ended already
            pass

    async def read() -> None:
        # A thread of its own for input: readers of files cannot delay it.
        reader = StdinAsyncReader(source, ThreadPoolExecutor(1, "input"))
        try:
            await run_async(threading.Event(), reader, server.protocol, _log, server.report_server_error)
        except SystemExit as left:
            end(left.code if isinstance(left.code, int) else 1)
        else:
            end()

    server.leave = client_ended
    analysis = asyncio.create_task(read())
    status = await ended
    await server.close()
    del analysis
    # Do not wait for threads that still read a text; they have nothing to lose.
    sys.stderr.flush()
    os._exit(status)


def _parse(argv: list[str]) -> str | None:
    """The log file. ``--help``, ``--version`` and wrong options end the process (status 0, 0 and 2)."""
    log_file: str | None = None
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("--help", "-h"):
            from cantrip_acp.lsp.commands.registry import COMMANDS

            lines = "".join(f"  {c.name} {{{', '.join(c.takes)}}}\n      {c.about}\n" for c in COMMANDS.values())
            sys.stdout.write(USAGE.replace("COMMANDS\n", f"{lines}\n"))
            sys.exit(0)
        if word == "--version":
            sys.stdout.write(f"cantrip lsp {__version__}\n")
            sys.exit(0)
        if name == "--log-file":
            if not equals and not rest:
                _fail("--log-file needs a file")
            from cantrip_acp.loom.output_file import check_appendable
            from cantrip_acp.types.errors import OutputError

            log_file = value if equals else rest.pop(0)
            try:
                check_appendable(log_file)
                with open(log_file, "a", encoding="utf-8"):
                    pass
            except OutputError as error:
                _fail(f"the log file: {error}; choose another --log-file")
            except OSError as error:
                _fail(f"the log file {log_file} cannot be written: {error.strerror}")
        elif word != "--stdio" and not word.startswith("--clientProcessId="):
            _fail(f"unknown option {word!r}; see cantrip lsp --help")
    return log_file


def _fail(why: str) -> None:
    sys.stderr.write(f"cantrip lsp: {why}\n")
    sys.exit(2)
