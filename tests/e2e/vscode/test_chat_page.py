"""The chat's page by itself in Chromium, told what the extension host tells it: hostile words, colours, many messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import eventually, rested

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode-page")]

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
        "\x1b[7;32mback\x1b[0;38;5;9mtable\x1b[0;38;2;1;2;3mrgb\x1b[0m",
    ):
        page.evaluate("(text) => tell({ type: 'ops', ops: [{ op: 'output', id: '1', text }] })", text)
    assert page.locator(".terminal").inner_text() == "ok plain\n99 %\nred.backtablergb"
    colours = page.evaluate(
        "[...document.querySelectorAll('.terminal span[style]')].map((s) => [s.textContent, s.style.color, s.className])"
    )
    assert colours == [
        ["ok", "var(--vscode-terminal-ansiGreen)", ""],
        ["red", "var(--vscode-terminal-ansiRed)", "ansi-bold"],
        ["back", "var(--vscode-terminal-background, var(--vscode-editor-background))", "ansi-reverse"],
        ["table", "var(--vscode-terminal-ansiBrightRed)", ""],
        ["rgb", "rgb(1, 2, 3)", ""],
    ]
    back = page.evaluate("document.querySelector('.ansi-reverse').style.backgroundColor")
    assert back == "var(--vscode-terminal-ansiGreen)"


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
    whole, grown = (page.locator(".agent-item .markdown").nth(n) for n in (0, 1))
    eventually(page, lambda: grown.inner_html() == whole.inner_html())


GROWING = (
    "# Title\n\nSome *words* and `len`, see [a](b.py).\n\n- a\n  - b\n\n- c\n\n  more of c\n\n1. one\n\n2. two\n\n"
    "> said\n> again\n\n```bash\nls -la && echo hi\n\n# end\n```\n\n| x | y |\n|--|--|\n| 1 | 2 |\n\n---\n\nThe end, *END7*."
)


def test_a_plan_that_a_question_shows_is_taken_out_of_the_answer(page: Any) -> None:
    said = {"type": "agent", "id": "1", "text": "I **looked**.\n\n# Plan\n\n1. Go."}
    add(page, **said)
    page.evaluate("tell({ type: 'ops', ops: [{ op: 'text', id: '1', text: ' Now.' }] })")
    item = {**said, "text": "I **looked**."}
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", item)
    assert page.locator(".agent-item").inner_text() == "I looked."
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", {**item, "text": ""})
    assert page.locator(".agent-item:visible").count() == 0


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


MANY = """(count) => {
  window.all = Array.from({ length: count }, (_, n) => n % 3 === 0
    ? { type: 'user', id: `i${n}`, text: `Question ${n}`, attachments: [], after: 0 }
    : { type: 'agent', id: `i${n}`, text: `Answer ${n}\\n\\nwith **words** in ${1 + n % 7} lines${'\\n\\nmore'.repeat(n % 7)}` })
  window.fetched = 0
  window.rest = { postMessage(message) {
    if (message.type !== 'items') return
    fetched += 1
    const items = all.slice(message.from, message.to)
    setTimeout(() => tell({ type: 'items', ask: message.ask, first: message.from, items, total: all.length }), 5)
  } }
  const push = said.push.bind(said)
  said.push = (message) => { rest.postMessage(message); return push(message) }
  const first = count - 120
  const idle = { ...state, running: false, session: 's1' }
  tell({ type: 'reset', items: all.slice(-120), first, total: count, state: idle })
}"""
SEEN = """() => {
  const log = document.querySelector('.log').getBoundingClientRect()
  const seen = [...document.querySelectorAll('.item')].filter((each) => {
    const { top, bottom } = each.getBoundingClientRect()
    return bottom > log.top && top < log.bottom
  })
  return seen.map((each) => Number(each.getAttribute('aria-posinset')))
}"""


def test_a_long_conversation_has_elements_only_near_what_is_seen(page: Any) -> None:
    page.evaluate(MANY, 20_000)
    eventually(page, lambda: page.evaluate(SEEN)[-1:] == [20_000])
    log = page.locator(".log")
    log.hover()
    seen = [page.evaluate(SEEN)[0]]
    for _ in range(60):
        page.mouse.wheel(0, -1500)
        page.wait_for_timeout(30)
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        now = page.evaluate(SEEN)
        # Never an empty view, never a jump: what is seen moves up, and its numbers follow each other.
        assert now == list(range(now[0], now[0] + len(now)))
        assert 0 <= seen[-1] - now[0] < 60, seen
        seen.append(now[0])
        assert page.locator(".item").count() <= 320
    before = rested(page, SEEN)
    assert before[0] < 20_000 - 400
    # New messages at the end do not move what the user reads.
    page.evaluate(
        """() => {
          const item = { type: 'agent', id: 'new', text: 'New.' }
          all.push(item)
          tell({ type: 'ops', ops: [{ op: 'add', item }] })
        }"""
    )
    page.wait_for_timeout(50)
    assert page.evaluate(SEEN) == before
    # Far away by the scroll bar, then to the first message, and back to the end.
    page.evaluate(
        """() => {
          const log = document.querySelector('.log')
          log.dispatchEvent(new WheelEvent('wheel'))
          log.scrollTop = log.scrollHeight / 2
        }"""
    )
    eventually(page, lambda: any(5_000 < number < 15_000 for number in page.evaluate(SEEN)[:1]))
    assert page.locator(".item").count() <= 320
    log.focus()
    eventually(page, lambda: page.keyboard.press("Home") or page.evaluate(SEEN)[:1] == [1])
    assert page.locator(".item").first.inner_text().startswith("You:\nQuestion 0")
    page.locator(".to-end").click()
    eventually(page, lambda: page.evaluate(SEEN)[-1:] == [20_001])


def test_alt_and_the_arrows_go_through_a_long_conversation(page: Any) -> None:
    page.evaluate(MANY, 1_000)
    page.locator(".log").focus()
    for _ in range(200):
        page.keyboard.press("Alt+ArrowUp")
        page.wait_for_timeout(1)
    rested(page, SEEN)
    at = int(page.evaluate("document.activeElement.closest('.item').getAttribute('aria-posinset')"))
    assert 795 <= at <= 810
    assert at in page.evaluate(SEEN)
    page.keyboard.press("Alt+ArrowDown")
    assert int(page.evaluate("document.activeElement.closest('.item').getAttribute('aria-posinset')")) == at + 1


def test_the_place_in_a_conversation_survives_a_new_page(page: Any, built: Path) -> None:
    page.evaluate(MANY, 2_000)
    page.locator(".log").hover()
    for _ in range(8):
        page.mouse.wheel(0, -2000)
        page.wait_for_timeout(40)
    before, _ = rested(page, f"() => [({SEEN})(), kept]")
    assert before[-1] < 1_950
    kept = page.evaluate("kept")
    page.set_content('<html><body><main id="chat"></main></body></html>')
    page.add_style_tag(content=(built / "chat.css").read_text())
    page.evaluate("(value) => { kept = value; document.body.replaceChildren() }", kept)
    page.evaluate("document.body.innerHTML = '<main id=\"chat\"></main>'")
    page.add_script_tag(content=(built / "chat.js").read_text())
    page.evaluate(MANY, 2_000)
    eventually(page, lambda: page.evaluate(SEEN) == before)


def call(number: int, kind: str = "read", **more: Any) -> dict[str, Any]:
    fields = {"title": f"Call {number}", "parts": [], "locations": [], "status": "completed"}
    return {"type": "tool", "id": f"c{number}", "callId": f"c{number}", "kind": kind, **fields, **more}


def test_runs_of_calls_are_one_line_and_what_matters_stays_visible(page: Any) -> None:
    thought = {"type": "thought", "id": "th", "text": "Next."}
    run = [call(1, started=1_000), call(2), thought, call(3, "execute"), call(4, ended=13_900)]
    for item in run:
        add(page, **item)
    assert [each.inner_text() for each in page.locator(".run-head").all()] == ["Read 3 files, ran 1 command · 12 s"]
    assert page.locator(".tool-item:visible, .thought-item:visible").count() == 0
    # A call that runs, asks, fails or changes a file is no part of it.
    add(page, **call(5, "execute", status="in_progress", name="bash"))
    add(page, **call(6, status="failed"))
    diff = {
        "type": "diff",
        "path": "/p/a",
        "shown": "a",
        "isNew": False,
        "added": 1,
        "removed": 0,
        "hunks": [],
        "left": 0,
    }
    add(page, **call(7, "edit", parts=[diff]))
    visible = page.locator(".tool-item:visible")
    assert [each.get_attribute("data-id") for each in visible.all()] == ["c5", "c6", "c7"]
    # By keyboard, with a state for screen readers.
    head = page.locator(".run-head")
    assert head.get_attribute("aria-expanded") == "false"
    head.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-expanded") == "true"
    assert visible.count() == 7
    # It stays open when the answer goes on, and the call that ran joins when it has ended beside others.
    add(page, type="agent", id="a", text="Done.")
    assert visible.count() == 7
    page.keyboard.press("Space")
    assert visible.count() == 3


def child(number: int, state: str = "running", **more: Any) -> dict[str, Any]:
    task = f"Read chapter {number}: find every sentence about the lighthouse, and who says it"
    return {
        "id": f"e{number}",
        "number": str(number),
        "task": task,
        "state": state,
        "now": "",
        "steps": [],
        "earlier": 0,
        **more,
    }


def test_running_children_are_lines_with_their_task_and_what_they_do(page: Any) -> None:
    page.set_viewport_size({"width": 300, "height": 800})
    steps = [{"kind": "action", "text": "Read chapter1.txt"}, {"kind": "failure", "text": "grep failed: no such file"}]
    children = [
        child(1, steps=steps, now="Searching for “lighthouse”"),
        child(2, "done", started=1_000, ended=13_500),
        child(3, "stopped", now="stopped: max_turns"),
    ]
    batch = call(1, "other", name="call_agent_batch", title="3 children", status="in_progress")
    add(page, **batch, children=children)
    lines = page.locator(".child > summary")
    assert [each.get_attribute("aria-label") for each in lines.all()] == [
        f"1, {children[0]['task']}, running, Searching for “lighthouse”",
        f"2, {children[1]['task']}, done",
        f"3, {children[2]['task']}, stopped, stopped: max_turns",
    ]
    assert page.locator(".child .seconds").nth(1).inner_text() == "12 s"
    # At 300 px the task is readable: two lines of it.
    first = page.locator(".child .task").first
    assert first.bounding_box()["width"] > 180
    assert first.bounding_box()["height"] > 30
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    # Opening one shows its steps, which grow while it works.
    lines.first.click()
    listed = page.locator(".child").first.locator(".step")
    assert [each.inner_text() for each in listed.all()] == [each["text"] for each in steps]
    kept = listed.first.element_handle()
    more = [*steps, {"kind": "text", "text": "Nobody says it."}]
    grown = batch | {"children": [children[0] | {"steps": more, "now": "Nobody says it."}, *children[1:]]}
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", grown)
    assert [each.inner_text() for each in listed.all()] == [each["text"] for each in more]
    assert kept.is_visible()
    # The line of an only child stands for its call, and has its answer.
    answer = [{"type": "text", "text": "The keeper says it."}]
    add(
        page,
        **call(
            2, "other", name="call_agent", title="Delegate", parts=answer, children=[child(4, "done") | {"number": ""}]
        ),
    )
    only = page.locator("[data-id=c2]")
    assert only.locator("summary:visible").count() == 1
    only.locator(".child > summary").click()
    assert "The keeper says it." in only.inner_text()


def test_a_running_call_shows_its_seconds_and_can_be_stopped_alone(page: Any) -> None:
    # The extension host's clock is an hour ahead of the page's.
    page.evaluate("tell({ type: 'state', state: { ...state, now: Date.now() + 3_600_000 } })")
    started = page.evaluate("Date.now()") + 3_600_000 - 65_000
    add(page, **call(1, "execute", status="in_progress", name="bash", started=started))
    item, stop = page.locator(".tool-item"), page.locator(".stop-call")
    shown = item.locator(".seconds").inner_text()
    assert shown.startswith("1 min ")
    page.wait_for_function("(before) => document.querySelector('.seconds').textContent !== before", arg=shown)
    # An agent that cannot stop one call gets no button for it.
    assert not stop.is_visible()
    page.evaluate("tell({ type: 'state', state: { ...state, stopsCalls: true } })")
    assert stop.get_attribute("aria-label") == "Stop this call; Cantrip goes on"
    stop.click()
    assert page.evaluate("said.filter((m) => m.type === 'stopCall')") == [{"type": "stopCall", "item": "c1"}]
    assert stop.is_disabled()
    done = call(1, "execute", status="failed", name="bash", stopped=True, started=started, ended=started + 66_000)
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", done)
    assert not stop.is_visible()
    assert item.locator(".seconds").inner_text() == "1 min 6 s"


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
          const items = [...document.querySelectorAll('.agent-item')]
          return { early, late, count: items.length, last: items.at(-1).getAttribute('aria-posinset') }
        }"""
    )
    assert took["count"] <= 440
    assert took["last"] == "10000"
    # Two hundred more messages at the end cost about what they cost at the beginning.
    assert took["late"] < 10 * took["early"] + 500
    begun = page.evaluate("performance.now()")
    page.locator("textarea").press_sequentially("still quick")
    assert page.locator("textarea").input_value() == "still quick"
    assert page.evaluate("performance.now()") - begun < 10_000


