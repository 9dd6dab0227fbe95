"""The chat's page by itself in Chromium, told what the extension host tells it: hostile words, colours, many messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), pytest.mark.xdist_group("vscode-page")]

HOST = """
window.said = []
let kept
window.acquireVsCodeApi = () => ({ postMessage: (m) => said.push(m), getState: () => kept, setState: (s) => { kept = s } })
window.tell = (message) => window.dispatchEvent(new MessageEvent('message', { data: message }))
window.state = { status: 'ready', title: '', running: true, queues: true, queue: [], options: [], commands: [], plan: [] }
"""
HOSTILE = """
<script>window.broken = 1</script> <img src=x onerror="window.broken = 2"> <b onclick="window.broken = 3">bold</b>

<iframe srcdoc="<script>parent.broken = 4</script>"></iframe>

[run](command:workbench.action.closeWindow) [js](javascript:window.broken=5) [data](data:text/html,<script>1</script>)
![beacon](https://example.invalid/beacon.png) [ok](https://example.org) &lt;script&gt;

```html
<script>window.broken = 6</script>
```

| a <img src=x onerror="window.broken = 7"> |
|---|
| <svg onload="window.broken = 8"> |
"""


@pytest.fixture
def page(chromium: Any, built: Path) -> Iterator[Any]:
    """The page, with nothing said yet."""
    page = chromium.new_page(viewport={"width": 420, "height": 800})
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.set_content('<html><body><main id="chat"></main></body></html>')
    page.add_style_tag(content=(built / "chat.css").read_text())
    page.add_script_tag(content=HOST)
    page.add_script_tag(content=(built / "chat.js").read_text())
    page.evaluate("tell({ type: 'reset', items: [], more: false, state })")
    yield page
    page.close()


def add(page: Any, **item: Any) -> None:
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'add', item }] })", item)


def test_hostile_words_stay_words(page: Any) -> None:
    asked = len(page.asked)
    tool = {"callId": "t", "kind": "execute", "status": "failed", "locations": []}
    add(page, type="agent", id="1", text=HOSTILE)
    add(page, type="tool", id="2", title=HOSTILE, parts=[{"type": "text", "text": HOSTILE}], output=HOSTILE, **tool)
    picture = {"type": "image", "mime": "image/svg+xml", "data": "PHN2Zz4="}
    add(
        page, type="tool", id="3", title="x", parts=[picture, {"type": "link", "name": "n", "uri": "command:x"}], **tool
    )
    add(page, type="error", id="4", title=HOSTILE, detail=HOSTILE, action="none")
    page.wait_for_timeout(300)
    assert page.evaluate("window.broken") is None
    assert (
        page.evaluate(
            "document.querySelectorAll('.log script, .log img, .log iframe, .log svg, .log [onclick], .log [href]').length"
        )
        == 0
    )
    assert page.asked[asked:] == []
    for link in page.locator(".agent-item a").all():
        link.click()
    # Where they lead is the extension host's to judge; the page itself goes nowhere.
    hrefs = page.evaluate("said.filter((m) => m.type === 'link').map((m) => m.href)")
    assert "https://example.org" in hrefs
    assert page.evaluate("window.broken") is None
    assert "<script>window.broken = 1</script>" in page.locator(".agent-item").inner_text()


def test_a_command_is_shown_in_its_colours(page: Any) -> None:
    add(page, type="tool", id="1", callId="t", title="x", kind="execute", status="in_progress", parts=[], locations=[])
    for text in (
        "\x1b[3",
        "2mok\x1b[0m plain\r\n10 %\r",
        "20 %\r99 %\n\x1b[1;31mred",
        "\x1b[0m\x1b]0;title\x07\x1b[2K.",
    ):
        page.evaluate("(text) => tell({ type: 'ops', ops: [{ op: 'output', id: '1', text }] })", text)
    assert page.locator(".terminal").inner_text() == "ok plain\n99 %\nred."
    colours = page.evaluate(
        "[...document.querySelectorAll('.terminal span[style]')].map((s) => [s.textContent, s.style.color, s.className])"
    )
    assert colours == [
        ["ok", "var(--vscode-terminal-ansiGreen)", ""],
        ["red", "var(--vscode-terminal-ansiRed)", "ansi-bold"],
    ]


def test_a_long_output_says_how_long_it_is_and_where_something_is_missing(page: Any) -> None:
    head = "".join(f"line {n}\n" for n in range(1, 641))
    end = "".join(f"line {n}\n" for n in range(49_341, 50_001)) + "BUILD OK\n"
    whole = f"{head}[… 48,700 lines (1,234,567 bytes) not shown …]\n{end}"
    common = {
        "id": "1",
        "callId": "t",
        "title": "make",
        "kind": "execute",
        "name": "bash",
        "parts": [],
        "locations": [],
    }
    add(page, type="tool", status="in_progress", **common)
    page.evaluate("(text) => tell({ type: 'ops', ops: [{ op: 'output', id: '1', text }] })", head)
    done = {**common, "type": "tool", "status": "completed", "output": whole, "recorded": True}
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", done)
    page.locator(".tool-item summary").click()
    fold = page.locator(".output-fold")
    assert page.locator(".terminal").count() == 1
    assert page.locator(".terminal").inner_text().endswith("line 50000\nBUILD OK\n")
    assert "49,986 earlier lines of 50,001. 48,700 in the middle were not kept." in fold.inner_text()
    fold.get_by_text("Open all").click()
    assert "50,001 lines. 48,700 in the middle were not kept." in fold.inner_text()
    gap = page.locator(".terminal .gap")
    assert "48,700 lines" in gap.inner_text()
    assert page.evaluate("document.querySelector('.terminal .gap').previousSibling.textContent") == "line 640\n"
    fold.get_by_text("Open in editor").click()
    assert page.evaluate("said.filter((m) => m.type === 'openOutput')") == [{"type": "openOutput", "item": "1"}]
    # The same item, as it is after a reload.
    page.evaluate("(item) => tell({ type: 'reset', items: [item], more: false, state })", done)
    page.locator(".tool-item summary").click()
    assert "49,986 earlier lines of 50,001." in page.locator(".output-fold").inner_text()


def test_markdown_that_grows_is_that_which_is_whole(page: Any) -> None:
    text = (
        "# Title\n\nSome *words* and `code`.\n\n- a\n  - b\n- c\n\n"
        "```js\nconst a = 1\n\nlet b\n```\n\n| x | y |\n|--|--|\n| 1 | 2 |\n\nEnd."
    )
    add(page, type="agent", id="1", text=text)
    add(page, type="agent", id="2", text="")
    for at in range(0, len(text), 3):
        page.evaluate("(text) => tell({ type: 'ops', ops: [{ op: 'text', id: '2', text }] })", text[at : at + 3])
        if at % 30 == 0:
            page.wait_for_timeout(20)
    page.evaluate("tell({ type: 'state', state: { ...state, running: false } })")
    page.wait_for_timeout(100)
    whole, grown = (page.locator(".agent-item .markdown").nth(n).inner_html() for n in (0, 1))
    assert grown == whole


GROWING = (
    "# Title\n\nSome *words* and `len`, see [a](b.py).\n\n- a\n  - b\n\n- c\n\n  more of c\n\n1. one\n\n2. two\n\n"
    "> said\n> again\n\n```bash\nls -la && echo hi\n\n# end\n```\n\n| x | y |\n|--|--|\n| 1 | 2 |\n\n---\n\nThe end, *END7*."
)


def test_a_late_piece_continues_its_block(page: Any) -> None:
    """Wherever a text is cut, and although the answer has ended meanwhile (or another item has come): the same as in one piece."""
    cuts = range(len(GROWING) + 1)
    add(page, type="agent", id="whole", text=GROWING)
    for cut in cuts:
        add(page, type="agent", id=f"cut{cut}", text=GROWING[:cut])
    page.evaluate("tell({ type: 'state', state: { ...state, running: false } })")
    ops = [{"op": "text", "id": f"cut{cut}", "text": GROWING[cut:]} for cut in cuts if cut < len(GROWING)]
    page.evaluate("(ops) => tell({ type: 'ops', ops })", ops)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    made = page.evaluate("[...document.querySelectorAll('.agent-item .markdown')].map((each) => each.innerHTML)")
    assert len(made) == len(cuts) + 1
    assert [cut for cut, html in enumerate(made[1:]) if html != made[0]] == []
    # A block that is copied or inserted is whole, too.
    block = page.locator(f"[data-id=cut{GROWING.index('ls -la') + 1}]").get_by_role(
        "button", name="Insert at the cursor"
    )
    block.click()
    assert page.evaluate("said.at(-1)") == {"type": "insert", "text": "ls -la && echo hi\n\n# end"}


@pytest.mark.timing
def test_ten_thousand_messages_stay_fluid(page: Any) -> None:
    took = page.evaluate(
        """async () => {
          const spent = []
          const frame = () => new Promise((done) => requestAnimationFrame(done))
          for (let n = 0; n < 10000; n += 200) {
            const ops = Array.from({ length: 200 }, (_, i) => {
              const text = `Message **${n + i}** with \\`code\\`.`
              return { op: 'add', item: { type: 'agent', id: `m${n + i}`, text } }
            })
            const begun = performance.now()
            tell({ type: 'ops', ops })
            await frame()
            spent.push(performance.now() - begun)
          }
          const early = spent.slice(1, 10).sort((a, b) => a - b)[4]
          const late = spent.slice(-9).sort((a, b) => a - b)[4]
          return { early, late, count: document.querySelectorAll('.agent-item').length }
        }"""
    )
    assert took["count"] == 10_000
    # Two hundred more messages at the end cost about what they cost at the beginning.
    assert took["late"] < 10 * took["early"] + 500
    begun = page.evaluate("performance.now()")
    page.locator("textarea").press_sequentially("still quick")
    assert page.locator("textarea").input_value() == "still quick"
    assert page.evaluate("performance.now()") - begun < 10_000
