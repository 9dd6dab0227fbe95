"""The console script ``cantrip``: hands over to the agent for ``cantrip acp``, to the language server for ``cantrip lsp``,
to the commands (`app`) for all else.

An editor waits for both as it does for ``cantrip-acp``, so nothing is imported before that choice.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and leave with its status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["acp"]:
        from cantrip_acp.acp.start import main as serve

        sys.exit(serve(arguments[1:]))
    if arguments[:1] == ["lsp"]:
        from cantrip_acp.lsp.start import main as language

        sys.exit(language(arguments[1:]))
    _have_streams()
    from cantrip_acp.cli.app import nobody_reads, run

    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # A reader that left, or a full disk: what was to be said cannot be said.
        nobody_reads()
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"cantrip: standard output cannot be written: {error.strerror}\n")
            status = status or 1
    sys.exit(status)


def _have_streams() -> None:
    """A closed standard stream leads nowhere: left as it is, the next file that is opened would take its place."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        import os

        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        sys.stdin = sys.stdin or os.fdopen(0)
        sys.stdout = sys.stdout or os.fdopen(1, "w")
        sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    main()
