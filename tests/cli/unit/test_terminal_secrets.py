"""Secrets on the terminal: whatever is shown has none, also in pieces and in colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from cantrip_acp.cli.render.terminal import Block, Screen
from cantrip_acp.text.redaction import MASK, shared
from cantrip_acp.types.styled import Styled
from tests.support.secret_places import SECRET


@pytest.fixture(autouse=True, params=[True, False], ids=["masked", "control"])
def masks(request: pytest.FixtureRequest) -> bool:
    """Whether the process knows the secret. The control shows that the test would see it."""
    if request.param:
        shared().add(SECRET)
    return bool(request.param)


def in_pieces(screen: Screen) -> None:
    flow = screen.flow("*")
    for piece in (f"It is {SECRET[:9]}", SECRET[9:], " indeed"):
        flow.feed(piece)
    flow.close()


def in_a_long_line(screen: Screen) -> None:
    block = Block(screen, indent=2)
    block.feed("x" * 3_990 + SECRET + "\n")
    block.close()


def in_coloured_output(screen: Screen) -> None:
    block = Block(screen, indent=2)
    for piece in (f"\033[31m{SECRET[:5]}\033[1m{SECRET[5:12]}", f"\033[0m{SECRET[12:]}\n"):
        block.feed(piece)
    block.close()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    "show",
    [
        in_pieces,
        in_a_long_line,
        in_coloured_output,
        lambda screen: screen.line("a", (f"x {SECRET}", "bold")),
        lambda screen: screen.line_with_bar(Styled(SECRET, ((0, "31"), (7, "1")))),
    ],
    ids=["pieces", "long line", "colours", "line", "bar"],
)
def test_what_is_shown_has_no_secret(show: Callable[[Screen], None], terminal: bool, masks: bool) -> None:
    out = io.StringIO()
    show(Screen(out, colour=terminal, width=10_000 if terminal else None))
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert (SECRET in plain) is not masks
    assert (MASK in plain) is masks
