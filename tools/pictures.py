"""Make the pictures of terminals in `docs/pictures/`: real commands in a real terminal, drawn as SVG.

    python tools/pictures.py            # all of them; needs bubblewrap
    python tools/pictures.py forks      # one of them

A picture shows commands of a page, which run with the files of that page (blocks with ``<!-- file: NAME -->``). `demo.svg` and
`first.svg` are recordings: their lines appear one after the other. Ids, times and folders are replaced by fixed ones, so that a
picture changes only if the output does. The pictures of VS Code and of other editors are made by `tests.e2e.vscode` and
`tests.e2e.editors.screenshots`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 100, 400
FIRST = 10
"""Lines of a recording that are there from its beginning, so that nobody looks at an empty window."""
SHOWN = 30
"""Lines of a recording that are visible at the same time."""
LINE_S, REST_S = 0.11, 4.0
"""Seconds after which the next line of a recording appears, and for which the last ones stay."""

# Rich names a font of another host, which no page may load.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)
FILE = re.compile(r"^<!-- file: (.+?) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IDS = re.compile(r"\b(t|c|e|g|sess|cast|loom|cantrip)_([0-9a-f]{16,24})\b")
FIXED = (
    (re.compile(r"\d+(\.\d+)? ?m?s\b"), "12 ms"),
    (re.compile(r"\b0\.\d\d(?=  |$)"), "0.01"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?"), "2026-01-01 12:00"),
    (re.compile(r"/tmp/cantrip-demo-\w+"), "/tmp/cantrip-demo"),
    (re.compile(r"\b[0-9a-f]{7} (?=[A-Z])"), "1a2b3c4 "),
)


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    commands: tuple[str, ...]
    page: str = ""
    is_recording: bool = False


PICTURES = (
    Picture(
        "gate",
        "A gate of your own",
        ('cantrip cast count.cantrip.yaml "How many words does letter.txt have?"',),
        "own-gates.md",
    ),
    Picture(
        "forks",
        "A group of answers, ranked",
        (
            "cantrip cast-batch sums.cantrip.yaml ~/questions.jsonl --samples 4 --concurrency 1 --loom group.loom.jsonl",
            "cantrip loom rank group.loom.jsonl --write",
            'cantrip loom fork group.loom.jsonl last "Are you sure?" --recipe sums.cantrip.yaml --samples 3 --concurrency 1',
            "cantrip loom tree group.loom.jsonl",
        ),
        "forks.md",
    ),
    Picture(
        "sandbox",
        "What the sandbox stops",
        (
            "cantrip sandbox run -- 'cat .env'",
            "cantrip sandbox run -- 'touch new.txt'",
            "cantrip sandbox run -- 'curl -sS https://example.org'",
        ),
    ),
    Picture("demo", "cantrip demo", ("cantrip demo",), is_recording=True),
    Picture(
        "first",
        "A task, another way from its first step, and the tree of both",
        (
            'cantrip cast bill.cantrip.yaml "What is the largest bill?" --loom bills.loom.jsonl',
            'cantrip loom fork bills.loom.jsonl 1 "What is the sum?" --recipe bill.cantrip.yaml --state auto',
            "cantrip loom tree bills.loom.jsonl",
        ),
        "tutorial.md",
        is_recording=True,
    ),
)  # fmt: skip


def prepare(picture: Picture, home: Path) -> Path:
    """The folder with the files that the commands need."""
    project = home / "project"
    project.mkdir()
    if picture.page:
        for name, body in FILE.findall((ROOT / "docs" / picture.page).read_text("utf-8")):
            (project / name).write_text(body)
    (project / "bills.csv").write_text("tea,25\ncake,40\nmilk,12\n")
    (project / "letter.txt").write_text("Dear reader, good day\n")
    (project / ".env").write_text("API_KEY=example\n")
    (home / "questions.jsonl").write_text('{"intent": "What is 17 * 23?", "reference": 391}\n')
    return project


def run(command: str, folder: Path, home: Path, screen: pyte.Screen) -> None:
    """Run a command of a shell in a terminal of its own, and let it write on the screen."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("CANTRIP_", "XDG_", "NO_COLOR"))
    }
    environment |= {
        "HOME": str(home),
        "CANTRIP_STATE_DIR": str(home / "state"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    stream = pyte.ByteStream(screen)
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        while True:
            try:
                output = os.read(own, 65536)
            except OSError:  # EIO: every process has closed the terminal
                break
            if not output:
                break
            stream.feed(output)
    os.close(own)


def lines(screen: pyte.Screen, folder: Path, ids: dict[str, str]) -> Iterator[Text]:
    """The lines of a screen, with its colours and with fixed ids and times. ``ids`` has the ids of a picture that were seen."""

    def fixed_id(found: re.Match[str]) -> str:
        # Each id has a number, in the order in which they come. Another id of the same turn would look like another turn.
        known = ids.setdefault(found[0], f"{len(ids) + 1:02x}")
        return f"{found[1]}_{('01a2b3c4d5e6f7a8b9c0d1e2'[: len(found[2]) - 2])}{known}"

    last = max((y for y in range(ROWS) if screen.display[y].strip()), default=-1)
    for y in range(last + 1):
        line = Text()
        runs: list[tuple[str, Style]] = []
        for x in range(len(screen.display[y].rstrip())):
            cell = screen.buffer[y][x]
            style = style_of(cell)
            if runs and runs[-1][1] == style:
                runs[-1] = (runs[-1][0] + cell.data, style)
            else:
                runs.append((cell.data, style))
        for text, style in runs:
            text = IDS.sub(fixed_id, text)
            text = text.replace(str(folder), "~/project").replace(str(folder.parent), "~")
            for pattern, fixed in FIXED:
                text = pattern.sub(fixed, text)
            line.append(text, style)
        yield line


def style_of(cell: pyte.screens.Char) -> Style:
    def colour(name: str) -> str | None:
        if name == "default":
            return None
        if re.fullmatch(r"[0-9a-f]{6}", name):
            return f"#{name}"
        return name.replace("brown", "yellow").replace("bright", "bright_")

    return Style(
        color=colour(cell.fg), bgcolor=colour(cell.bg), bold=cell.bold, italic=cell.italics,
        underline=cell.underscore, reverse=cell.reverse,
    )  # fmt: skip


def draw(picture: Picture, home: Path) -> str:
    """The SVG of a picture. ``home`` becomes the home folder of its commands and is removed at the end."""
    shown = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    count = 0
    ids: dict[str, str] = {}
    home.mkdir()
    try:
        folder = prepare(picture, home)
        for command in picture.commands:
            screen = pyte.Screen(COLUMNS, ROWS)
            run(command, folder, home, screen)
            found = [Text.assemble(("$ ", "bold green"), (command, "bold")), *lines(screen, folder, ids), Text()]
            for line in found:
                wrapped = line.wrap(shown, COLUMNS)
                count += len(wrapped)
                for each in wrapped:
                    shown.print(each, soft_wrap=True)
    finally:
        shutil.rmtree(home)
    svg = shown.export_svg(title=picture.title, theme=DIMMED_MONOKAI, unique_id=picture.name, code_format=FORMAT)
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return record(svg, picture, count) if picture.is_recording else svg


def record(svg: str, picture: Picture, count: int) -> str:
    """The same picture as a recording: a window of `SHOWN` lines, in which one line after the other appears."""
    height = float(re.search(r"line-height: ([\d.]+)px", svg)[1])  # type: ignore[index]
    whole = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert whole
    removed = max(count - SHOWN, 0) * height
    seconds = max(count - FIRST, 0) * LINE_S + REST_S
    scroll, reveal = [], []
    for line in range(count + 1):
        share = 100 * max(line - FIRST, 0) * LINE_S / seconds
        if line < FIRST:
            continue
        scroll.append(f"{share:.2f}% {{ transform: translateY({-max(line - SHOWN, 0) * height:.1f}px); }}")
        reveal.append(f"{share:.2f}% {{ transform: translateY({line * height:.1f}px); }}")
    name = picture.name
    animation = f"{seconds:.1f}s step-end infinite"
    style = (
        f"@keyframes {name}-scroll {{ {' '.join(scroll)} 100% {{ transform: translateY({-removed:.1f}px); }} }}\n"
        f"@keyframes {name}-reveal {{ {' '.join(reveal)} 100% {{ transform: translateY({count * height:.1f}px); }} }}\n"
        f".{name}-scroll {{ animation: {name}-scroll {animation}; }}\n"
        f".{name}-cover {{ animation: {name}-reveal {animation}; }}\n"
        f"@media (prefers-reduced-motion) {{ .{name}-scroll {{ animation: none; transform: translateY({-removed:.1f}px); }}"
        f" .{name}-cover {{ display: none; }} }}\n"
    )
    svg = svg.replace("</style>", f"{style}</style>", 1)
    shorter = float(whole[2]) - removed
    svg = svg.replace(whole[0], f'viewBox="0 0 {whole[1]} {shorter:.1f}"', 1)
    # The frame and the window for the text become shorter, too.
    frame = re.search(
        r'<rect fill="(#\w+)" stroke="[^"]*" stroke-width="1" x="1" y="1" width="[\d.]+" height="([\d.]+)"', svg
    )
    clip = re.search(
        rf'<clipPath id="{name}-clip-terminal">\s*<rect x="0" y="0" width="([\d.]+)" height="([\d.]+)"', svg
    )
    assert frame
    assert clip
    svg = svg.replace(
        frame[0], frame[0].replace(f'height="{frame[2]}"', f'height="{float(frame[2]) - removed:.1f}"'), 1
    )
    svg = svg.replace(clip[0], clip[0].replace(f'height="{clip[2]}"', f'height="{float(clip[2]) - removed:.1f}"'), 1)
    matrix = re.search(rf'<g class="{name}-matrix">.*?</g>', svg, re.DOTALL)
    before = re.search(rf'(clip-path="url\(#{name}-clip-terminal\)">)', svg)
    assert matrix
    assert before
    cover = f'<rect class="{name}-cover" fill="{frame[1]}" x="0" y="2" width="{clip[1]}" height="{(count + 1) * height:.1f}"/>'
    svg = svg.replace(before[0], f'{before[0]}<g class="{name}-scroll">', 1)
    return svg.replace(matrix[0], f"{matrix[0]}{cover}</g>", 1)


def main(names: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    # The length of its name decides where a terminal breaks a line, so it is always the same.
    home = Path(tempfile.gettempdir(), "cantrip-pictures")
    for picture in PICTURES:
        if not names or picture.name in names:
            (FOLDER / f"{picture.name}.svg").write_text(draw(picture, home), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
