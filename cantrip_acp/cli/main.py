"""The console script ``cantrip``: hands over to the agent for ``cantrip acp``, to the commands (`app`) for all else.

An editor waits for ``cantrip acp`` as it does for ``cantrip-acp``, so nothing is imported before that choice.
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
    from cantrip_acp.cli.app import nobody_reads, run

    status = run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nobody_reads()
    sys.exit(status)


if __name__ == "__main__":
    main()