def test_text_has_its_direction_and_a_readable_width(page: Any) -> None:
    page.set_viewport_size({"width": 1400, "height": 800})
    add(page, type="user", id="1", text="\u05e9\u05dc\u05d5\u05dd.", attachments=[], after=0)
    words = (
        "\u05d4\u05d5\u05d0 \u05db\u05ea\u05d1.\n\n- \u05d0\u05d7\u05d3\n\n"
        + "An English sentence. " * 40
        + "\n\n```\nx = 1\n```\n"
    )
    add(page, type="agent", id="2", text=words)
    directions = page.evaluate(
        "['.user-item .words', '.markdown > p', '.markdown > ul', '.markdown > p:nth-of-type(2)', '.code-block']"
        ".map((each) => getComputedStyle(document.querySelector(each)).direction)"
    )
    assert directions == ["rtl", "rtl", "rtl", "ltr", "ltr"]
    width = "document.querySelector('{}').getBoundingClientRect().width"
    assert page.evaluate(width.format(".markdown > p:nth-of-type(2)")) < 800
    assert page.evaluate(width.format(".code-block")) > 1000


def test_a_change_scrolls_and_a_question_about_it_shows_the_whole_line(page: Any) -> None:
    page.set_viewport_size({"width": 300, "height": 800})
    line = "+a_long_name_of_a_function(" + "argument, " * 20 + ")"
    part = {"type": "diff", "path": "/p/a.py", "shown": "a.py", "isNew": False, "added": 1, "removed": 0, "left": 0}
    part["hunks"] = [{"oldStart": 1, "newStart": 1, "lines": [" short", line]}]
    call = {"type": "tool", "callId": "t", "title": "Edit", "kind": "edit", "parts": [part], "locations": []}
    add(page, **call, id="1", status="completed")
    question = {"id": "q", "options": [{"id": "y", "name": "Allow", "kind": "allow_once"}]}
    add(page, **call | {"callId": "u"}, id="2", status="pending", question=question)
    rows = page.evaluate(
        "[...document.querySelectorAll('.rows')].map((rows) => [rows.scrollWidth > rows.clientWidth, "
        "rows.lastElementChild.offsetHeight > 2 * rows.firstElementChild.offsetHeight, "
        "rows.lastElementChild.offsetWidth === rows.firstElementChild.offsetWidth])"
    )
    assert rows == [[True, False, True], [False, True, True]]


