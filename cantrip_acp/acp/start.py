"""The command ``cantrip-acp``: parses its options, answers ``initialize``, and starts the agent process.

An editor waits for the answer to ``initialize``. So this module answers before it imports anything except `os`, `gc`, `json`
and `initialize` (even `typing` would double the time). Then it imports the rest, and passes on the bytes that it read
after that line. File descriptor 1 is redirected to stderr, so that text printed by a library never reaches the client.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys

from cantrip_acp.acp.initialize import accepts_version, negotiated_result
from cantrip_acp.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

USAGE = """\
Usage: cantrip-acp [OPTIONS]

Serve the Agent Client Protocol (ACP) on standard input and output. An editor starts this command.
Standard output carries only the protocol. Logs go to standard error or to a file.

Options:
  --recipe FILE|NAME  the recipe of every session (default: the built-in familiar).
                      A FILE is trusted for this run. A NAME is searched in .cantrip/, in your
                      configuration folder and in the built-in recipes.
  --state-dir DIR     the folder for looms and session state (default: $CANTRIP_STATE_DIR, or
                      your platform's state folder)
  --sign-in           ask for a provider's key in this terminal, save it in your configuration
                      folder, and exit
  --no-cache          run every call of a gate, also one whose inputs have not changed ($CANTRIP_NO_CACHE)
  --log-file FILE     append a detailed log to FILE (default: only warnings, to stderr)
  --version           print the version and exit
  --help              print this text and exit

Example (sends initialize, prints the answer and exits):
  printf '%s\\n' '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}' | cantrip-acp

In an editor's settings, give the command: {"command": "cantrip-acp", "args": []}
To talk to an entity in a terminal, use: cantrip repl
"""

FIRST_LINE_LIMIT = 1024 * 1024
"""Bytes of the longest first line that this module answers. The connection handles a longer line."""


class Options:
    """The options of the command line."""

    __slots__ = ("log_file", "recipe", "sign_in", "state_dir")

    def __init__(self) -> None:
        self.recipe: str | None = None
        self.state_dir: str | None = None
        self.log_file: str | None = None
        self.sign_in = False


def main(argv: list[str] | None = None) -> int:
    """Serve until the client closes the connection. Returns the exit status."""
    options = parse(sys.argv[1:] if argv is None else argv)
    # Imports make many objects and no garbage. `Session.warm` sets the usual threshold again.
    gc.set_threshold(100_000)
    if options.sign_in:
        from cantrip_acp.acp.login import sign_in

        return sign_in()
    # Until the server runs there is nothing to save, so a signal may end the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_on_signal)
    source, sink = take_streams()
    if os.isatty(source):
        _prepare_terminal(source)
    leftover, params = _answer_initialize(source, sink)

    from cantrip_acp.acp.lifecycle import serve_process

    return serve_process(
        source,
        sink,
        leftover,
        params,
        recipe=options.recipe,
        state_dir=options.state_dir,
        log_file=options.log_file,
    )


def parse(argv: list[str]) -> Options:
    """Parse the options. ``--help`` and ``--version`` end the process with status 0, and a wrong option with status 2."""
    options = Options()
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        if flag in ("--help", "-h"):
            _print_and_exit(USAGE)
        if flag == "--version":
            _print_and_exit(f"cantrip-acp {__version__}\n")
        if argument == "--sign-in":
            options.sign_in = True
            continue
        if argument == "--no-cache":
            os.environ["CANTRIP_NO_CACHE"] = "1"
            continue
        if flag not in ("--recipe", "--state-dir", "--log-file"):
            _usage_error(f"unknown argument {argument!r}")
        if not equals:
            if not rest:
                _usage_error(f"{flag} needs a value")
            value = rest.pop(0)
        if not value:
            _usage_error(f"{flag} needs a value that is not empty")
        setattr(options, flag[2:].replace("-", "_"), value)
    return options


def take_streams() -> tuple[int, int]:
    """Return the two file descriptors of the protocol, and redirect stdin and stdout.

    Afterwards other code reads nothing from stdin, and its output goes to stderr.
    """
    try:
        # Check before opening anything: a new descriptor would take the number of a closed one.
        os.fstat(0), os.fstat(1)
    except OSError:
        _usage_error("standard input and output must be open. An editor starts this command with a pipe for each")
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing == 2:
        nothing = os.dup(2)  # stderr was closed, so descriptor 2 is /dev/null now
    source, sink = os.dup(0), os.dup(1)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return source, sink


def _answer_initialize(source: int, sink: int) -> tuple[bytes, dict[str, Any] | None]:
    """Answer the first line if it is a valid ``initialize`` request.

    Returns the bytes after that line and the request's parameters. For any other line, returns all bytes and None.
    """
    read = b""
    # Not select.select(), which refuses descriptors from 1024 on.
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while b"\n" not in read and len(read) < FIRST_LINE_LIMIT:
        poll.poll()
        try:
            chunk = os.read(source, 65536)
        except BlockingIOError:
            continue
        except OSError:
            chunk = b""
        if not chunk:
            break
        read += chunk
    line, _, rest = read.partition(b"\n")
    reply, params = _initialize_reply(line)
    if reply is None:
        return read, None
    try:
        poll = select.poll()
        poll.register(sink, select.POLLOUT)
        while reply:
            poll.poll()
            try:
                reply = reply[os.write(sink, reply[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
    except OSError:
        sys.exit(0)  # the client has disconnected, and no work has begun
    return rest, params


def _initialize_reply(line: bytes) -> tuple[bytes | None, dict[str, Any] | None]:
    """The reply to a valid ``initialize`` request and its parameters. For other lines two None: `Connection` handles
    them."""
    try:
        message = json.loads(line.decode())
        params = message["params"]
        known = message["id"]
        plain = (
            message["jsonrpc"] == "2.0"
            and message["method"] == "initialize"
            and isinstance(params, dict)
            and accepts_version(params.get("protocolVersion"))
            and (known is None or (isinstance(known, int | str) and not isinstance(known, bool)))
        )
        if not plain:
            return None, None
        reply = {"jsonrpc": "2.0", "id": known, "result": negotiated_result(params)}
        return json.dumps(reply, separators=(",", ":")).encode() + b"\n", params
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, None


def _prepare_terminal(source: int) -> None:
    """Turn off line editing and echo until the process exits.

    Line editing cuts lines at 4,096 bytes, and echo would mix with the protocol.
    """
    import atexit
    import termios

    def restore() -> None:
        termios.tcsetattr(source, termios.TCSANOW, before)

    try:
        before = termios.tcgetattr(source)
        ours = termios.tcgetattr(source)
        ours[3] &= ~(termios.ICANON | termios.ECHO)
        # Before the change, because a signal may come at any time.
        _restore_terminal.append(restore)
        atexit.register(restore)
        termios.tcsetattr(source, termios.TCSANOW, ours)
    except termios.error:
        return
    if os.isatty(2):
        sys.stderr.write(
            "cantrip-acp speaks JSON-RPC on standard input and output; an editor starts it. "
            "Press Ctrl-C to end it, see --help, or use `cantrip repl` to talk to an entity in this terminal.\n"
        )


_restore_terminal: list[Callable[[], None]] = []
"""The terminal settings to restore before the process exits, if `_prepare_terminal` changed them."""


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    # sys.exit would raise an exception, and Python ignores those in some places: in callbacks, of which each import has one.
    # There the signal would be lost, and the process would go on.
    try:
        for restore in _restore_terminal:
            restore()
    finally:
        os._exit(0)


def _print_and_exit(text: str) -> NoReturn:
    sys.stdout.write(text)
    sys.exit(0)


def _usage_error(problem: str) -> NoReturn:
    sys.stderr.write(f"cantrip-acp: {problem}\nTry: cantrip-acp --help\n")
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
