"""Entry point of the console script ``cantrip``: starts the ACP agent, the language server, or another command.

An editor waits for the agent and the language server to start. So nothing else is imported before it is known which
of the three is wanted.
"""

from __future__ import annotations

import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["acp"]:
        from cantrip_acp.acp.start import main as serve

        sys.exit(serve(arguments[1:]))
    if arguments[:1] == ["lsp"]:
        from cantrip_acp.lsp.start import main as language

        sys.exit(language(arguments[1:]))
    _have_streams()
    from cantrip_acp.cli.errors import discard_output, run

    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # The rest of the output is lost, because the reader is gone or the disk is full.
        discard_output()
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"cantrip: standard output cannot be written: {error.strerror}\n")
            status = status or 1
    sys.exit(status)


def _have_streams() -> None:
    """Open closed standard streams on /dev/null. Otherwise the next opened file would take a standard stream's number."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        import os

        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdin = sys.stdin or os.fdopen(0)
        sys.stdout = sys.stdout or os.fdopen(1, "w")
        sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Whatever the locale is: an intent with bytes that are not UTF-8 is no error, and no half of a character.
        sys.stdin.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