def test_a_narrow_composer_has_one_row_of_controls_and_whole_hints(page: Any) -> None:
    page.set_viewport_size({"width": 300, "height": 800})
    one = {"description": "", "values": [{"value": "a", "name": "A name of some length", "description": ""}] * 2}
    options = [
        {**one, "id": name, "name": name, "category": category, "value": "a"}
        for name, category in (("Mode", "mode"), ("Model", "model"), ("Recipe", "_recipe"))
    ]
    page.evaluate(
        "(options) => tell({ type: 'state', state: { ...state, running: false, options, "
        "usage: { used: 900, size: 9000, cost: '$0.10' } } })",
        options,
    )
    places = page.evaluate(
        "[...document.querySelectorAll('.bar > :not([hidden]), .choice')].filter((each) => each.offsetHeight > 0)"
        ".map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.right, (box.top + box.bottom) / 2])"
    )
    assert len(places) >= 6
    assert all(left >= 0 and right <= 300 for left, right, _ in places)
    assert max(middle for *_, middle in places) - min(middle for *_, middle in places) < 4
    assert all(each.get_attribute("title") for each in page.locator(".choice").all())
    # The names have the room of the cost, which is in the tooltip.
    assert page.locator(".usage").inner_text() == "10 %"
    assert "$0.10" in (page.locator(".usage").get_attribute("title") or "")
    hints = page.evaluate(
        "[...document.querySelectorAll('.tips kbd')].map((each) => each.getBoundingClientRect().left)"
    )
    assert hints
    assert min(hints) >= 0
    page.set_viewport_size({"width": 500, "height": 800})
    assert page.locator(".usage").inner_text() == "10 % · $0.10"


