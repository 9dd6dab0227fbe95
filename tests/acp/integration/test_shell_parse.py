"""The tests of `tests/text/unit/test_shell_parse.py` that start processes."""

import itertools
import random
import shutil
import subprocess
from pathlib import Path

from cantrip_acp.text import shell_parse

PIECES = [
    "ls", "cat", "echo", "git", "status", "log", "sort", "find", "touch", "-n", "-o", "--output=x", "-exec", " ", "  ", "\t", "\n",
     "'", '"', "\\", "$", "$(", ")", "`", "(", ";", "&", "|", "<", ">", "{", "}", ",", "*", "?", "[", "]", "!", "#", "=", "~",
     "A=1", "--", "-", "a", "b c", "\u00e9", "\u00a0", "\x0b", "\r", "<<'E'\nE", "x",
]  # fmt: skip


def alone(commands: list[str], folder: Path) -> list[list[list[str]]]:
    """What a real shell runs of each, and with which words: no program can be found, so each try is told."""
    bash = shutil.which("bash")
    assert bash is not None
    stubs = "".join(f'{name}() {{ told {name} "$@"; }}; ' for name in ("echo", "pwd", "true", "false"))
    script = [
        # One write, because the parts of a pipe run at once.
        "told() { local all; printf -v all '%s\\x1f' \"$@\"; printf '%s\\x1e' \"$all\" >> \"$OUT\"; }",
        'command_not_found_handle() { told "$@"; }', stubs, "PATH=/nonexistent", "set -f",
    ]  # fmt: skip
    for text in commands:
        script += ["IFS= read -r -d '' TEXT <<'=END='", text, "=END=", 'eval "$TEXT"', "printf '\\x1d' >> \"$OUT\""]
    out, file = folder / "told", folder / "script"
    file.write_text("\n".join(script), newline="")
    subprocess.run(
        [bash, "--norc", str(file)],
        cwd=folder, env={"OUT": str(out), "LC_ALL": "C.UTF-8"}, timeout=120, check=False, capture_output=True,
    )  # fmt: skip
    return [
        [run.split("\x1f")[:-1] for run in told.split("\x1e")[:-1]]
        for told in out.read_text(errors="surrogateescape").split("\x1d")[:-1]
    ]


def test_a_real_shell_runs_one_program_with_the_words_that_were_read(tmp_path: Path) -> None:
    chance = random.Random(20)
    texts = ["".join(chance.choices(PIECES, k=chance.randrange(9))) for _ in range(20_000)]
    commands = [f"{name} {text}" for name, text in zip(itertools.cycle(["ls", "git log", "find"]), texts, strict=False)]
    commands = list(
        dict.fromkeys(text for text in (*texts, *commands) if shell_parse.command_prefix(text) is not None)
    )[:3_000]
    assert len(commands) > 1_000
    runs = alone(commands, tmp_path)
    assert len(runs) == len(commands)
    for text, ran in zip(commands, runs, strict=True):
        (words,) = ran
        assert words == shell_parse.plain_words(text) or "~" in text, text
        assert words[0] == text.split()[0].replace("'", "").replace('"', ""), text


def test_a_real_shell_runs_only_what_the_rules_of_a_compound_command_name(tmp_path: Path) -> None:
    chance = random.Random(30)
    more = [*PIECES, *["; ", " && ", " || ", " | ", "ls -a", "git status", "run y", " 2>&1", " >/dev/null"] * 4]
    texts = ["".join(chance.choices(more, k=chance.randrange(2, 12))) for _ in range(60_000)]
    commands = list(dict.fromkeys(text for text in texts if shell_parse.rules(text) is not None))[:3_000]
    assert len(commands) > 500
    runs = alone(commands, tmp_path)
    assert len(runs) == len(commands)
    for text, ran in zip(commands, runs, strict=True):
        rules = shell_parse.rules(text) or []
        exact = [shell_parse.plain_words(part) for words, prefix in rules if not prefix for part in words.split(" | ")]
        whole = [shell_parse.plain_words(words) for words, prefix in rules if not prefix]
        prefixes = [words.split() for words, prefix in rules if prefix]
        assert ran or "||" in text, text
        for words in ran:
            # The shell of the test finds no home folder, and so on: only words that it changes differ.
            named = words in (*exact, *whole) or any(words[: len(prefix)] == prefix for prefix in prefixes)
            assert named or "~" in text, (text, words)
