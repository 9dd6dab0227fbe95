"""Text can be read on its ground: WCAG's contrast, computed of the colours that the style sheet names."""

from __future__ import annotations

import re

import pytest

from cantrip_acp.loom.view import assets

GROUNDS = ("ground", "raised", "sunken", "accent-soft")
PAIRS = [
    *(
        (text, ground)
        for text in ("text", "soft", "accent", "good", "bad", "info", "reward", "warn")
        for ground in ("ground", "raised")
    ),
    *(("text", ground) for ground in GROUNDS),
    *(("soft", ground) for ground in GROUNDS),
    *((name, f"{name}-soft") for name in ("good", "warn", "bad", "info", "reward", "accent")),
    *((f"word-{name}", "raised") for name in ("keyword", "string", "number", "comment")),
    *((f"c{n}", "ground") for n in range(16)),
    *((f"c{n}", "raised") for n in range(16)),
]


def colours(theme: str) -> dict[str, str]:
    style = assets.text("view.css")
    light = style.partition(":root {")[2].partition("}")[0]
    dark = style.partition(':root[data-theme="dark"] {')[2].partition("}")[0]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found if theme == "light" else found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark))


def luminance(colour: str) -> float:
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[at : at + 2]) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    known = colours(theme)
    poor = {}
    for text, ground in PAIRS:
        high, low = sorted((luminance(known[text]), luminance(known[ground])), reverse=True)
        ratio = (high + 0.05) / (low + 0.05)
        if ratio < 4.5:
            poor[f"{text} on {ground}"] = round(ratio, 2)
    assert poor == {}


def test_dark_by_the_system_is_dark_by_choice() -> None:
    style = assets.text("view.css")
    chosen = style.partition(':root[data-theme="dark"] {')[2].partition("}")[0]
    system = style.partition(':root:not([data-theme="light"]) {')[2].partition("}")[0]
    assert chosen.split() == system.split()
