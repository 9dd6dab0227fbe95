"""What the Tab key offers in `cantrip repl` and `cantrip client`: slash commands, models, and paths after ``@``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from cantrip_acp.cli.session.mentions import complete_path

Complete = Callable[[str], Iterable[tuple[str, int, str]]]
"""Takes the text before the cursor. Yields what can be there, how many characters before the cursor it replaces, and a
description."""


def completions(
    typed: str,
    commands: Iterable[tuple[str, str]],
    workspace: Path | None,
    arguments: Mapping[str, Callable[[], Iterable[tuple[str, str]]]],
) -> Iterator[tuple[str, int, str]]:
    """See `Complete`. ``arguments`` gives the values that a command takes."""
    command, blank, rest = typed.partition(" ")
    if typed.startswith("/") and not blank and "\n" not in typed:
        yield from ((name, len(typed), about) for name, about in commands if name.startswith(typed))
        return
    if command in arguments and " " not in rest:
        yield from ((value, len(rest), about) for value, about in arguments[command]() if value.startswith(rest))
        return
    word = typed[max(typed.rfind(each) for each in " \n\t") + 1 :]
    if word.startswith("@") and workspace is not None:
        for path in complete_path(word[1:], workspace):
            # A path with a blank is quoted; such a word is not completed further.
            yield (f'@"{path}"' if " " in path else f"@{path}"), len(word), ""
