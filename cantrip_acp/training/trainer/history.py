"""The history of a run: the figures of its steps, as text for a terminal and as a page that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cantrip_acp.loom.output_file import output_file
from cantrip_acp.training.trainer.example import Settings

_HEIGHT, _WIDTH = 10, 60
_DOTS = ("▁", "▂", "▃", "▄", "▅", "▆", "▇", "█")
_WIDE, _HIGH, _EDGE = 720, 320, 40

_STYLE = """\
:root { color-scheme: light dark; --line: #2563eb; --held: #d97706; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .15rem .5rem; text-align: right; }
th { border-bottom: 1px solid; } .grid { stroke: currentColor; opacity: .2; }
.train { fill: none; stroke: var(--line); stroke-width: 2; }
.held { fill: none; stroke: var(--held); stroke-width: 2; } circle { fill: var(--held); }
"""


class Evaluation(msgspec.Struct, frozen=True):
    """Casts of held-out questions: their mean reward, and the share of them with the reward 1."""

    reward: float
    right: float
    casts: int
    seconds: float


class Step(msgspec.Struct, frozen=True):
    """The figures of a step. ``times`` are in seconds: ``rollout`` (of which ``decode``: the model computed; ``cantrip``:
    processor time of everything else, with the HTTP client and server), ``export``, ``update``, ``evaluation``, ``save``.

    The step 0 is the evaluation before the training.
    """

    number: int
    reward: float | None = None
    right: float | None = None
    casts: int = 0
    failed: int = 0
    tokens: int = 0
    update: dict[str, float] = {}
    times: dict[str, float] = {}
    held_out: Evaluation | None = None


def chart(history: Sequence[Step]) -> list[str]:
    """Lines of text: the training reward of each step as bars, and the held-out rewards below."""
    rewards = [step.reward for step in history if step.reward is not None]
    lines: list[str] = []
    if rewards:
        count = min(_WIDTH, len(rewards))
        # Several steps share a bar where there are more steps than columns.
        bars = [
            sum(part) / len(part)
            for n in range(count)
            if (part := rewards[n * len(rewards) // count : (n + 1) * len(rewards) // count])
        ]
        top = max(1.0, *bars)
        for row in range(_HEIGHT, 0, -1):
            filled = [min(8, max(0, math.floor((bar / top * _HEIGHT - row + 1) * 8))) for bar in bars]
            mark = f"{top * row / _HEIGHT:4.1f}" if row % 5 == 0 else "    "
            lines.append(f"{mark} │{''.join(' ' if not part else _DOTS[part - 1] for part in filled)}")
        lines.append(f" 0.0 └{'─' * len(bars)}  training reward, steps 1 to {len(rewards)}")
    for step in history:
        if (found := step.held_out) is not None:
            lines.append(
                f"held out after step {step.number:>3}: reward {found.reward:.2f}, right {found.right:.0%} of {found.casts}"
            )
    return lines


def write_page(file: Path, name: str, history: Sequence[Step], settings: Settings) -> None:
    """Write the page with the curve and a table. A reader never sees half of it."""
    with output_file(file) as page:
        page.write(_page(name, history, settings).encode())


def _page(name: str, history: Sequence[Step], settings: Settings) -> str:
    last = max(1, history[-1].number if history else 1)

    def place(number: int, reward: float) -> str:
        x = _EDGE + (_WIDE - 2 * _EDGE) * number / last
        return f"{x:.1f},{_HIGH - _EDGE - (_HIGH - 2 * _EDGE) * max(0.0, min(1.0, reward)):.1f}"

    grid = []
    for tenth in range(0, 11, 2):
        y = place(0, tenth / 10).partition(",")[2]
        grid.append(f'<line class="grid" x1="{_EDGE}" x2="{_WIDE - _EDGE}" y1="{y}" y2="{y}"/>')
        grid.append(
            f'<text x="{_EDGE - 8}" y="{y}" text-anchor="end" dominant-baseline="middle">{tenth / 10:.1f}</text>'
        )
    train = " ".join(place(step.number, step.reward) for step in history if step.reward is not None)
    held = [(step.number, step.held_out.reward) for step in history if step.held_out is not None]
    dots = "".join(
        '<circle cx="{}" cy="{}" r="4"/>'.format(*place(number, reward).split(",")) for number, reward in held
    )
    rows = "".join(map(_row, history))
    title = html.escape(f"cantrip train {name}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>{title}</h1>
<p>{html.escape(settings.model)}, seed {settings.seed}, {settings.groups} groups of {settings.samples} casts in each step</p>
<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="Rewards by step">{"".join(grid)}
<polyline class="train" points="{train}"/>
<polyline class="held" points="{" ".join(place(number, reward) for number, reward in held)}"/>{dots}
<text x="{_EDGE}" y="{_HIGH - 8}">step 0</text><text x="{_WIDE - _EDGE}" y="{_HIGH - 8}" text-anchor="end">step {last}</text>
<text x="{_WIDE // 2}" y="{_HIGH - 8}" text-anchor="middle">blue: training reward, orange: held-out questions</text></svg>
<table><tr><th>step</th><th>reward</th><th>right</th><th>held out: reward</th><th>right</th><th>rollout s</th>
<th>of it cantrip s</th><th>export s</th><th>update s</th></tr>
{rows}</table></body></html>
"""


def _row(step: Step) -> str:
    held = step.held_out
    cells = [
        str(step.number),
        "" if step.reward is None else f"{step.reward:.3f}",
        "" if step.right is None else f"{step.right:.0%}",
        "" if held is None else f"{held.reward:.3f}",
        "" if held is None else f"{held.right:.0%}",
        *(
            f"{step.times[name]:.2f}" if name in step.times else ""
            for name in ("rollout", "cantrip", "export", "update")
        ),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