def test_what_the_model_cannot_read_says_so_before_it_is_sent(page: Any) -> None:
    values = [{"value": name, "name": name, "description": ""} for name in ("blind", "seeing")]
    option = {"id": "model", "name": "Model", "category": "model", "description": "", "values": values}

    def choose(name: str) -> None:
        chosen = {**option, "value": name, **({"unread": ["pictures", "PDF files"]} if name == "blind" else {})}
        page.evaluate("(o) => tell({ type: 'state', state: { ...state, running: false, options: [o] } })", chosen)

    choose("blind")
    warning = page.locator(".box .unread")
    assert not warning.is_visible()
    picture = {"kind": "image", "name": "shot.png", "mime": "image/png", "data": "iVBORw0KGgo="}
    page.evaluate("(a) => tell({ type: 'attach', attachments: [a] })", picture)
    assert "cannot read pictures" in warning.inner_text()
    warning.get_by_role("button", name="Choose another model").click()
    assert page.locator(".picker-row").count() == 2
    choose("seeing")
    assert not warning.is_visible()
    choose("blind")
    assert warning.is_visible()
    page.get_by_role("button", name="Remove shot.png").click()
    assert not warning.is_visible()
    files = [{"kind": "file", "name": name, "uri": f"file:///a/{name}"} for name in ("a.wav", "b.txt", "c.PDF")]
    page.evaluate("(a) => tell({ type: 'attach', attachments: a })", files)
    assert "cannot read PDF files." in warning.inner_text()
    page.evaluate("(a) => tell({ type: 'attach', attachments: [a] })", picture)
    assert "cannot read PDF files or pictures." in warning.inner_text()
    for name in ("c.PDF", "shot.png"):
        page.get_by_role("button", name=f"Remove {name}").click()
    assert not warning.is_visible()


def message(number: int, versions: dict[str, Any] | None = None) -> dict[str, Any]:
    more = {} if versions is None else {"versions": versions}
    return {"type": "user", "id": f"u{number}", "text": f"Question {number}", "attachments": [], "after": 0, **more}


def test_a_message_before_the_session_is_open_is_sent_when_it_is(page: Any) -> None:
    box = page.locator(".composer textarea")
    waits = page.locator(".composer .awaits")

    def tell(status: str, session: str = "s1", **more: Any) -> None:
        changed = {"status": status, "session": session, "running": False, **more}
        page.evaluate("(more) => tell({ type: 'state', state: { ...state, ...more } })", changed)

    def sent() -> list[str]:
        return page.evaluate("said.filter((m) => m.type === 'send').map((m) => m.text)")  # type: ignore[no-any-return]

    tell("opening")
    # The messages of the session are there already, and the reply to its opening is not.
    add(page, type="user", id="u", text="Before", attachments=[])
    box.fill("And now?")
    box.press("Enter")
    assert waits.is_visible()
    tell("opening", title="A title")
    assert (sent(), box.input_value()) == ([], "And now?")
    tell("ready")
    assert (sent(), box.input_value()) == (["And now?"], "")
    assert not waits.is_visible()
    # Not in another session, not where it cannot be opened, and not while one goes on typing.
    problem = {"title": "It is not there", "detail": "", "action": "retry"}
    for others in ({"status": "ready", "session": "s2"}, {"status": "ready", "problem": problem}, None):
        tell("opening")
        box.fill("Once more")
        box.press("Enter")
        assert waits.is_visible()
        if others is None:
            box.press_sequentially(", and")
            assert not waits.is_visible()
        tell(**{"status": "ready", **(others or {})})
        tell("ready")
        assert sent() == ["And now?"]
        assert box.input_value().startswith("Once more")
        assert not waits.is_visible()


def test_an_open_list_of_models_takes_those_that_come_late(page: Any) -> None:
    mode = {"id": "mode", "name": "Mode", "category": "mode", "description": "", "value": "ask"}
    mode["values"] = [{"value": each, "name": each, "description": ""} for each in ("ask", "sandboxed")]  # type: ignore[assignment]

    def tell(*models: str) -> None:
        values = [{"value": name, "name": name, "description": ""} for name in models]
        model = {"id": "model", "name": "Model", "category": "model", "description": "", "value": "small"}
        options = [mode, {**model, "values": values}]
        page.evaluate("(options) => tell({ type: 'state', state: { ...state, running: false, options } })", options)

    tell("small", "other")
    page.locator('.choice[data-category="mode"] select').evaluate("(each) => { window.modes = each }")
    page.locator('.choice[data-category="model"]').click()
    page.keyboard.press("ArrowDown")
    tell("large", "small", "other")
    assert page.locator(".picker-row .name").all_inner_texts() == ["large", "small", "other"]
    assert page.locator(".picker-row[aria-selected=true]").get_attribute("data-value") == "other"
    assert page.locator('.choice[data-category="model"]').get_attribute("aria-expanded") == "true"
    # An option that has not changed is the same element: its own list may be open.
    assert page.evaluate("modes.isConnected")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    chosen = page.evaluate("said.filter((m) => m.type === 'option')")
    assert chosen == [{"type": "option", "id": "model", "value": "large"}]


def test_the_versions_of_a_message_are_buttons_that_lead_to_the_same_place(page: Any) -> None:
    tell = "(message) => tell({ ...message, state: { ...state, running: false, session: message.session } })"
    items = [message(number) for number in range(60)]
    items[40] = message(40, {"at": 1, "sessions": ["a", "b", "c"]})
    page.evaluate(tell, {"type": "reset", "items": items, "first": 0, "total": 60, "session": "b"})
    group = page.get_by_role("group", name="Version 2 of 3 of this message")
    assert group.inner_text() == "2/3"
    assert page.locator(".versions").count() == 1
    group.scroll_into_view_if_needed()
    top = page.locator("[data-id=u40]").bounding_box()["y"]
    group.get_by_role("button", name="Compare this version with another one, side by side").click()
    assert page.evaluate("said.at(-1)") == {"type": "compareVersions", "item": "u40"}
    # With the keyboard, from the message's own buttons.
    page.locator("[data-id=u40]").get_by_role("button", name="Edit and send again").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.title") == "Later version of this message: 3 of 3"
    page.keyboard.press("Enter")
    assert page.evaluate("said.filter((m) => m.type === 'version')") == [{"type": "version", "item": "u40", "step": 1}]
    # The other session is much longer, and its message is not among the items that the page gets first.
    other = [message(number) for number in range(1_000)]
    other[40] = message(40, {"at": 2, "sessions": ["a", "b", "c"]})
    part = {"type": "reset", "items": other[-120:], "first": 880, "total": 1_000, "session": "c"}
    page.evaluate(tell, part)
    page.evaluate(tell, {"type": "reveal", "item": "u40", "index": 40, "step": 1, "session": "c"})
    (asked,) = page.evaluate("said.filter((m) => m.type === 'items' && m.from === 0)")
    found = {"type": "items", "ask": asked["ask"], "first": 0, "items": other[: asked["to"]], "total": 1_000}
    page.evaluate(tell, {**found, "session": "c"})
    eventually(page, lambda: abs(page.locator("[data-id=u40]").bounding_box()["y"] - top) < 2)
    # There is no later one, so the focus is on the way back.
    assert page.get_by_role("button", name="No later version of this message").is_disabled()
    assert page.evaluate("document.activeElement.title") == "Earlier version of this message: 2 of 3"
    # A version that was deleted is not counted any more.
    page.evaluate("(item) => tell({ type: 'ops', ops: [{ op: 'set', item }] })", message(40))
    assert page.locator(".versions").count() == 0


