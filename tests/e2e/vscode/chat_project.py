"""A project, a scripted recipe and hands for the chat in the real workbench."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.vscode.workbench import Window

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Locator

GREET = 'def greet(name):\n    print("Hello, " + name)\n\n\nif __name__ == "__main__":\n    greet("world")\n'
BETTER = '    return f"Hello, {name}!"\n'
ANSWER = """\
## What I did

`greet` **returns** its text now, see [greet.py](greet.py#L2).

| step | state |
|---|---|
| read | done |
| edit | done |

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"  # nothing is printed
```
"""


def done(answer: str, **keys: Any) -> dict[str, Any]:
    """A response that ends the cast."""
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}], **keys}


def call(gate: str, /, **args: Any) -> dict[str, Any]:
    """A call of a gate."""
    return {"gate": gate, "args": args}


PLAN = [
    {"content": "Read greet.py", "status": "completed", "priority": "medium"},
    {"content": "Return the text", "status": "in_progress", "priority": "high"},
    {"content": "Run it", "status": "pending", "priority": "medium"},
]
EDITING: Sequence[Mapping[str, Any]] = [
    {
        "when": "Make greet",
        "thinking": "The function prints. It is easier to test if it **returns** its text.",
        "content": "I look at the file first.",
        "chunks": ["I look ", "at the file ", "first."],
        "tool_calls": [call("plan", entries=PLAN), call("read_file", path="greet.py")],
        "usage": {"prompt_tokens": 4200, "completion_tokens": 130, "cost": 0.02},
    },
    {
        "when": "Make greet",
        "content": "Now I change it.",
        "tool_calls": [call("edit_file", path="greet.py", old_text=GREET.splitlines(True)[1], new_text=BETTER)],
    },
    {"when": "Make greet", "tool_calls": [call("bash", command="python3 greet.py && echo it runs")]},
    done(ANSWER, when="Make greet"),
]
REST: Sequence[Mapping[str, Any]] = [
    {"when": "count", "tool_calls": [call("bash", command="for i in $(seq 100); do echo line $i; sleep 1; done")]},
    done("Another answer.", when="otherwise", repeat=True),
    done("Fine.", repeat=True),
]


@dataclass
class Project:
    """A folder with a file, and the settings by which its chat is scripted."""

    folder: Path

    @classmethod
    def make(cls, home: Path, responses: Sequence[Mapping[str, Any]] = (*EDITING, *REST), **settings: Any) -> Project:
        folder = home / "project"
        (folder / ".vscode").mkdir(parents=True)
        recipe = home / "chat.cantrip.yaml"
        wards = [{"max_turns": 20}, {"bash_writable_paths": ["."]}]
        gates = ["done", "plan", "read_file", "edit_file", "write_file", "ask_user"]
        crystal = {"provider": "scripted", "context_window": 200_000, "responses": list(responses)}
        # JSON is YAML.
        recipe.write_text(
            json.dumps(
                {"name": "chat", "crystal": crystal, "circle": {"medium": "bash", "gates": gates, "wards": wards}}
            )
        )
        chosen = {
            "files.autoSave": "off",
            "cantrip.stateDir": str(home / "state"),
            "cantrip.chat.recipe": str(recipe),
            "cantrip.chat.mode": "ask",
            **settings,
        }
        (folder / ".vscode/settings.json").write_text(json.dumps(chosen))
        (folder / "greet.py").write_text(GREET)
        (folder / "notes.md").write_text("# Notes\n")
        return cls(folder)

    def looms(self) -> list[Path]:
        """The looms of its sessions."""
        return list((self.folder.parent / "state").rglob("*.loom.jsonl"))

    @property
    def greet(self) -> str:
        return (self.folder / "greet.py").read_text()


class Chat:
    """The chat's panel in a window."""

    def __init__(self, window: Window, *, wide: bool = True) -> None:
        self.window = window
        self.page = window.page
        window.view("Cantrip Chat")
        self.find()
        if wide:
            self._widen()

    def find(self) -> None:
        """Look for the panel's frame, which is another one after a reload."""
        self.frame: Frame = self.window.frame(
            "body:not(.tab, .opening):has(.choice) .composer textarea:not([disabled])"
        )

    @property
    def input(self) -> Locator:
        return self.frame.locator(".composer textarea")

    def say(self, text: str) -> None:
        """Type a message and send it."""
        self.input.fill(text)
        self.input.press("Enter")

    def answer(self, kind: str = "allow_once") -> None:
        """Answer the question that is open, by its button."""
        self.frame.locator(f'.question button[data-kind="{kind}"]').click()

    def ended(self, count: int = 1) -> None:
        """Wait until so many answers have ended."""
        self.frame.locator(".end").nth(count - 1).wait_for()
        self.frame.locator("body:not(.running)").wait_for()

    def words(self) -> str:
        """What stands in the conversation."""
        return self.frame.locator(".items").inner_text()

    def _widen(self) -> None:
        box = self.page.locator(".part.sidebar").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"], 300
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + 140, y, steps=4)
        self.page.mouse.up()
        self.page.mouse.move(x + 400, y + 200)
