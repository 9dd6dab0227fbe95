"""Pictures of terminal editors for the documentation: `python -m tests.e2e.editors.screenshots docs` (needs `pip install pillow`).

Real editors in a terminal whose screen is drawn with a font; nothing in them is made up.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tests.e2e.editors import debian_packages as debian
from tests.e2e.editors.conftest import RECIPE, SCRIPT
from tests.e2e.editors.editor_processes import FILES, Emacs, Home, Neovim
from tests.e2e.editors.terminal import Terminal

FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono{}.ttf"
SIZE = 15
BACK, FRONT = "16161e", "c0caf5"
NAMED = {
    "black": "15161e", "red": "f7768e", "green": "9ece6a", "brown": "e0af68", "yellow": "e0af68", "blue": "7aa2f7",
    "magenta": "bb9af7", "cyan": "7dcfff", "white": "a9b1d6", "brightblack": "565f89", "brightred": "f7768e",
    "brightgreen": "9ece6a", "brightbrown": "e0af68", "brightyellow": "e0af68", "brightblue": "7aa2f7",
    "brightmagenta": "bb9af7", "brightcyan": "7dcfff", "brightwhite": "ffffff",
}  # fmt: skip
SAMPLE = "# intent: How many words are in the notes?\n" + RECIPE.replace(
    "medium: conversation", "medium: conversatoin"
).replace("gates:", "# what it may do\n  gates:")


def colour(name: str, otherwise: str) -> str:
    return "#" + (otherwise if name == "default" else NAMED.get(name, name))


def draw(terminal: Terminal, file: Path) -> None:
    """The screen as it is, cell by cell."""
    plain, bold = (ImageFont.truetype(FONT.format(kind), SIZE) for kind in ("", "-Bold"))
    width, height = round(plain.getlength("M")), SIZE + 5
    screen = terminal.screen
    image = Image.new("RGB", (screen.columns * width + 16, screen.lines * height + 16), f"#{BACK}")
    pen = ImageDraw.Draw(image)
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            front, back = colour(cell.fg, FRONT), colour(cell.bg, BACK)
            here = (row, column) == (screen.cursor.y, screen.cursor.x) and not screen.cursor.hidden
            if cell.reverse ^ here:
                front, back = back, front
            left, top = 8 + column * width, 8 + row * height
            pen.rectangle((left, top, left + width - 1, top + height - 1), fill=back)
            if cell.data.strip():
                pen.text((left, top + 1), cell.data, font=bold if cell.bold else plain, fill=front)
            if cell.underscore:
                pen.line((left, top + height - 3, left + width - 1, top + height - 3), fill="#f7768e")
    image.save(file, optimize=True)
    print(f"{file}: {image.width} x {image.height}, {file.stat().st_size >> 10} KiB")


def neovim(root: debian.Root, home: Home, folder: Path, into: Path) -> None:
    editor = Neovim(root, home, folder)
    (home.path / "config/nvim").mkdir()
    (home.path / "config/nvim/init.lua").write_text(
        "vim.o.termguicolors = true; vim.o.number = true; vim.o.signcolumn = 'yes'\n"
        "vim.diagnostic.config({ virtual_lines = { current_line = true } })\n"
    )
    # Its terminal part would start the other by a path that cannot be started alone; so both are started here.
    socket = str(home.path / "run/nvim.sock")
    serving = Terminal([*editor.command(), "--listen", socket, "words.cantrip.yaml"], editor.environment(), folder)
    while not Path(socket).exists():
        serving.look(0.2)
    with (
        serving,
        Terminal(
            [*root.neovim()[0], "--remote-ui", "--server", socket], editor.environment(), folder, 112, 26
        ) as screen,
    ):
        screen.wait("did you mean", again="8G")
        screen.type("9G8G", 1.5)
        draw(screen, into / "editor-neovim.png")
        screen.type(":s/toin/tion/\r:CantripCast How many words are in the notes?\r")
        screen.wait("three words")
        screen.type("Go- max_")
        screen.type("\x18\x0f")
        screen.wait("max_total_tokens")
        screen.look(1)
        draw(screen, into / "editor-neovim-cast.png")


def emacs(root: debian.Root, home: Home, folder: Path, into: Path) -> None:
    editor = Emacs(root, home, folder)
    program, _ = root.emacs()
    init = home.path / "init.el"
    init.write_text(
        f"""(use-package cantrip-mode :load-path "{FILES}/emacs"
             :mode ("\\\\.cantrip\\\\.ya?ml\\\\'" . cantrip-mode) :hook (cantrip-mode . cantrip-ensure))
           (load-theme 'modus-vivendi t) (menu-bar-mode -1) (global-display-line-numbers-mode)
           (setq flymake-show-diagnostics-at-end-of-line t)"""
    )
    command = [*program, "-Q", "-nw", "-l", str(init), "words.cantrip.yaml"]
    environment = editor.environment(COLORTERM="truecolor")
    with Terminal(command, environment, folder, 112, 26) as screen:
        screen.wait("did you mean")
        screen.type("\x1bgg9\r", 2)
        draw(screen, into / "editor-emacs.png")


def helix(root: debian.Root, home: Home, folder: Path, into: Path) -> None:
    place = home.path / "config/helix"
    place.mkdir()
    for each in ("languages.toml", "config.toml"):
        shutil.copy(FILES / "helix" / each, place)
    shutil.copytree(FILES / "helix/runtime", place / "runtime")
    command, needs = root.helix()
    environment = home.environment(needs, {"COLORTERM": "truecolor"})
    with Terminal([*command, "words.cantrip.yaml"], environment, folder, 112, 26) as screen:
        screen.wait("●")
        screen.type("8G", 1)
        screen.wait("did you mean")
        screen.type("12Gglhh k")
        screen.wait("Queries in one cast", again="\x1b k")
        screen.look(1)
        draw(screen, into / "editor-helix.png")


def main(into: Path) -> None:
    root = debian.root()
    drawn: tuple[Callable[[debian.Root, Home, Path, Path], None], ...] = (neovim, emacs, helix)
    for editor in drawn:
        with tempfile.TemporaryDirectory() as folder:
            project = Path(folder) / "notes"
            (project / ".git").mkdir(parents=True)
            (project / "words.cantrip.yaml").write_text(SAMPLE)
            (project / "count.script.yaml").write_text(SCRIPT)
            editor(root, Home(Path(folder) / "home"), project, into)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