# What an answer shows besides words: formulas, diagrams, pictures, code. The page has the extension's own policy here.

PANEL = Path(__file__).parents[3] / "vscode-extension" / "src" / "chat" / "panel.ts"
SITE = "https://page.test"
DARK = {"foreground": "#cccccc", "sideBar-background": "#181818", "charts-blue": "#3794ff", "charts-green": "#89d185"}
LIGHT = {"foreground": "#3b3b3b", "sideBar-background": "#f8f8f8", "charts-blue": "#1a85ff", "charts-green": "#388a34"}
WATCH = """
window.refused = []
document.addEventListener('securitypolicyviolation', (event) => refused.push([event.effectiveDirective, event.blockedURI]))
window.drawings = 0
new MutationObserver((changes) => {
  for (const { addedNodes } of changes) for (const each of addedNodes) if (each.className === 'drawing-place') drawings += 1
}).observe(document.body, { childList: true })
window.worst = 0
let last = performance.now()
const beat = () => { worst = Math.max(worst, performance.now() - last); last = performance.now(); setTimeout(beat) }
beat()
"""
THEME = """(colours) => {
  const { style } = document.documentElement
  for (const [name, value] of Object.entries(colours)) style.setProperty(`--vscode-${name}`, value)
}"""


def policy() -> str:
    """The page's policy, as the extension host writes it."""
    (parts,) = re.findall(r"const policy = \[(.*?)\]\.join", PANEL.read_text(), re.S)
    written = [each.strip().strip(",")[1:-1] for each in parts.strip().splitlines()]
    return "; ".join(written).replace("${webview.cspSource}", SITE).replace("${nonce}", "n0")


