"""How the chat looks in the real workbench: dark, light and high contrast, at 300 and 250 px; contrast and names by axe-core."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode.chat_project import ANSWER, Chat, Project, call, done
from tests.e2e.vscode.workbench import EXTENSION, ROOT, Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.xdist_group("vscode")]

MCP_SERVER = ROOT / "tests/support/plain_mcp_server.py"
AXE = EXTENSION / "node_modules/axe-core/axe.min.js"
THEMES = {
    "dark": "Default Dark Modern",
    "light": "Default Light Modern",
    "contrast": "Default High Contrast",
    "contrast-light": "Default High Contrast Light",
}
TEXT = """\
The error is in greet.py:2, see `greet.py:1` and [notes](notes.md).

| step | what was done | state |
|---|---|---|
| reading | the configuration of the application | completed |
| editing | `greet` returns its text | completed |
| checking | `packages/application/src/configuration/languages/default_settings_of_the_application.py` | completed |

"""
WORK = [
    {
        "thinking": "Hm.",
        "content": "I look at it.",
        "tool_calls": [call("bash", command="for i in $(seq 60); do echo line $i of the output; done; exit 3")],
    },
    {"tool_calls": [call("edit_file", path="greet.py", old_text='"Hello, "', new_text='"Hello there, "')]},
    done(TEXT + ANSWER),
    {"tool_calls": [call("bash", command="ls -la src tests" + " " * 60 + "; rm -rf /tmp/\u202esecret")]},
    done("Done."),
]

CHOICES = [
    "`shop/user.py`, which has the most to do and whose names are long",
    "`shop/cart.py`, because it is **small**",
    "shop/mail.py",
]
FIELDS = [
    {
        "name": name,
        "label": label,
        "about": about,
        "required": needed,
        "kind": kind,
        "choices": [{"value": each, "title": each, "about": ""} for each in choices],
        **more,
    }
    for name, label, about, needed, kind, choices, more in [
        ("host", "Host", "The name of the machine, without a port", True, "text", (), {}),
        ("port", "Port", "", True, "integer", (), {"least": 1, "most": 65535, "preset": 8080}),
        ("size", "Size", "", True, "choice", ("small", "large"), {"preset": "small"}),
        ("zone", "Zone", "", False, "choice", [f"zone {n}" for n in range(12)], {}),
        ("parts", "Parts", "At most two", True, "choices", ("front", "back", "top"), {"most": 2}),
        ("day", "Day", "", False, "text", (), {"format": "date"}),
        ("password", "Password", "", True, "secret", (), {}),
        ("safe", "Only read", "", False, "boolean", (), {"preset": True}),
    ]
]

ASKING = """
import json, sys
import toolserver

def fill():
    text = {"type": "string"}
    field = {"type": "object", "properties": {"name": text, "password": text}, "required": ["name", "password"]}
    params = {"mode": "form", "message": "Who is it?", "requestedSchema": field}
    print(json.dumps({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}), flush=True)
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "q":
            content = message["result"]["content"]
            return toolserver.result(f"{content['name']}, {len(content['password'])} letters")

toolserver.TOOLS["fill"] = (fill, "Asks who it is.", {})
toolserver.main()
"""


def narrow(chat: Chat, width: int) -> None:
    """Make the side bar so wide."""
    box = chat.page.locator(".part.sidebar").bounding_box()
    assert box is not None
    x = box["x"] + box["width"]
    chat.page.mouse.move(x, 300)
    chat.page.mouse.down()
    chat.page.mouse.move(box["x"] + width, 300, steps=4)
    chat.page.mouse.up()
    chat.page.mouse.move(box["x"] + 700, 500)


def theme(window: Window, chat: Chat, name: str) -> None:
    """Another theme, at once."""
    configure(window, **{"workbench.colorTheme": THEMES[name]})
    kind = {"dark": "vs-dark", "light": "vs", "contrast": "hc-black", "contrast-light": "hc-light"}[name]
    window.page.locator(f".monaco-workbench.{kind}").wait_for()
    # The page gets the colours and then the name.
    chat.frame.locator(f'body[data-vscode-theme-id="{THEMES[name]}"]').wait_for()
    chat.frame.evaluate(
        "Promise.all(document.getAnimations().filter((each) => each instanceof CSSTransition)"
        ".map((each) => each.finished.catch(() => undefined)))"
    )


def configure(window: Window, **settings: object) -> None:
    """Change settings of the workspace."""
    path = window.folder / ".vscode/settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def faults(chat: Chat) -> list[str]:
    """What axe-core finds: too little contrast (4.5:1), elements without a name, wrong roles."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed (npm ci in vscode-extension/)")
    chat.frame.evaluate(AXE.read_text())
    found = chat.frame.evaluate(
        """async () => {
          const rules = ['color-contrast', 'button-name', 'link-name', 'label', 'select-name', 'aria-input-field-name',
            'aria-command-name', 'aria-required-attr', 'aria-valid-attr-value', 'aria-roles', 'aria-required-children',
            'nested-interactive', 'scrollable-region-focusable', 'image-alt', 'summary-name']
          const { violations } = await axe.run(document, { runOnly: { type: 'rule', values: rules } })
          const told = (v, n) => `${v.id}: ${n.html.slice(0, 160)} ${n.any.map((a) => a.message).join(' ')}`
          return violations.flatMap((v) => v.nodes.map((n) => told(v, n)))
        }"""
    )
    unnamed = chat.frame.evaluate(
        """() => [...document.querySelectorAll('[tabindex="0"], button, input, textarea, select, a, summary')]
          .filter((e) => e.checkVisibility() && !e.ariaLabel && !e.ariaLabelledByElements?.length && !e.labels?.length)
          .filter((e) => !e.textContent.trim() && !e.title)
          .map((e) => `no name: ${e.outerHTML.slice(0, 160)}`)"""
    )
    return [*found, *unnamed]


