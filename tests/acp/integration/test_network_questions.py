"""A command that wants a host which nobody listed: one question while it waits, and what each answer means."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.sandbox import hosts
from tests.acp.unit.test_children import FAMILY, done, say
from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start
from tests.support.tls_servers import Served, serve

pytestmark = pytest.mark.sandbox

ASK = "session/request_permission"
WHOLE_RULE = hosts.is_public
IS_PUBLIC = "cantrip_acp.sandbox.network.hosts.is_public"
END = {"content": "Done."}
OPTIONS = ["allow_once", "allow_always", "allow_project", "reject_once", "reject_always"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of this machine that the names below .example lead to, as if it were on the internet."""
    found = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: asyncio.BaseEventLoop, host: Any, port: Any, **more: Any) -> Any:
        return await found(self, "127.0.0.1" if str(host).endswith(".example") else host, port, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(IS_PUBLIC, lambda address: True)
    with serve() as served:
        yield served


def shell(*commands: str) -> list[dict[str, Any]]:
    return [*({"bash": command} for command in commands), END]


def circle(**wards: Any) -> dict[str, Any]:
    limits = [{"max_turns": 20}, {"bash_writable_paths": ["."]}, *({name: value} for name, value in wards.items())]
    return {"medium": "bash", "gates": ["done"], "wards": limits}


def manual(start: Start, *args: Any, **options: Any) -> RawClient:
    agent = start(*args, **options)
    agent.permit = None
    return agent


def question(agent: RawClient) -> dict[str, Any]:
    return agent.until(lambda message: message.get("method") == ASK)


def asked(agent: RawClient) -> list[str]:
    return [each["params"]["toolCall"]["title"] for each in agent.seen if each.get("method") == ASK]


def outputs(agent: RawClient) -> str:
    return json.dumps(agent.updates("tool_call_update"))


def get(host: str, site: Served, path: str = "") -> str:
    return f"curl -sS http://{host}:{site.port}/{path}"


def test_a_host_is_asked_about_while_the_command_waits(start: Start, folder: Path, site: Served) -> None:
    # The time limit of the command does not count while the question is open.
    agent = manual(
        start, shell(f"echo first; {get('npm.example', site, 'one')}; {get('npm.example', site, 'two')}"),
        **circle(bash_timeout_ms=1500),
    )  # fmt: skip
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = question(agent)
    call = message["params"]["toolCall"]
    assert call["title"] == f"`curl` wants npm.example:{site.port}"
    assert "echo first; curl -sS" in call["content"][0]["content"]["text"]
    assert [option["optionId"] for option in message["params"]["options"]] == OPTIONS

    def printed(each: Any) -> bool:
        return "first" in json.dumps(each.get("params", {}).get("update", {}).get("content", ""))

    if not any(map(printed, agent.seen)):
        agent.until(printed)
    agent.quiet(2)
    assert site.requests == []
    agent.decide(message, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert [request[1] for request in site.requests] == ["/one", "/two"]
    assert len(asked(agent)) == 1
    assert "GET /one 0" in outputs(agent)


@pytest.mark.parametrize(
    ("answer", "questions", "kept"),
    [
        ("allow_once", 2, 1),
        ("allow_always", 1, 1),
        ("allow_project", 1, 0),
        ("reject_once", 2, 1),
        ("reject_always", 1, 1),
    ],
)
def test_how_long_an_answer_holds(
    answer: str, questions: int, kept: int, start: Start, folder: Path, tmp_path: Path, site: Served
) -> None:
    """``questions``: of two commands of a session; ``kept``: of a command of another session of the project."""
    state = str(tmp_path / "state")
    for count, commands in ((questions, [get("npm.example", site)] * 2), (kept, [get("npm.example", site)])):
        agent = start(shell(*commands), "--state-dir", state, **circle())
        agent.permit = answer
        session = agent.session(folder)
        agent.prompt(session)
        assert len(asked(agent)) == count
        records = _records(tmp_path, session)
        assert records[-1].args == {"host": "npm.example", "port": site.port, "program": "curl"}
        assert records[-1].is_error == answer.startswith("reject")
        assert ("refused" in outputs(agent)) == answer.startswith("reject")
        if len(commands) == 2 and answer in ("allow_always", "allow_project"):
            scope = "session" if answer == "allow_always" else "project"
            assert records[0].result == f"allowed for this {scope}"
            agent.prompt(session, "/wards")
            assert f"host npm.example:{site.port}" in json.dumps(agent.updates("agent_message_chunk"))
        assert agent.hang_up() < 30
    assert len(site.requests) == (3 if answer.startswith("allow") else 0)


def _records(tmp_path: Path, session: str) -> list[Any]:
    """The questions of a session in its loom."""
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        return [gate for turn in loom.turns() for gate in turn.observation.results if gate.gate == "bash_network"]


REGISTRY = {
    "lockfileVersion": 3,
    "packages": {"node_modules/a": {"resolved": "https://user:pw@npm.corp.example/a/-/a-1.0.0.tgz"}},
}


def test_registries_of_the_project_are_one_answer(start: Start, folder: Path, tmp_path: Path, site: Served) -> None:
    lock = json.dumps(REGISTRY).replace("npm.corp.example", f"npm.corp.example:{site.port}")
    (folder / "package-lock.json").write_text(lock)
    commands = (get("other.example", site), get("npm.corp.example", site), get("npm.corp.example", site))
    agent = manual(start, shell(*commands), "--state-dir", str(tmp_path / "state"), **circle())
    prompt = agent.start_prompt(agent.session(folder))
    first = question(agent)
    assert "allow_registries" not in [option["optionId"] for option in first["params"]["options"]]
    agent.decide(first, "reject_once")
    second = question(agent)
    names = {option["optionId"]: option["name"] for option in second["params"]["options"]}
    assert names["allow_registries"] == (
        f"Allow the registries of this project: npm.corp.example:{site.port}, registry.npmjs.org"
    )
    assert "pw" not in json.dumps(second)
    agent.decide(second, "allow_registries")
    agent.answer(prompt)
    assert len(asked(agent)) == 2
    assert len(site.requests) == 2


def test_a_list_asks_about_other_hosts_alone(start: Start, folder: Path, site: Served) -> None:
    listed = circle(bash_network=[f"listed.example:{site.port}"])
    agent = start(shell("ls", get("listed.example", site), get("new.example", site)), **listed)
    agent.prompt(agent.session(folder, mode="sandboxed"))
    assert asked(agent) == [f"`curl` wants new.example:{site.port}"]
    assert len(site.requests) == 2


def test_a_host_in_a_private_network_is_a_question_of_its_own(
    start: Start, folder: Path, tmp_path: Path, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = asyncio.open_connection

    async def getaddrinfo(self: asyncio.BaseEventLoop, host: Any, port: Any, **more: Any) -> Any:
        return [(2, 1, 6, "", ("10.1.2.3", port))]

    async def open_connection(host: str, port: int, **more: Any) -> Any:
        return await opened("127.0.0.1" if host == "10.1.2.3" else host, port, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(IS_PUBLIC, WHOLE_RULE)
    state = str(tmp_path / "state")
    agent = start(shell(*[get("mirror.example", site)] * 2), "--state-dir", state, **circle())
    agent.permit = "allow_project"
    session = agent.session(folder)
    agent.prompt(session)
    name = f"mirror.example:{site.port}"
    assert asked(agent) == [f"`curl` wants {name}", f"`curl` wants {name} at 10.1.2.3, an address of a private network"]
    assert len(site.requests) == 2
    assert [each.args.get("address") for each in _records(tmp_path, session)] == [None, "10.1.2.3"] * 2
    agent.prompt(session, "/wards")
    assert f"private host {name}" in json.dumps(agent.updates("agent_message_chunk"))


def test_a_hostile_command_gets_few_questions(
    start: Start, folder: Path, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IS_PUBLIC, WHOLE_RULE)
    named = [f"b\u00fccher.example:{site.port}", f"user:secret@127.0.0.1:{site.port}", "localhost:1", "10.0.0.1"]
    named += [f"h{number}.example:{site.port}" for number in range(30)]
    odd = "curl -sS " + " ".join(f"http://{each}/" for each in named)
    agent = start(shell(f"no_proxy= NO_PROXY= bash -c '{odd}'"), **circle())
    agent.permit = "reject_once"
    agent.prompt(agent.session(folder))
    assert len(asked(agent)) == 3
    assert asked(agent)[0] == f"`curl` wants xn--bcher-kva.example:{site.port}"
    assert "secret" not in "".join(asked(agent))
    assert not [title for title in asked(agent) if "127.0.0.1" in title or "localhost" in title]
    assert "nobody is asked about more" in outputs(agent)
    assert site.requests == []


def test_nobody_to_ask_means_no_at_once(start: Start, folder: Path, site: Served) -> None:
    command = f"curl -sS -w '%{{http_code}}' http://npm.example:{site.port}/"
    agent = manual(start, shell(command), **circle())
    prompt = agent.start_prompt(agent.session(folder))
    message = question(agent)
    agent.send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}})
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert "cannot ask for it" in outputs(agent)
    assert "403" in outputs(agent)
    assert site.requests == []


def test_a_read_only_session_is_not_asked(start: Start, folder: Path, site: Served) -> None:
    agent = start(shell(get("npm.example", site)), **circle())
    agent.prompt(agent.session(folder, mode="read-only"))
    assert asked(agent) == []
    assert "read-only mode" in outputs(agent)
    assert site.requests == []


def test_a_cancel_ends_the_question_and_the_command(start: Start, folder: Path, tmp_path: Path, site: Served) -> None:
    state = str(tmp_path / "state")
    agent = manual(start, shell(get("npm.example", site)), "--state-dir", state, **circle())
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = question(agent)
    agent.tell("session/cancel", {"sessionId": session})
    agent.decide(message, "cancelled")
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    (record,) = _records(tmp_path, session)
    assert record.args["host"] == "npm.example"
    assert site.requests == []


def test_the_end_of_the_command_withdraws_the_question(start: Start, folder: Path, site: Served) -> None:
    agent = manual(start, shell(f"curl -sS -m 1 http://npm.example:{site.port}/; echo went on"), **circle())
    prompt = agent.start_prompt(agent.session(folder))
    asks = question(agent)
    withdrawn = agent.until(lambda message: message.get("method") == "$/cancel_request")
    assert withdrawn["params"]["requestId"] == asks["id"]
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert "went on" in outputs(agent)


def test_a_second_question_is_open_beside_it(start: Start, folder: Path, site: Served) -> None:
    # Two programs of one command: the second host waits for the first answer, and a gate asks meanwhile.
    command = f"{get('a.example', site)} & {get('b.example', site)} & cantrip_write_file f.txt text; wait"
    options = circle() | {"gates": ["done", "write_file"]}
    agent = manual(start, shell(command), **options)
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    agent.decide(question(agent), "allow_once")
    open_now = [question(agent), question(agent)]
    titles = sorted(each["params"]["toolCall"]["title"] for each in open_now)
    assert titles[0].startswith("Write f.txt")
    for each in open_now:
        agent.decide(each, "allow_once")
    agent.decide(question(agent), "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert len(site.requests) == 2
    assert (folder / "f.txt").read_text() == "text"


def test_a_session_that_closes_ends_its_question(start: Start, folder: Path, site: Served) -> None:
    agent = manual(start, shell(get("npm.example", site)), **circle())
    session = agent.session(folder)
    agent.start_prompt(session)
    asks = question(agent)
    closed = agent.ask("session/close", {"sessionId": session})
    withdrawn = agent.until(lambda message: message.get("method") == "$/cancel_request")
    assert withdrawn["params"]["requestId"] == asks["id"]
    assert "error" not in agent.answer(closed)
    assert site.requests == []


def test_a_client_that_leaves_ends_the_question(start: Start, folder: Path, site: Served) -> None:
    agent = manual(start, shell(get("npm.example", site)), **circle())
    agent.start_prompt(agent.session(folder))
    question(agent)
    assert agent.hang_up() < 30
    assert site.requests == []


def test_two_commands_that_want_one_host_ask_once(start: Start, folder: Path, site: Served) -> None:
    # The service asks first; the answer for the session settles the question of the command beside it.
    both = f"{get('npm.example', site, 'a')} & {get('npm.example', site, 'b')} & wait"
    agent = manual(start, shell(both, get("npm.example", site, "c")), **circle())
    prompt = agent.start_prompt(agent.session(folder))
    agent.decide(question(agent), "allow_always")
    agent.answer(prompt)
    assert len(asked(agent)) == 1
    assert sorted(request[1] for request in site.requests) == ["/a", "/b", "/c"]


def test_another_prompt_leaves_the_question_open(start: Start, folder: Path, site: Served) -> None:
    agent = manual(start, shell(get("npm.example", site)), **circle())
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    asks = question(agent)
    assert "busy" in agent.answer(agent.start_prompt(session, "use another registry"))["error"]["message"]
    assert not [message for message in agent.seen if message.get("method") == "$/cancel_request"]
    agent.decide(asks, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert len(site.requests) == 1


def test_steering_leaves_the_question_open(start: Start, folder: Path, site: Served) -> None:
    agent = manual(start, shell(get("npm.example", site)), **circle())
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    asks = question(agent)
    words = {"sessionId": session, "prompt": [{"type": "text", "text": "use another registry"}]}
    assert agent.call("_session/steering", words)["outcome"] == "injected"
    assert not [message for message in agent.seen if message.get("method") == "$/cancel_request"]
    agent.decide(asks, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert len(site.requests) == 1


def test_a_childs_question_names_it_and_its_answer_holds_for_the_session(
    start: Start, folder: Path, site: Served
) -> None:
    agent = manual(
        start,
        [say("call_agent", intent="Get it", medium="bash"), done("all")],
        crystal={
            "children": [[{"bash": get("npm.example", site, "child")}, {"bash": get("npm.example", site, "more")}, END]]
        },
        **FAMILY,
    )
    prompt = agent.start_prompt(agent.session(folder))
    asks = question(agent)
    assert "(child)" in asks["params"]["toolCall"]["title"]
    agent.decide(asks, "allow_always")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert len(asked(agent)) == 1
    assert [request[1] for request in site.requests] == ["/child", "/more"]
