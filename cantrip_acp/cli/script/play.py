"""Script player: plays a script with an agent, step by step, and compares each step with its expectations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from cantrip_acp.acp.client.client import AgentClient, connect
from cantrip_acp.acp.client.client_files import ClientFiles, FileRefused
from cantrip_acp.acp.client.errors import AgentDied, AgentError, AgentRefused, AgentTimeout
from cantrip_acp.acp.client.observer import Session
from cantrip_acp.cli.render.from_acp import get_text
from cantrip_acp.cli.script.match import fits, in_order, mismatches, shown, text_pattern
from cantrip_acp.cli.script.parse import ANSWERS, Script, Step
from cantrip_acp.cli.script.turn import Happened, call_line, update_line

_PATIENCE: Final = 60.0
_SEQUENCES: Final = {"tool_calls": ("tool call", call_line), "updates": ("update", update_line)}
_TEXTS: Final = ("text", "thought", "user_text", "stderr")


@dataclass
class Verdict:
    """The result of a step. `problems` is empty if the step went as expected; `told` is what happened, as data."""

    step: Step
    seconds: float
    problems: list[str] = field(default_factory=list)
    told: Mapping[str, Any] = field(default_factory=dict)


class Player:
    """Plays one script with one agent. `allow` answers permission requests that the script does not; `told` gets each verdict."""

    def __init__(
        self,
        script: Script,
        argv: Sequence[str],
        *,
        folder: Path,
        allow: str = "never",
        told: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        self._script = script
        self._argv = argv
        self._folder = script.folder or folder
        self._allow = script.allow if script.allow is not None else allow
        self._told = told
        self._files = ClientFiles(self._folder)
        self._first: str | None = None
        self._session: Session | None = None
        self._restarting = False
        self._ready = False

    async def play(self) -> list[Verdict]:
        """Play every step in order and stop after a step that ended the agent. Raises AgentMissing."""
        self._write(self._script.files)
        verdicts: list[Verdict] = []
        steps = iter(self._script.steps)
        step = next(steps, None)
        while step is not None:
            self._restarting = False
            self._session = None
            watcher = _Watcher()
            async with connect(self._argv, watcher) as agent:
                self._ready = False
                while step is not None and not self._restarting:
                    verdict, alive = await self._step(agent, watcher, step)
                    verdicts.append(verdict)
                    self._told(verdict)
                    step = next(steps, None)
                    if not alive:
                        return verdicts
        return verdicts

    async def _step(self, agent: AgentClient, watcher: _Watcher, step: Step) -> tuple[Verdict, bool]:
        timeout = step.timeout or self._script.timeout or _PATIENCE
        happened = watcher.begin(step.allow if step.allow is not None else self._allow)
        self._write(step.files)
        answer: dict[str, Any] = {}
        alive = True
        started = time.monotonic()
        try:
            await self._shake_hands(agent, timeout, need_session=step.action in ("prompt", "mode", "option"))
            started = time.monotonic()
            answer = await self._act(agent, watcher, step, timeout)
        except AgentRefused as refused:
            answer = {"error": {"code": refused.code, "message": str(refused), "data": refused.data}}
        except AgentTimeout as late:
            answer = {"error": {"code": None, "message": str(late)}}
        except (AgentDied, FileRefused) as problem:
            answer = {"error": {"code": None, "message": str(problem)}}
            alive = not isinstance(problem, AgentDied)
        seconds = time.monotonic() - started
        told = {"stop_reason": None, "error": None, **happened.as_data(), **answer, "seconds": round(seconds, 3)}
        watcher.end()
        problems = list(self._judge(step, told))
        if told["error"] is not None and "error" not in step.expect:
            problems.insert(0, f"it failed: {told['error']['message']}")
        return Verdict(step, seconds, problems, told), alive

    async def _shake_hands(self, agent: AgentClient, timeout: float, *, need_session: bool) -> None:
        timeout = max(timeout, _PATIENCE)
        if not self._ready:
            await agent.initialize(timeout=timeout)
            if self._script.auth:
                await agent.authenticate(self._script.auth, timeout=timeout)
            self._ready = True
        if need_session and self._session is None:
            self._keep(agent, await agent.new_session(self._folder, timeout=timeout))

    async def _act(self, agent: AgentClient, watcher: _Watcher, step: Step, timeout: float) -> dict[str, Any]:
        value, action = step.value, step.action
        if action == "restart":
            self._restarting = True
            return {}
        if action == "list":
            listed = await agent.list_sessions(Path(value) if isinstance(value, str) else None, timeout=timeout)
            return {
                "sessions": [{"id": s.id, "cwd": s.folder, "title": s.title, "updatedAt": s.updated_at} for s in listed]
            }
        if action in ("new", "load", "resume"):
            folder = self._folder / value if action == "new" and isinstance(value, str) else self._folder
            if action == "new":
                session = await agent.new_session(folder, timeout=timeout)
            elif action == "load":
                session = await agent.load_session(self._named(value), folder, timeout=timeout)
            else:
                session = await agent.resume_session(self._named(value), folder, timeout=timeout)
            self._keep(agent, session)
            about = {"id": session.id, "modes": session.modes, "configOptions": session.config_options}
            return {"session": about, "meta": session.meta}
        if action in ("close", "delete"):
            ended = self._named(value)
            await agent.end_session(ended, delete=action == "delete", timeout=timeout)
            if self._session is not None and self._session.id == ended:
                self._session = None
            return {}
        assert self._session is not None
        if action == "mode":
            await agent.set_mode(self._session.id, str(value), timeout=timeout)
            return {}
        if action == "option":
            options: Sequence[Any] = ()
            for option, chosen in dict(value).items():
                options = await agent.set_option(self._session.id, option, chosen, timeout=timeout)
            return {"options": options}
        if step.buffers:
            agent.open_buffers(self._session.id, step.buffers)
        return await self._prompt(agent, watcher, step, timeout)

    async def _prompt(self, agent: AgentClient, watcher: _Watcher, step: Step, timeout: float) -> dict[str, Any]:
        session = self._session
        assert session is not None
        after = step.cancel_after
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                if isinstance(after, int | float) and not isinstance(after, bool):
                    await anyio.sleep(after)
                else:
                    await watcher.saw(after if isinstance(after, Mapping) else {"sessionUpdate": after})
                await agent.cancel(session.id)

            if after is not None:
                tasks.start_soon(cancel)
            problem: AgentError | None = None
            try:
                outcome = await agent.prompt(session.id, step.value, timeout=timeout)
            except AgentError as error:
                # Raise it later, outside the task group, which would wrap it in an exception group.
                problem = error
            watcher.over()
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return {"stop_reason": outcome.stop_reason, "usage": outcome.usage or None, "meta": outcome.meta}

    def _keep(self, agent: AgentClient, session: Session) -> None:
        self._session = session
        self._first = self._first or session.id
        if self._script.buffers:
            agent.open_buffers(session.id, self._script.buffers)

    def _named(self, value: Any) -> str:
        if value == "first" and self._first is not None:
            return self._first
        if value is True:
            return self._session.id if self._session is not None else self._first or ""
        return str(value)

    def _write(self, files: Mapping[str, str | None]) -> None:
        for path, content in files.items():
            if content is None:
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / path).unlink()
            else:
                self._files.write(str(self._files.folder / path), content)

    def _judge(self, step: Step, told: Mapping[str, Any]) -> Iterator[str]:
        for key, pattern in step.expect.items():
            if key in _SEQUENCES and isinstance(pattern, list):
                what, line = _SEQUENCES[key]
                yield from in_order(pattern, told[key], key, what, line)
            elif key == "never":
                for wanted in pattern if isinstance(pattern, list) else [pattern]:
                    for update in told["updates"]:
                        if fits({"sessionUpdate": wanted} if isinstance(wanted, str) else wanted, update):
                            yield f"never: an update fits {shown(wanted)}: {update_line(update)}"
                            break
            elif key == "files":
                for path, wanted in dict(pattern).items():
                    yield from mismatches(wanted, self._on_disk(path), f"files[{path}]")
            elif key == "seconds":
                if not isinstance(pattern, int | float) or told["seconds"] > pattern:
                    yield f"seconds: it took {told['seconds']:g} s, and {pattern} s are allowed"
            elif key == "error" and isinstance(pattern, str):
                yield from mismatches({"message": {"contains": pattern}}, told["error"] or {}, "error")
            else:
                yield from mismatches(text_pattern(pattern) if key in _TEXTS else pattern, told.get(key), key)

    def _on_disk(self, path: str) -> str | None:
        try:
            return self._files.read(str(self._files.folder / path))
        except FileRefused as refused:
            if refused.missing:
                return None
            raise


class _Watcher:
    """Collects what the agent does in the current step, and answers its permission requests by the step's rules."""

    def __init__(self) -> None:
        self._now = Happened()
        self._rules: Any = None
        self._asked = 0
        self._judged = 0
        self._news = anyio.Event()
        self._over = anyio.Event()

    def begin(self, rules: Any) -> Happened:
        before, self._now = self._now, Happened()
        # Updates between two steps belong to the later step: an agent may send session updates after its reply.
        self._now.updates = before.updates[self._judged :]
        self._rules, self._asked = rules, 0
        self._over = anyio.Event()
        return self._now

    def over(self) -> None:
        """The prompt has its reply: end the wait of answers with the rule `wait`."""
        self._over.set()

    def end(self) -> None:
        """End the step: it is judged by the updates until now."""
        self._judged = len(self._now.updates)

    async def saw(self, pattern: Any) -> None:
        """Wait for an update that fits."""
        at = 0
        while True:
            news = self._news
            while at < len(self._now.updates):
                if fits(pattern, self._now.updates[at]):
                    return
                at += 1
            await news.wait()

    async def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        self._now.updates.append(update)
        self._news.set()
        self._news = anyio.Event()

    async def asked(self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        rule = self._rule(get_text(call, "kind") or "other")
        asked: dict[str, Any] = {"tool_call": call, "options": options, "answer": None}
        self._now.permissions.append(asked)
        if rule == "wait":
            await self._over.wait()
            return None
        for kind in ANSWERS[rule]:
            for option in options:
                if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                    asked["answer"] = kind
                    return str(option["optionId"])
        return None

    def _rule(self, kind: str) -> str:
        rules = self._rules
        if isinstance(rules, list):
            self._asked += 1
            return str(rules[min(self._asked, len(rules)) - 1]) if rules else "never"
        if isinstance(rules, Mapping):
            return str(rules.get(kind, rules.get("other", "never")))
        return "never" if rules in (None, "ask") else str(rules)

    async def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        self._now.file_requests.append({"action": action, "path": path, "refused": refused})

    async def heard(self, source: str, line: str) -> None:
        (self._now.junk if source == "stdout" else self._now.stderr).append(line)
