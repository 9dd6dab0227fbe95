"""The engine: real programs in the real sandbox, in several languages, inside their boundaries."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, CommitRefused, NewChunk, NewPlacement, Spec, SubstrateError
from cantrip_acp.substrate.engine.engine import RUNNING, AgentTask, Engine, mark_lost
from cantrip_acp.substrate.engine.socket_server import listen
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import AGENT, install, of_type, with_types

pytestmark = pytest.mark.anyio

SHELL = """\
#!/bin/sh
set -e
"$CANTRIP_ENGINE_CALL" scope '{"id": "notes"}' | python3 -c 'import json, sys; print(json.load(sys.stdin)["chunk"]["body"]["text"])'
"$CANTRIP_ENGINE_CALL" commit "{
  \\"chunks\\": [{\\"id\\": \\"made\\", \\"name\\": \\"made\\", \\"body\\": {\\"text\\": \\"by a shell\\"}}],
  \\"placements\\": [{\\"chunk\\": \\"made\\", \\"scope\\": \\"$CANTRIP_PROCESS\\"}]}" > /dev/null
"$CANTRIP_ENGINE_CALL" scope '{"id": "secret"}' || echo "refused: $?"
"""
NODE = """\
#!/usr/bin/env node
const line = new (require('net').Socket)({fd: 0});
line.write(JSON.stringify({jsonrpc: '2.0', id: 7, method: 'search', params: {query: 'penguin'}}) + '\\n');
line.on('data', data => { console.log(JSON.parse(data).result[0].chunk.id); line.end(); });
"""


@pytest.fixture
def substrate(tmp_path: Path) -> Any:
    with open_substrate(tmp_path / "substrate.db") as opened:
        install(opened)
        opened.put(NewChunk("notes", "notes", Spec(), {"text": "about a penguin"}))
        opened.put(NewChunk("secret", "secret", Spec(), {"text": "penguin of others"}))
        opened.put(NewChunk("tools", "tools"))
        yield opened


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def program(substrate: Substrate, workspace: Path, name: str, text: str, **body: Any) -> None:
    file = workspace / name
    file.write_text(text)
    file.chmod(0o755)
    accepts = body.pop("accepts", ())
    chunk = NewChunk(
        name, name, Spec(True, True, accepts), {"text": name, "runtime": "vm", "executable": f"./{name}", **body}
    )
    substrate.commit(Change([chunk], [of_type("program", name), NewPlacement(name, "tools")]), author="user")


def caller(*, write: tuple[str, ...] = ()) -> Boundary:
    return with_types(Boundary.of(read=["notes", "tools"], write=write, holder="test"))


async def run(
    engine: Engine, name: str, given: dict[str, Any] | None = None, boundary: Boundary | None = None
) -> dict[str, Any]:
    process = await engine.run(name, given or {}, boundary or caller())
    return dict((await engine.wait(process, 60)).body)


async def test_a_shell_program_reads_writes_and_is_refused_outside(substrate: Substrate, workspace: Path) -> None:
    program(substrate, workspace, "shell", SHELL)
    async with Engine(substrate, workspace) as engine:
        process = await engine.run("shell", {}, caller())
        body = (await engine.wait(process, 60)).body
    assert body["text"].splitlines() == ["about a penguin", "refused: 1"]
    assert (body["state"], body["exit_code"]) == ("ended", 0)
    made = substrate.chunk("made")
    assert (made.text, made.source) == ("by a shell", f"program:{process}")
    assert [each.chunk.name for each in substrate.scope(process).placed] == ["input", "made"]
    assert [(each.author, each.chunk) for each in substrate.refusals()] == [(process, "secret")]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
async def test_a_node_program_searches_inside_its_boundary(substrate: Substrate, workspace: Path) -> None:
    program(substrate, workspace, "find.js", NODE)
    async with Engine(substrate, workspace) as engine:
        body = await run(engine, "find.js")
    assert (body["state"], body["text"].strip()) == ("ended", "notes")


async def test_a_program_writes_only_what_it_declares_and_the_caller_may(substrate: Substrate, workspace: Path) -> None:
    changed = '{"chunks": [{"id": "notes", "name": "notes", "body": {"text": "changed"}}]}'
    write = f"#!/bin/sh\n\"$CANTRIP_ENGINE_CALL\" commit '{changed}'\n"
    program(substrate, workspace, "silent", write)
    program(substrate, workspace, "open", write, write=["notes"])
    async with Engine(substrate, workspace) as engine:
        # Not declared; declared, but the caller may not; both.
        for name, boundary, state in (
            ("silent", caller(write=("notes",)), "failed"),
            ("open", caller(), "failed"),
            ("open", caller(write=("notes",)), "ended"),
        ):
            body = await run(engine, name, boundary=boundary)
            assert body["state"] == state, body
    assert substrate.chunk("notes").text == "changed"


@pytest.mark.parametrize("wrong", [{"read": "notes"}, {"read": None}, {"write": [1]}, {"write": {"notes": 1}}])
async def test_a_boundary_that_is_no_list_is_no_boundary(
    substrate: Substrate, workspace: Path, wrong: dict[str, Any]
) -> None:
    program(substrate, workspace, "vague", "#!/bin/sh\n", **wrong)
    async with Engine(substrate, workspace) as engine:
        with pytest.raises(SubstrateError, match="not a list of scope ids"):
            await engine.run("vague", {}, caller())


async def test_input_is_checked_by_its_type(substrate: Substrate, workspace: Path) -> None:
    program(
        substrate, workspace, "echo", '#!/bin/sh\necho "$CANTRIP_INPUT" "$@"\n', accepts=("echo-input",), args=["fixed"]
    )
    kind = NewChunk("type:echo", "echo-input", Spec(required=("words",)), {"text": "Words."})
    substrate.commit(Change([kind], [NewPlacement("type:echo", "echo", "relates")]), author="user")
    async with Engine(substrate, workspace) as engine:
        assert (await run(engine, "echo", {"words": "hi", "args": ["a b"]}))[
            "text"
        ] == '{"words": "hi", "args": ["a b"]} fixed a b\n'
        with pytest.raises(CommitRefused, match="its body lacks 'words'"):
            await engine.run("echo", {"word": "hi"}, caller())
        with pytest.raises(SubstrateError, match="no chunk has the id or name 'ecko'"):
            await engine.run("ecko", {}, caller())
        with pytest.raises(SubstrateError, match="'notes' is not a program"):
            await engine.run("notes", {}, caller())


async def test_the_sandbox_holds(substrate: Substrate, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-programs")
    connect = "(exec 3<>/dev/tcp/127.0.0.1/22) 2>/dev/null || echo no network"
    text = f"#!/bin/sh\nenv | grep -c sk-not; touch here 2>&1 | tail -c 22; {connect}\n"
    program(substrate, workspace, "escape", text)
    async with Engine(substrate, workspace) as engine:
        body = await run(engine, "escape")
    assert body["text"].splitlines()[0] == "0"
    assert body["text"].splitlines()[-1] == "no network"
    assert not (workspace / "here").exists()


async def test_runs_inside_runs_and_their_end(substrate: Substrate, workspace: Path) -> None:
    program(substrate, workspace, "inner", "#!/bin/sh\necho deep; exit 3\n")
    outer = (
        "#!/bin/sh\n"
        'p=$("$CANTRIP_ENGINE_CALL" run \'{"program": "inner"}\' | cut -d \'"\' -f 4)\n'
        '"$CANTRIP_ENGINE_CALL" await "{\\"process\\": \\"$p\\"}"\n'
    )
    program(substrate, workspace, "outer", outer)
    async with Engine(substrate, workspace) as engine:
        process = await engine.run("outer", {}, caller())
        end = json.loads((await engine.wait(process, 60)).body["text"])
    assert (end["state"], end["exit_code"], end["text"]) == ("failed", 3, "deep\n")
    assert end["process"] in [each.chunk.id for each in substrate.scope(process).placed if each.kind == "relates"]


async def test_agents_run_three_deep_with_any_model(substrate: Substrate, workspace: Path) -> None:
    seen: list[tuple[int, str, str]] = []

    async def cast(task: AgentTask) -> str:
        seen.append((task.depth.agents, task.intent, task.crystal))
        narrower = with_types(Boundary.of(read=["notes"]))
        below = await engine.run_inside(task.process, AGENT, {"intent": f"{task.intent}+"}, narrower)
        end = await engine.wait(below, 60)
        assert substrate.readable(below, task.boundary), "the parent can read the process of the child"
        assert substrate.readable("notes", task.boundary)
        assert not substrate.readable("secret", task.boundary) or task.depth.agents == 1
        return str(end.body["text"])

    async with Engine(substrate, workspace, cast) as engine:
        body = await run(engine, AGENT, {"intent": "go", "crystal": "ollama:qwen3"}, Boundary())
    assert seen == [(1, "go", "ollama:qwen3"), (2, "go+", ""), (3, "go++", "")]
    assert (body["state"], body["text"]) == ("ended", "agents run at most 3 deep inside each other")


async def test_programs_cannot_run_without_end(substrate: Substrate, workspace: Path) -> None:
    again = (
        "#!/bin/sh\n"
        'p=$("$CANTRIP_ENGINE_CALL" run \'{"program": "again"}\' | cut -d \'"\' -f 4)\n'
        '"$CANTRIP_ENGINE_CALL" await "{\\"process\\": \\"$p\\"}" | grep -o "at most .* deep" || echo end\n'
    )
    program(substrate, workspace, "again", again)
    async with Engine(substrate, workspace) as engine:
        assert (await run(engine, "again"))["state"] == "ended"
    depths = sorted(each.chunk.body["depth"] for each in substrate.scope("again").placed if each.kind == "instance")
    assert depths == list(range(8))


async def test_what_a_killed_engine_left_is_marked_as_lost(
    substrate: Substrate, workspace: Path, tmp_path: Path
) -> None:
    program(substrate, workspace, "sleep", "#!/bin/sh\nsleep 60\n")
    code = (
        "import sys, os, anyio, signal\n"
        "from pathlib import Path\n"
        "from cantrip_acp.substrate.substrate import open_substrate\n"
        "from cantrip_acp.substrate.engine.engine import Engine\n"
        "from cantrip_acp.substrate.boundary import Boundary\n"
        "async def main():\n"
        "    with open_substrate(sys.argv[1]) as s:\n"
        "        async with Engine(s, Path(sys.argv[2])) as e:\n"
        "            await e.run('sleep', {}, Boundary())\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "anyio.run(main)\n"
    )
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "substrate.db"), str(workspace)], check=False
        )
    )
    assert done.returncode == -9
    assert mark_lost(substrate) == 1
    (process,) = [each.chunk for each in substrate.scope("sleep").placed]
    assert process.body["state"] == "lost"
    assert mark_lost(substrate) == 0


async def test_only_the_processes_of_this_machine_are_marked_as_lost_and_each_once(tmp_path: Path) -> None:
    address, dead = tmp_path / "shared.db", 2**22 + 1
    with open_substrate(address) as first, open_substrate(address) as second:
        assert mark_lost(first) == 0
        for number in range(40):
            body = {"program": "p", "state": "running", "engine": dead}
            body |= {"host": "elsewhere"} if number == 0 else {}
            first.put(NewChunk(f"process-{number}", "run", Spec(), body), RUNNING)
        marked: list[int] = []
        async with anyio.create_task_group() as tasks:
            for each in (first, second):
                tasks.start_soon(lambda one: anyio.to_thread.run_sync(lambda: marked.append(mark_lost(one))), each)
        assert sum(marked) == 39
        assert [each.chunk.id for each in first.scope(RUNNING).placed] == ["process-0"]


async def test_a_run_that_is_stopped_says_so(substrate: Substrate, workspace: Path) -> None:
    program(substrate, workspace, "sleep", "#!/bin/sh\nsleep 60\n")
    async with Engine(substrate, workspace) as engine:
        process = await engine.run("sleep", {}, caller())
        assert (await engine.wait(process, 0.2)).body["state"] == "running"
    assert substrate.chunk(process).body["state"] == "killed"


async def test_hostile_messages_get_errors_and_nothing_else(
    substrate: Substrate, workspace: Path, tmp_path: Path
) -> None:
    def talk(path: str, *lines: bytes) -> list[Any]:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(path)
            with contextlib.suppress(BrokenPipeError):
                client.sendall(b"".join(lines))
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                return [json.loads(line) for line in client.makefile("rb")]
        return []

    def ask(method: str, **params: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"

    boundary = Boundary.of(read=["notes"], write=["own"], holder="own")
    substrate.put(NewChunk("own", "own"))
    escapes = [
        ask("scope", id="secret"),
        ask("scope", id="no-such"),
        ask("commit", chunks=[{"id": "secret", "name": "x"}]),
        ask("commit", chunks=[{"id": "n", "name": "n"}], placements=[{"chunk": "n", "scope": "notes"}]),
        ask("commit", placements=[{"chunk": "secret", "scope": "own", "kind": "relates"}]),
        ask("commit", placements=[{"chunk": "own", "scope": "notes"}]),
        ask("await", process="secret"),
        ask("run", program="secret"),
    ]
    wrong = [
        b"{\n",
        b"[]\n",
        b"null\n",
        b'{"jsonrpc": "2.0"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        ask("drop"),
        ask("scope", id=7),
    ]
    wrong += [
        ask("commit", chunks="x"),
        ask("search"),
        ask("run", program="x", input=[]),
        ask("commit", chunks=[{"id": "a"}]),
    ]
    path = str(tmp_path / "s")
    async with Engine(substrate, workspace) as engine, anyio.create_task_group() as tasks:
        engine.admit("own", boundary)
        tasks.start_soon(listen, engine, path, "own", boundary)
        # The kernel makes it with the mode of the umask, in which nobody else may write either; then it gets its own.
        with anyio.fail_after(30):
            while not os.path.exists(path) or os.stat(path).st_mode & 0o777 != 0o600:
                await anyio.sleep(0.01)
        before = substrate.latest()
        for line in (*escapes, *wrong):
            (answer,) = await anyio.to_thread.run_sync(talk, path, line)
            assert "error" in answer, line
        assert substrate.latest() == before
        # Pieces, several in one, and notifications.
        answers = await anyio.to_thread.run_sync(
            talk, path, ask("scope", id="notes") * 3, b'{"jsonrpc":"2.0","method":"search"}\n'
        )
        assert [answer.get("id") for answer in answers[:3]] == [1, 1, 1]
        (huge,) = await anyio.to_thread.run_sync(talk, path, b"x" * 5_000_000) or [{"error": 1}]
        assert "error" in huge
        tasks.cancel_scope.cancel()
    assert len(substrate.refusals()) >= 6


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_gets_no_answer(substrate: Substrate, workspace: Path, tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cantrip-engine-"))
    folder.chmod(0o755)
    path = folder / "s"
    request = b'{"jsonrpc": "2.0", "id": 1, "method": "search", "params": {"query": "penguin"}}\n'

    def talk(user: int) -> bytes:
        code = (
            "import os, socket, sys\n"
            "os.setuid(int(sys.argv[2]))\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
            f"s.sendall({request!r}); sys.stdout.buffer.write(s.recv(100000))\n"
        )
        done = subprocess.run(["/usr/bin/python3", "-c", code, str(path), str(user)], capture_output=True, check=False)
        return done.stdout

    try:
        async with Engine(substrate, workspace) as engine, anyio.create_task_group() as tasks:
            tasks.start_soon(listen, engine, str(path), "user", Boundary())
            while not path.exists():
                await anyio.sleep(0.01)
            # Whatever the file's mode is, the kernel says who is there.
            path.chmod(0o777)
            assert b"about a penguin" in await anyio.to_thread.run_sync(talk, 0)
            assert await anyio.to_thread.run_sync(talk, 65534) == b""
            tasks.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder)


async def test_a_hostile_program_gets_nothing(substrate: Substrate, workspace: Path) -> None:
    """Everything that a program could try on its connection; it writes where it may and nowhere else."""
    code = """\