def test_every_theme_can_be_read(workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]) -> None:
    project = Project.make(tmp_path, WORK)
    window = windows(workbench, project.folder)
    chat = Chat(window, wide=False)
    narrow(chat, 300)

    def look(stage: str, *names: str) -> None:
        for name in names or THEMES:
            theme(window, chat, name)
            window.shot(f"look-{name}-{stage}")
            assert faults(chat) == [], name

    look("empty", "dark", "contrast-light")
    chat.say("Do the work.")
    frame = chat.frame
    expect(frame.locator(".question .words")).to_have_text("Run this command?")
    look("command")
    chat.answer()
    expect(frame.locator(".question .words")).to_have_text("Make this edit?")
    look("edit")
    chat.answer()
    chat.ended()
    window.page.wait_for_timeout(300)
    for table in frame.locator(".table").all():
        # The end of its rows can be reached.
        assert table.evaluate(
            """(t) => {
              t.scrollLeft = 9999
              const end = t.querySelector('tr').lastElementChild.getBoundingClientRect().right
              const reached = end <= t.getBoundingClientRect().right + 1
              t.scrollLeft = 0
              return reached
            }"""
        )
    look("answer")
    assert frame.locator(".log").evaluate("(l) => l.scrollHeight - l.clientHeight - l.scrollTop") <= 1
    frame.locator(".tool summary", has_text="seq 60").click()
    frame.locator(".tool summary", has_text="seq 60").click()
    frame.locator(".terminal .line", has_text="line 60 of").scroll_into_view_if_needed()
    # The output's very end is in its box.
    assert frame.locator(".terminal").first.evaluate("(e) => e.scrollHeight - e.clientHeight - e.scrollTop") <= 1
    look("output", "light", "contrast")
    chat.input.press_sequentially("See @")
    frame.locator(".suggestion", has_text="git diff").click()
    frame.get_by_role("button", name="Edit and send again").click()
    expect(chat.input).to_have_value("Do the work.")
    look("editing")
    chat.input.press("Escape")
    expect(frame.locator(".composer .chip")).to_have_text("changes")
    chat.input.fill("@")
    frame.locator(".suggestion").nth(3).wait_for()
    look("mentions", "light", "contrast")
    chat.input.fill("")
    frame.get_by_role("button", name="Remove changes").click()
    # The count of lines in a title is no sign that misleads.
    assert frame.locator(".spelled").count() == 0
    chat.say("More work.")
    frame.locator(".question .spelled").first.wait_for()
    look("hostile")
    # What waits, what changed, and why something is rejected.
    chat.say("And then?")
    frame.locator(".queued").wait_for()
    frame.locator(".changed .strip-bar .toggle").click()
    frame.locator(".changed-file .toggle").click()
    frame.get_by_role("button", name="Reject with a reason").click()
    look("waiting")
    assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    frame.get_by_role("button", name="Remove message 1").click()
    frame.locator(".changed .strip-bar .toggle").click()
    frame.get_by_role("button", name="Reject with a reason").click()
    narrow(chat, 250)
    frame.locator('.choice[data-category="model"]').click()
    frame.locator(".picker-row").first.wait_for()
    look("models-250", "dark", "contrast-light")
    # The question stays in view.
    log, picker = frame.locator(".log").bounding_box(), frame.locator(".picker").bounding_box()
    assert log is not None
    assert picker is not None
    for part in (".question .words", ".question .buttons"):
        box = frame.locator(part).bounding_box()
        assert box is not None
        assert log["y"] <= box["y"] < box["y"] + box["height"] <= picker["y"]
    chat.page.keyboard.press("Escape")
    chat.answer("reject_once")
    chat.ended(2)
    expect(frame.locator(".answered")).to_have_text("You rejected this command.")

    servers = {
        "tools": {"command": sys.executable, "args": ["${workspaceFolder}/tools.py"]},
        "gone": {"command": sys.executable, "args": ["${workspaceFolder}/gone.py", "--and", "a-long-argument"]},
    }
    shutil.copy(MCP_SERVER, project.folder / "tools.py")
    configure(window, **{"cantrip.chat.mcpServers": servers})
    # When the theme is there, VS Code has read the file, so the new session gets the servers.
    theme(window, chat, "dark")
    window.command("Cantrip Chat: New Session")
    expect(frame.locator(".user-item")).to_have_count(0)
    window.command("Cantrip Chat: Show MCP Servers")
    frame.locator(".server.running", has_text="tools").wait_for()
    failed = frame.locator(".server.failed", has_text="gone")
    expect(failed).to_contain_text("MCP server 'gone' cannot be reached")
    for fold in ("11 tools", "Last output"):
        frame.locator(".server summary", has_text=fold).first.click()
    expect(frame.locator(".server .terminal")).to_contain_text("No such file")
    look("servers-250")
    # It is mended, and restarted: its tools are there at once, because the session is opened again.
    shutil.copy(MCP_SERVER, project.folder / "gone.py")
    frame.get_by_role("button", name="Restart gone").press("Enter")
    expect(frame.locator(".server.running")).to_have_count(2)
    expect(frame.locator(".server", has_text="gone")).not_to_contain_text("next session")
    expect(frame.get_by_role("button", name="Restart gone")).to_be_focused()
    window.shot("look-servers-restarted")
    chat.page.keyboard.press("Escape")
    expect(chat.input).to_be_focused()


