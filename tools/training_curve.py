"""Draws the held-out rewards of several runs of `cantrip train` as one picture, with the time of each.

    python tools/training_curve.py RUN... > docs/pictures/training-larger.svg

RUN is the folder of a run (`cantrip train larger --seed 0 --out RUN`).
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

WIDE, HIGH, EDGE = 720, 360, 44
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea")


def state(run: Path) -> dict[str, Any]:
    """Settings and history of a run: the metadata of its safetensors file, without torch."""
    with (run / "state.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found: dict[str, Any] = json.loads(json.loads(file.read(length))["__metadata__"]["run"])
    return found


def picture(runs: list[Path]) -> str:
    states = [state(run) for run in runs]
    last = max(each["history"][-1]["number"] for each in states)

    def place(number: float, reward: float) -> str:
        x = EDGE + (WIDE - 2 * EDGE) * number / last
        return f"{x:.1f},{HIGH - EDGE - (HIGH - 2 * EDGE) * reward:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="Rewards by step" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#374151">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
    ]
    for tenth in range(0, 11, 2):
        y = place(0, tenth / 10).partition(",")[2]
        out.append(f'<line x1="{EDGE}" x2="{WIDE - EDGE}" y1="{y}" y2="{y}" stroke="#d1d5db"/>')
        out.append(f'<text x="{EDGE - 8}" y="{y}" text-anchor="end" dominant-baseline="middle">{tenth / 10:.1f}</text>')
    for number in range(0, last + 1, 10):
        x = place(number, 0).partition(",")[0]
        out.append(f'<text x="{x}" y="{HIGH - EDGE + 18}" text-anchor="middle">{number}</text>')
    for colour, each in zip(COLOURS, states, strict=False):
        history = each["history"]
        train = [(step["number"], step["reward"]) for step in history if step["reward"] is not None]
        held = [(step["number"], step["held_out"]["reward"]) for step in history if step["held_out"]]
        for points, width, opacity in ((train, 1, 0.45), (held, 2.5, 1)):
            line = " ".join(place(*point) for point in points)
            out.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>'
            )
        for point in held:
            x, y = place(*point).split(",")
            out.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        minutes = sum(
            sum(step["times"].get(k, 0) for k in ("rollout", "export", "update", "evaluation", "save"))
            for step in history
        )
        seed = each["settings"]["seed"]
        label = f"seed {seed}: {held[0][1]:.2f} to {held[-1][1]:.2f} in {minutes / 60:.1f} minutes"
        left, top = WIDE - EDGE - 230, HIGH - EDGE - 20 - 18 * (len(states) - states.index(each))
        out.append(f'<text x="{left}" y="{top}" fill="{colour}">{label}</text>')
    middle = WIDE // 2
    title = "Reward by step. Thick: held-out questions; thin: the casts of the step"
    out.append(f'<text x="{middle}" y="20" text-anchor="middle">{title}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture([Path(each) for each in sys.argv[1:]]))