#!/usr/bin/env python3
import json, os, socket, sys
line = socket.socket(fileno=0)
reader = line.makefile("rb")
me = os.environ["CANTRIP_PROCESS"]
def ask(method, **params):
    line.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\\n")
    return json.loads(reader.readline())
def new(chunk, *scopes, **spec):
    return dict(chunks=[{"id": chunk, "name": chunk, "spec": spec, "body": {"text": "x", "executable": "sh", "runtime": "vm"}}],
                placements=[{"chunk": chunk, "scope": scope} for scope in scopes])
tries = {
    "own record": ask("commit", chunks=[{"id": me, "name": "me", "body": {"program": "x", "boundary": {"read": [], "write": []}}}]),
    "own input": ask("commit", chunks=[{"id": me + ":input", "name": "input"}]),
    "agent": ask("commit", chunks=[{"id": "program:agent", "name": "agent", "body": {"text": "x", "executable": "sh"}}]),
    "type": ask("commit", chunks=[{"id": "type:program", "name": "program"}]),
    "types": ask("commit", **new("evil-1", "types")),
    "an answer": ask("commit", **new("answer:t_1", me)),
    "tools": ask("commit", **new("evil-2", me, "tools")),
    "running": ask("commit", placements=[{"chunk": me, "scope": "notes", "kind": "relates"}]),
    "wider": ask("run", program="escape", read=["secret", "tools"], write=["notes"]),
    "at": ask("scope", id="secret", at=1),
    "negative": ask("scope", id="notes", at=-1),
    "huge": ask("search", query="x" * 3000000),
}
made = ask("commit", **new("mine", me, "type:program", propagate=True))
ran = ask("run", program="mine")
for _ in range(40):
    last = ask("run", program="slow")