def test_questions_with_fields_can_be_read_in_every_theme(
    workbench: Workbench, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    asking = call("ask_user", question="Which of the **three** files in `shop/` first?", choices=CHOICES)
    filling = {"tool_calls": [call("tools.fill")]}
    server = {"command": sys.executable, "args": ["${workspaceFolder}/asking.py"]}
    project = Project.make(
        tmp_path,
        [{"tool_calls": [asking]}, done("Thanks."), filling, done("Filled.")],
        **{"cantrip.chat.mcpServers": {"tools": server}},
    )
    shutil.copy(MCP_SERVER, project.folder / "toolserver.py")
    (project.folder / "asking.py").write_text(ASKING)
    window = windows(workbench, project.folder)
    chat = Chat(window, wide=False)
    narrow(chat, 300)
    chat.say("Ask me.")
    chat.frame.locator(".form-question").wait_for()
    for name in THEMES:
        theme(window, chat, name)
        window.shot(f"look-{name}-ask")
        assert faults(chat) == [], name
    chat.input.press("Alt+a")
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("Enter")
    chat.ended()
    expect(chat.frame.locator(".answered")).to_have_text("You answered: shop/cart.py, because it is small")

    # A form of an MCP server: it gets what was typed, and a password stands nowhere in the conversation.
    chat.say("Fill it.")
    chat.answer()
    form = chat.frame.locator(".form-question")
    expect(form.locator(".subject")).to_have_text("tools: Who is it?")
    form.get_by_label("name *").fill("Ada")
    form.get_by_label("password *").fill("hunter2")
    form.get_by_role("button", name="Answer", exact=True).click()
    chat.ended(2)
    expect(chat.frame.locator(".form-item .answered").last).to_have_text("You answered: name: Ada · password: (hidden)")
    expect(chat.frame.locator(".tool-item", has_text="fill (tools)")).to_contain_text("Ada, 7 letters")
    assert not any("hunter2" in path.read_text() for path in project.looms())

    def fields(place: str, *names: str) -> None:
        """A form with all kinds of fields, some of them wrong, as the extension host tells it."""
        chat.frame.evaluate(
            "(item) => window.dispatchEvent(new MessageEvent('message', { data: { type: 'ops', ops: [{ op: 'add', item }] } }))",
            {
                "type": "form",
                "id": place,
                "form": place,
                "question": place,
                "message": "tools: Where is it?",
                "fields": FIELDS,
            },
        )
        chat.frame.get_by_role("button", name="Answer", exact=True).click()
        expect(chat.frame.locator(".field-error:visible").first).to_have_text("Enter an answer.")
        for name in names:
            theme(window, chat, name)
            window.shot(f"look-{name}-form-{place}")
            assert faults(chat) == [], name
        assert chat.frame.evaluate("document.documentElement.scrollWidth <= innerWidth")

    fields("300", *THEMES)
    window.command("Cantrip: Open Chat in an Editor Tab")
    chat.frame = window.frame("body.tab:has(.choice) .composer textarea:not([disabled])")
    fields("900", "dark", "light")