@pytest.fixture
def strict(chromium: Any, built: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page as the editor has it: from an address, with its policy. Nothing else can be reached."""
    opened = []

    def make(width: int = 700, height: int = 1000, theme: dict[str, str] = DARK) -> Any:
        page = chromium.new_page(viewport={"width": width, "height": height})
        opened.append(page)
        page.asked = []
        page.on("requestfinished", lambda request: page.asked.append(request.url))
        scripts = f'<script nonce="n0">{HOST}{WATCH}</script><script nonce="n0" src="{SITE}/chat.js"></script>'
        html = (
            f'<!DOCTYPE html><html><head><meta http-equiv="Content-Security-Policy" content="{policy()}">'
            f'<link rel="stylesheet" href="{SITE}/codicon.css"><link rel="stylesheet" href="{SITE}/chat.css"></head>'
            f'<body><main id="chat"></main>{scripts}</body></html>'
        )
        kinds = {".js": "text/javascript", ".css": "text/css", ".ttf": "font/ttf", ".woff2": "font/woff2"}

        def serve(route: Any) -> None:
            name = route.request.url.removeprefix(f"{SITE}/").split("?")[0]
            if name == "":
                route.fulfill(body=html, content_type="text/html")
            else:
                route.fulfill(body=(built / name).read_bytes(), content_type=kinds[Path(name).suffix])

        page.route(f"{SITE}/**", serve)
        page.goto(f"{SITE}/")
        page.evaluate(THEME, theme)
        page.evaluate("tell({ type: 'reset', items: [], more: false, state })")
        return page

    yield make
    for page in opened:
        page.close()


def loaded(page: Any, name: str) -> bool:
    return any(url.startswith(f"{SITE}/drawing/{name}") for url in page.asked)


FORMULAS = r"""Energy is $E = mc^2$, and \(a_1^2 + b_2^2\) holds. It costs $5 and $10, or US$5 and $20/month; $HOME/bin:$PATH stays.

$$
\int_0^1 x^2 \, dx
= \frac{1}{3}
$$

\[ \sum_{i=1}^n i \]

| a | b |
|---|---|
| $x$ | `$y$` |
"""


def test_formulas_are_drawn_and_prices_stay_text(strict: Callable[..., Any]) -> None:
    page = strict()
    add(page, type="agent", id="0", text="Only words, for $5.")
    page.wait_for_timeout(200)
    assert not any("/drawing/" in url for url in page.asked)
    add(page, type="agent", id="1", text=FORMULAS)
    page.locator(".formula .katex").nth(4).wait_for()
    assert page.locator(".formula").count() == 5
    assert page.locator(".formula.display").count() == 2
    # For those who hear it.
    assert page.locator(".formula math annotation").all_text_contents() == [
        "E = mc^2",
        "a_1^2 + b_2^2",
        "\\int_0^1 x^2 \\, dx\n= \\frac{1}{3}",
        "\\sum_{i=1}^n i",
        "x",
    ]
    first = page.locator("[data-id='1'] .markdown > p").first.inner_text()
    assert first.endswith("It costs $5 and $10, or US$5 and $20/month; $HOME/bin:$PATH stays.")
    # Its own fonts, and no diagrams' library.
    assert page.evaluate("document.fonts.ready.then(() => document.fonts.check('12px KaTeX_Main'))")
    assert loaded(page, "katex.js")
    assert not loaded(page, "mermaid.js")
    assert page.evaluate("refused") == []


FLOW = """flowchart LR
  accTitle: How a change is made
  A[Ask] --> B{Allowed?}
  B -->|yes| C[Change the file]
  B -->|no| D[Leave it as it is]"""


def test_a_diagram_is_drawn_once_and_shows_its_source(strict: Callable[..., Any], built: Path) -> None:
    page = strict(300)
    add(page, type="agent", id="1", text="")
    text = f"Look:\n\n```mermaid\n{FLOW}\n```\n\nThat is all, and more words follow."
    end = text.index("```\n\nThat") + 3
    for at in range(0, len(text), 10):
        page.evaluate("(text) => tell({ type: 'ops', ops: [{ op: 'text', id: '1', text }] })", text[at : at + 10])
        page.wait_for_timeout(20)
        if at + 10 < end:
            # Until the fence has its end, it is code.
            assert page.locator(".drawing").count() == 0
    page.locator(".drawing img").wait_for()
    page.evaluate("tell({ type: 'state', state: { ...state, running: false } })")
    picture = page.locator(".drawing img")
    assert picture.get_attribute("alt") == "Flowchart: How a change is made"
    assert picture.get_attribute("src").startswith("data:image/svg+xml")
    assert page.evaluate("document.querySelector('.drawing img').decode().then(() => true)")
    assert page.evaluate("drawings") == 1
    # It is wider than the chat: it scrolls by itself, also by keys.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".drawing").evaluate("(e) => e.scrollWidth > e.clientWidth && e.tabIndex === 0")
    code = page.locator(".diagram pre")
    assert not code.is_visible()
    toggle = page.get_by_role("button", name="Show the source of the diagram")
    toggle.focus()
    page.keyboard.press("Enter")
    assert code.inner_text().strip() == FLOW
    assert not picture.is_visible()
    page.get_by_role("button", name="Show the diagram").click()
    assert picture.is_visible()
    page.get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("said.at(-1)") == {"type": "copy", "text": FLOW}
    # The list creates its elements again; the drawing is kept, and there at once.
    item = {"type": "agent", "id": "1", "text": text}
    shown = page.evaluate(
        "(item) => { tell({ type: 'reset', items: [item], more: false, state });"
        " return document.querySelectorAll('.drawing img').length }",
        item,
    )
    assert shown == 1
    assert page.evaluate("drawings") == 1
    # In the colours of another theme.
    before = picture.get_attribute("src")
    page.evaluate(THEME, LIGHT)
    eventually(page, lambda: page.locator(".drawing img").get_attribute("src") != before)
    # All that the policy refused are styles while the diagram was measured.
    assert {directive for directive, _ in page.evaluate("refused")} <= {"style-src-attr", "style-src-elem"}


SHAPES = {
    "Sequence diagram": "sequenceDiagram\n  A->>B: Hello\n  Note over A,B: They talk",
    "Class diagram": "classDiagram\n  Animal <|-- Dog\n  class Animal {\n    +String name\n  }",
    "State diagram": "stateDiagram-v2\n  [*] --> Idle\n  Idle --> Busy : prompt",
    "Entity relationship diagram": "erDiagram\n  CUSTOMER ||--o{ ORDER : places",
    "Pie chart: Pets": 'pie title Pets\n  "Dogs" : 3\n  "Cats" : 1',
    "Gantt chart: Plan": "gantt\n  title Plan\n  dateFormat YYYY-MM-DD\n  Design :a1, 2024-01-01, 10d",
    "Git graph": "gitGraph\n  commit\n  branch develop\n  commit",
    "Mind map": "mindmap\n  root((Cantrip))\n    Sandbox\n    Loom",
    "Timeline: History": "timeline\n  title History\n  2002 : One\n  2004 : Two",
    "User journey: Day": "journey\n  title Day\n  section Work\n  Write: 3: Me",
    "Quadrant chart: Reach": "quadrantChart\n  title Reach\n  A: [0.3, 0.6]",
    "Requirement diagram": "requirementDiagram\n  element e {\n  type: x\n  }",
    "Chart": "xychart-beta\n  x-axis [jan, feb]\n  bar [5, 6]",
    "Flowchart": "graph TD\n  A --> B\n  style A fill:#f9f",
}


def test_every_kind_of_diagram_that_is_named_is_drawn(strict: Callable[..., Any]) -> None:
    page = strict(700, 6000)
    add(page, type="agent", id="1", text="\n\n".join(f"```mermaid\n{text}\n```" for text in SHAPES.values()))
    page.locator(".drawing img").nth(len(SHAPES) - 1).wait_for()
    assert page.locator(".drawing img").evaluate_all("(all) => all.map((each) => each.alt)") == list(SHAPES)
    assert page.locator(".drawing-note:visible").count() == 0


def test_a_diagram_that_cannot_be_drawn_is_its_code_and_one_line(strict: Callable[..., Any]) -> None:
    page = strict()
    texts = {
        "flowchart TD\n  A --> B -->> [": "This diagram cannot be drawn: line 2 is not understood.",
        "flowchart TD\n" + "A --> B\n" * 3_000: "This diagram is too large to be drawn.",
        'packet-beta\n0-99999999: "x"': "Diagrams of the kind \u201cpacket-beta\u201d are not drawn here.",
    }
    add(page, type="agent", id="1", text="\n\n".join(f"```mermaid\n{text}\n```" for text in texts))
    for at, (text, why) in enumerate(texts.items()):
        block = page.locator(".code-block").nth(at)
        block.scroll_into_view_if_needed()
        block.locator(".drawing-note").get_by_text(why).wait_for()
        assert block.locator("pre code").inner_text().strip() == text.strip()
        assert block.get_by_role("button", name="Show the source").count() == 0


EVIL = "https://evil.invalid"
EVIL_DIAGRAMS = [
    f"flowchart TD\n  A[\"<img src={EVIL}/a onerror='window.broken = 1'><script>window.broken = 2</script>\"]",
    'flowchart TD\n  A --> B\n  click A "javascript:window.broken=3"\n  click B call broken()',
    f'flowchart TD\n  A --> B\n  click A href "{EVIL}/b" _blank',
    '%%{init: {"securityLevel": "loose", "htmlLabels": true, "flowchart": {"htmlLabels": true}}}%%\n'
    'flowchart TD\n  A["<img src=x onerror=window.broken=4>"]',
    "---\nconfig:\n  securityLevel: loose\n  htmlLabels: true\n---\nflowchart TD\n  A[\"<svg onload='window.broken = 5'>\"]",
    '%%{init: {"themeCSS": "} body { display: none !important } .log { visibility: hidden }"}}%%\nflowchart TD\n  A --> B',
    f"flowchart TD\n  A:::x\n  classDef x fill:url({EVIL}/c)",
    f'flowchart TD\n  A@{{ img: "{EVIL}/d.png", label: "x", w: 60, h: 60 }}',
    "sequenceDiagram\n  participant A\n  link A: x @ javascript:window.broken=6\n  A->>A: <b onclick=window.broken=7>x</b>",
    "gantt\n  dateFormat YYYY-MM-DD\n  excludes monday,tuesday,wednesday,thursday,friday,saturday,sunday\n  a :a1, 2024-01-01, 30d",
    "flowchart TD\n" + "\n".join(f"  a{n} --> b{n % 17}" for n in range(190)),
    "flowchart TD\n  " + " & ".join(f"a{n}" for n in range(90)) + " --> " + " & ".join(f"b{n}" for n in range(90)),
    "flowchart TD\n  A[" + "x" * 1_000_000 + "]",
]
EVIL_FORMULAS = [
    r"\href{javascript:window.broken=8}{x}",
    rf"\includegraphics{{{EVIL}/e.png}}",
    rf"\url{{{EVIL}}}",
    r"\htmlClass{log}{x} \htmlStyle{position: fixed}{x} \htmlData{a=b}{x}",
    r"\def\a{\a\a}\a",
    r"\def\a{" + "x" * 1_000 + "}" + r"\a" * 290,
    r"\newcommand{\b}[1]{#1#1#1#1}\b{\b{\b{\b{\b{x}}}}}",
    "<script>window.broken = 9</script>",
    "{" * 1_400 + "}" * 1_400,
    r"\hat{" * 200 + "x" + "}^2" * 200,
    r"\rule{99999em}{99999em}",
    "x^2 + " * 200_000,
]


def test_hostile_diagrams_and_formulas_do_no_harm(strict: Callable[..., Any]) -> None:
    page = strict()
    for at, text in enumerate(EVIL_DIAGRAMS):
        add(page, type="agent", id=f"d{at}", text=f"```mermaid\n{text}\n```")
        block = page.locator(f"[data-id=d{at}]")
        block.locator(".drawing img, .drawing-note:not([hidden])").first.wait_for()
    for at, text in enumerate(EVIL_FORMULAS):
        add(page, type="agent", id=f"f{at}", text=f"$$\n{text}\n$$\n\nEnd {at}.")
        page.locator(f"[data-id=f{at}] :is(.katex, .undrawn)").first.wait_for(state="attached")
    add(page, type="agent", id="many", text="$x^2$ and " * 10_000)
    page.wait_for_timeout(500)
    page.locator("textarea").fill("still here")
    assert page.locator("textarea").is_visible()
    assert page.evaluate("window.broken") is None
    # Nothing but the page itself was loaded, and nothing leads anywhere or takes the page's own classes.
    assert [url for url in page.asked if not url.startswith((SITE, "data:"))] == []
    assert (
        page.evaluate(
            "document.querySelectorAll('.log :is(script, iframe, foreignObject, [onclick], [onload], [href])').length"
        )
        == 0
    )
    assert page.evaluate("document.querySelectorAll('.formula .log, .formula [data-a], .formula img').length") == 0
    assert page.evaluate("document.querySelectorAll('.drawing-place, body > style').length") == 0
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    # On a busy machine, too, it never stood still for long.
    assert page.evaluate("worst") < 15_000
    drawn = page.locator("[data-id^=d] .drawing img").count()
    assert drawn >= 6


def test_formulas_that_grow_are_those_that_are_whole(strict: Callable[..., Any]) -> None:
    page = strict(500, 20_000)
    text = "Say $a_1$:\n\n$$\n- x\n+ y\n= z\n$$\n\nand \\[ 1 \\]\n\n- in $b$\n\nEnd $5."
    cuts = range(len(text) + 1)
    add(page, type="agent", id="whole", text=text)
    for cut in cuts:
        add(page, type="agent", id=f"cut{cut}", text=text[:cut])
    page.evaluate("tell({ type: 'state', state: { ...state, running: false } })")
    ops = [{"op": "text", "id": f"cut{cut}", "text": text[cut:]} for cut in cuts if cut < len(text)]
    page.evaluate("(ops) => tell({ type: 'ops', ops })", ops)
    page.locator(".formula .katex").nth(4 * (len(text) + 2) - 1).wait_for(state="attached")
    made = page.evaluate("[...document.querySelectorAll('.agent-item .markdown')].map((each) => each.innerHTML)")
    assert len(made) == len(text) + 2
    assert [cut for cut, html in enumerate(made[1:]) if html != made[0]] == []


DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_pictures_come_from_the_extension_host_alone(strict: Callable[..., Any]) -> None:
    page = strict()
    names = [
        "docs/pic.png",
        "../secret.png",
        f"{EVIL}/beacon.png",
        "//evil.invalid/x.png",
        "data:image/png;base64,AA",
        "file:///etc/x.png",
    ]
    add(page, type="agent", id="1", text="\n\n".join(f"![A picture {at}]({name})" for at, name in enumerate(names)))
    asked = rested(page, "said.filter((m) => m.type === 'picture')")
    assert [each["href"] for each in asked] == ["docs/pic.png", "../secret.png"]
    page.evaluate(
        "(message) => tell(message)",
        {"type": "picture", "ask": asked[0]["ask"], "data": f"data:image/png;base64,{DOT}"},
    )
    page.evaluate("(message) => tell(message)", {"type": "picture", "ask": asked[1]["ask"]})
    picture = page.locator(".markdown img")
    picture.wait_for()
    assert picture.count() == 1
    assert picture.get_attribute("alt") == "A picture 0"
    assert page.locator(".markdown a").count() == len(names)
    assert [url for url in page.asked if not url.startswith((SITE, "data:"))] == []
    # It is a link to its file, and comes at once when the list creates it again.
    picture.click()
    assert page.evaluate("said.at(-1)") == {"type": "link", "href": "docs/pic.png"}
    page.evaluate(
        "(item) => tell({ type: 'reset', items: [item], more: false, state })",
        {"type": "agent", "id": "1", "text": "![A](docs/pic.png)"},
    )
    picture.wait_for()
    assert page.evaluate("said.filter((m) => m.type === 'picture').length") == 2


CODE = """Change `src/app.py`:

```python
x = 1
```

```js title="web/main.js"
let y
```

Run it, see a.py and b.py:

```bash
make test
```
"""


def test_code_can_be_applied_opened_and_run(strict: Callable[..., Any]) -> None:
    page = strict(300)
    add(page, type="agent", id="1", text=CODE)
    bars = page.locator(".markdown .code-bar")
    names = [
        [each.get_attribute("aria-label").split("\u2026")[0] for each in bar.get_by_role("button").all()]
        for bar in bars.all()
    ]
    common = ["Copy", "Insert at the cursor"]
    assert names == [
        [*common, "Apply to src/app.py", "New file with this code"],
        [*common, "Apply to web/main.js", "New file with this code"],
        [*common, "Apply to file", "New file with this code", "Run in terminal"],
    ]
    # What a tool got is only read.
    add(page, **call(1, "other", input='{"a": 1}'))
    page.locator(".tool-item summary").click()
    got = page.locator(".tool-item .code-bar").get_by_role("button")
    assert [each.get_attribute("aria-label") for each in got.all()] == common
    page.locator(".tool-item summary").click()
    # All are in one row at 300 px, and the keyboard reaches them.
    for bar in bars.all():
        tops = {round(each.bounding_box()["y"]) for each in bar.get_by_role("button").all()}
        assert len(tops) == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    apply = bars.nth(0).get_by_role("button", name="replaces the selection or the whole file; shows the change first")
    apply.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    bars.nth(1).get_by_role("button", name="Apply to").click()
    bars.nth(2).get_by_role("button", name="Apply to").click()
    bars.nth(2).get_by_role("button", name="Run in terminal").click()
    assert page.evaluate("said.slice(-5)") == [
        {"type": "applyCode", "text": "x = 1", "file": "src/app.py"},
        {"type": "newFile", "text": "x = 1", "language": "python"},
        {"type": "applyCode", "text": "let y", "file": "web/main.js"},
        {"type": "applyCode", "text": "make test"},
        {"type": "runInTerminal", "text": "make test", "language": "bash"},
    ]


def test_words_are_found_in_the_whole_conversation(page: Any) -> None:
    page.evaluate(MANY, 6_000)
    # The extension host searches; here a message stands in for it.
    page.evaluate(
        """() => {
          const push = said.push
          said.push = (message) => {
            if (message.type === 'find') {
              const items = all.flatMap(({ id, text }, index) => {
                const count = text.toLowerCase().split(message.words.toLowerCase()).length - 1
                return message.words && count ? [{ index, id, count }] : []
              })
              setTimeout(() => tell({ type: 'found', ask: message.ask, items }), 5)
            }
            return push(message)
          }
          all[30].text = 'A needle, and another NEEDLE.'
          all[4_000].text = 'The **nee**dle in Markdown.\\n\\nneedle'
          // It is not among the words that the page shows of this one.
          all[46].text = '[link](https://example.org/needle)'
        }"""
    )
    composer = page.locator(".composer textarea")
    composer.focus()
    page.keyboard.press("Control+f")
    bar = page.get_by_role("search", name="Find in the conversation")
    field = bar.get_by_role("textbox")
    assert field.evaluate("(e) => e === document.activeElement")
    page.keyboard.type("needle")
    page.wait_for_selector(".find .count:has-text('of 4')")
    of = "[range.toString(), range.startContainer.parentElement.closest('.item').dataset.id]"
    now = f"[...CSS.highlights.get('found-now') ?? []].map((range) => {of})"
    # From the end on: there is none, so the first one.
    page.wait_for_function(f"JSON.stringify({now}) === JSON.stringify([['needle', 'i30']])")
    assert bar.locator(".count").inner_text() == "1 of 4"
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({now}) === JSON.stringify([['NEEDLE', 'i30']])")
    assert page.evaluate("CSS.highlights.get('found').size") == 2
    # Far away, where no elements were.
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({now}) === JSON.stringify([['needle', 'i4000']])")
    inside = """() => {
      const [one] = CSS.highlights.get('found-now')
      const [view, place] = [document.querySelector('.log').getBoundingClientRect(), one.getBoundingClientRect()]
      return place.height > 0 && place.top >= view.top && place.bottom <= view.bottom
    }"""
    assert page.evaluate(inside)
    assert bar.locator(".count").inner_text() == "3 of 4"
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(f"JSON.stringify({now}) === JSON.stringify([['needle', 'i30']])")
    assert page.evaluate(inside)
    field.fill("nowhere at all")
    page.wait_for_selector(".find.none .count:has-text('No results')")
    page.keyboard.press("Escape")
    assert bar.is_hidden()
    assert composer.evaluate("(e) => e === document.activeElement")
    assert page.evaluate("CSS.highlights.size") == 0
    assert not page.evaluate("said.some((m) => m.type === 'stop')")


def test_a_list_without_suggestions_says_why(page: Any) -> None:
    composer = page.locator(".composer textarea")
    composer.fill("@symbol:gre")
    ask = page.evaluate("said.findLast((m) => m.type === 'mention').ask")
    note = "No language server offers a symbol “gre” here"
    page.evaluate("(message) => tell(message)", {"type": "mentions", "ask": ask, "found": [], "note": note})
    row = page.locator(".completion .note")
    assert row.inner_text() == note
    composer.press("ArrowDown")
    assert row.is_visible()
    composer.press("Escape")
    assert row.is_hidden()
    # The words are no suggestion: Enter sends the message.
    composer.fill("@symbol:gree")
    ask = page.evaluate("said.findLast((m) => m.type === 'mention').ask")
    page.evaluate("(message) => tell(message)", {"type": "mentions", "ask": ask, "found": [], "note": note})
    composer.press("Enter")
    assert page.evaluate("said.findLast((m) => m.type === 'send').text") == "@symbol:gree"