os.write(1, json.dumps([[name for name, answer in tries.items() if "error" not in answer], made, ran, last]).encode())
"""
    program(substrate, workspace, "hostile", code)
    program(substrate, workspace, "escape", '#!/bin/sh\nexec "$CANTRIP_ENGINE_CALL" scope \'{"id": "secret"}\'\n')
    program(substrate, workspace, "slow", "#!/bin/sh\nsleep 600\n")
    async with Engine(substrate, workspace) as engine:
        body = await run(engine, "hostile")
        taken, made, ran, last = json.loads(body["text"])
        wider = [each.chunk.id for each in substrate.scope("escape").placed if each.kind == "instance"]
        ended = await engine.wait(wider[0], 60)
    assert taken == ["wider"], "to ask for more is no mistake; it gives no more"
    assert (ended.body["state"], "penguin of others" in ended.body["text"]) == ("failed", False)
    # What it may do: a program on its own process, which it may run inside its own boundary.
    assert made["result"]["changed"] == 3
    assert "process" in ran["result"]
    assert "32 programs run already" in last["error"]["message"]
    assert substrate.chunk("notes").text == "about a penguin"
    running = {each.chunk.body["state"] for each in substrate.scope("slow").placed if each.kind == "instance"}
    assert running == {"killed"}
