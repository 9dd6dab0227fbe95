"""The services of one entity: starts them, keeps their output, stops them, and ends them all with the entity.

A service is a command in a sandbox with the wards of the entity's commands. The services and, while one lives, the entity's later
commands and cells share one network namespace, so that a command reaches what a service listens to. Children have their own.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from cantrip_acp.types.errors import CantripError, GateError, LoomError, SandboxError
from cantrip_acp.types.events import signal_name
from cantrip_acp.types.records import ServiceRecord, new_id, now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.sandbox import Background, Sandbox

WARDS = ("bash_writable_paths", "bash_network", "bash_home", "allow_protected", "git_writes", "hidden_paths")
"""The wards that a service's sandbox is made of. If one changes, the services end."""
STOP_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL when a service is stopped."""
CLOSE_GRACE = 0.3
"""The same when the entity ends."""
BY_USER = "the user stopped it"
_FIRST_LOOK = 0.5
"""Seconds in which a command that cannot run has usually ended."""
_MOST_ENDED = 50
"""Ended services whose output can still be read."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}\Z")
_SHOWN = 80


@dataclass(slots=True)
class RunningService:
    """One service. ``why`` says why we ended it; empty if it ended by itself or still runs."""

    id: str
    name: str
    command: str
    background: Background
    began: float = field(default_factory=time.monotonic)
    began_at: str = field(default_factory=now)
    ended: float | None = None
    why: str = ""
    told: bool = False
    """Whether the entity knows that it has ended."""
    task: asyncio.Task[None] | None = None

    @property
    def title(self) -> str:
        """Its name and its command, short."""
        line = " ".join(self.command.split())
        return f"{self.name} ({line if len(line) <= _SHOWN else line[:_SHOWN] + '…'})"

    @property
    def exit_code(self) -> int | None:
        return self.background.outcome.exit_code if self.background.outcome is not None else None

    def state(self) -> str:
        """Whether it runs, or how it ended, in words."""
        ran = _duration((self.ended or time.monotonic()) - self.began)
        if self.ended is None:
            return f"running for {ran}"
        return f"ended after {ran}: {self.how()}"

    def how(self) -> str:
        """How it ended, in words."""
        outcome, code = self.background.outcome, self.exit_code
        signal = signal_name(code) if code is not None else None
        status = "" if code is None else f"exit status {code}" + (f", {signal}" if signal else "")
        if self.background.failure is not None:
            status = str(self.background.failure)
        elif outcome is not None and outcome.ended_because is not None and outcome.ended_because != self.why:
            status = f"it was killed: {outcome.ended_because}"
        return "; ".join(filter(None, [self.why, status])) or "killed"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service runs: what it may do, the entity's folders, and the cast that starts it."""

    wards: Wards
    workspace: Path | None
    folders: Sequence[Path]
    cast_id: str


class Services:
    """The services of one entity. Always `close` it.

    ``append`` writes to the loom. ``sandbox_pid``: a process of the sandbox that the entity's medium runs now, or 0.
    """

    def __init__(
        self,
        entity_id: str,
        append: Callable[[ServiceRecord], object],
        sandbox_pid: Callable[[], int] = lambda: 0,
    ) -> None:
        self._entity_id = entity_id
        self._append = append
        self._sandbox_pid = sandbox_pid
        self._all: dict[str, RunningService] = {}
        self._notes: list[str] = []
        self._sandbox: Sandbox | None = None
        self._wards: Wards | None = None
        self._starting = anyio.Lock()
        self.shared: Sandbox | None = None
        """The sandbox whose network the services and later commands share, while one runs."""

    @property
    def running(self) -> list[RunningService]:
        return [each for each in self._all.values() if each.ended is None]

    @property
    def all(self) -> list[RunningService]:
        """Running ones, and ended ones whose output can still be read."""
        return list(self._all.values())

    # What the gates do

    async def start(self, command: str, name: str | None, place: Place) -> RunningService:
        """Start a service. Returns when it runs. Raises `GateError` if it cannot run, or has failed at once."""
        if "\0" in command or not command.strip():
            raise GateError("a service needs a command without NUL characters")
        async with self._starting:
            service = await self._start(command, self._free_name(name), place)
        with anyio.move_on_after(_FIRST_LOOK):
            assert service.task is not None
            await asyncio.wait([service.task])
        if service.ended is not None and service.exit_code != 0:
            text, _ = service.background.read()
            del self._all[service.name]
            shown = f"; its output:\n{text.rstrip()}" if text.strip() else ", without output"
            raise GateError(f"{service.title} ended at once: {service.how()}{shown}")
        return service

    async def _start(self, command: str, name: str, place: Place) -> RunningService:
        from cantrip_acp.sandbox import Background

        most = place.wards.max_services
        running = self.running
        if len(running) >= most:
            listed = ", ".join(each.name for each in running) or "none"
            raise GateError(f"{most} services may run at once (max_services); these run: {listed}", "stop one first")
        try:
            sandbox = await self._get_sandbox(place)
            await self._share(sandbox)
            environment = {"PYTHONUNBUFFERED": "1"}
            background = Background(sandbox, command, place.wards.bash_max_output_bytes, environment)
            await background.start()
        except GateError:
            raise
        except CantripError as problem:
            raise GateError(f"the service cannot be started: {problem}") from None
        self._forget_old()
        service = self._all[name] = RunningService(new_id("s"), name, command, background)
        self._record(service, "start", place.cast_id)
        service.task = asyncio.create_task(self._watch(service))
        return service

    async def read(self, name: str, wait: float, until: str) -> str:
        """Its output since the last read and its state. Waits first, at most ``wait`` seconds: for its end, or until there is an
        output with the text ``until``."""
        service = self._find(name)
        background = service.background
        with anyio.move_on_after(wait):
            while service.ended is None and not (until and background.has(until)):
                background.changed.clear()
                await background.changed.wait()
        text, left_out = background.read()
        service.told = service.ended is not None
        notes = [service.state()]
        if left_out:
            notes.append("output was shortened in the middle; let it write to a file and look at parts of that")
        shown = text.rstrip("\n") or "(no new output)"
        return "\n".join([shown, *(f"[{each}]" for each in notes)])

    async def stop(self, name: str, why: str = "stopped") -> str:
        """Stop a service with all of its processes. Returns how it ended."""
        service = self._find(name)
        if service.ended is None:
            await self._end(service, why, STOP_GRACE)
        service.told = why != BY_USER
        return f"{service.title} {service.state()}"

    def title(self, name: str) -> str:
        """Its name, its command and its state. Raises `GateError` if there is none with that name."""
        service = self._find(name)
        return f"{service.title}: {service.state()}"

    def last_output(self, name: str) -> str:
        """The last lines that it printed, for a person: what the entity reads stays unread."""
        return self._find(name).background.last_output()

    def listed(self) -> str:
        """All services, a line for each."""
        return "\n".join(f"{each.title}: {each.state()}" for each in self._all.values()) or "no services"

    def _find(self, name: str) -> RunningService:
        found = self._all.get(name)
        if found is None:
            there = ", ".join(self._all) or "none"
            raise GateError(f"there is no service {name[:80]!r} (there: {there})", "start one with start")
        return found

    def _free_name(self, name: str | None) -> str:
        if name is None:
            return next(each for n in range(1, 10**9) if (each := f"s{n}") not in self._all)
        if not _NAME.match(name):
            raise GateError("the name of a service has up to 40 letters, digits, '_', '-' and '.'")
        if name in self._all and self._all[name].ended is None:
            raise GateError(f"a service {name!r} is running", f"stop it with stop {name}, or use another name")
        self._all.pop(name, None)
        return name

    def _forget_old(self) -> None:
        ended = [name for name, each in self._all.items() if each.ended is not None]
        for name in ended[: max(0, len(ended) - _MOST_ENDED)]:
            del self._all[name]

    # What the entity does

    def take_notes(self) -> list[str]:
        """What the entity has not been told yet, such as which services have ended."""
        notes, self._notes = self._notes, []
        for each in self._all.values():
            if each.ended is not None and not each.told:
                each.told = True
                notes.append(f"service {each.title} {each.state()}; output {each.name} has the rest of its output")
        return notes

    def remind(self) -> list[str]:
        """A line for each running service, for the start of a cast."""
        return [f"service {each.title} is {each.state()}; stop {each.name} ends it" for each in self.running]

    def note(self, text: str) -> None:
        """Tell the entity something with its next query."""
        self._notes.append(text)

    def wards_changed(self, before: Wards, now: Wards) -> None:
        """End the services if one of the wards that they were started with changed."""
        if any(getattr(before, name) != getattr(now, name) for name in WARDS):
            for each in self.running:
                each.background.end("what commands may do was changed")
            self._leave()

    async def close(self, why: str = "the session ended") -> None:
        """End all services. Safe to call twice."""
        async with anyio.create_task_group() as group:
            for each in self.running:
                group.start_soon(self._end, each, why, CLOSE_GRACE)
        self._leave()

    # Parts

    async def _end(self, service: RunningService, why: str, grace: float) -> None:
        service.why = service.why or why
        with anyio.CancelScope(shield=True):
            await service.background.stop(why, grace)
            if service.task is not None:
                await asyncio.wait([service.task])

    async def _watch(self, service: RunningService) -> None:
        """Wait for the end of a service, and note it."""
        await service.background.wait()
        service.ended = time.monotonic()
        service.background.changed.set()
        self._record(service, "end", None)
        if not self.running:
            self._leave()

    def _leave(self) -> None:
        self.shared = None
        if self._sandbox is not None:
            self._sandbox.join(None)

    def _record(self, service: RunningService, event: str, cast_id: str | None) -> None:
        code = service.exit_code
        record = ServiceRecord(
            id=service.id,
            event="start" if event == "start" else "end",
            entity_id=self._entity_id,
            cast_id=cast_id,
            name=service.name,
            command=service.command if event == "start" else "",
            exit_code=code,
            signal=signal_name(code) if code is not None else None,
            why=service.how() if event == "end" else "",
            timestamp=now(),
        )
        try:
            self._append(record)
        except LoomError:
            if event == "start":
                service.background.end("its start cannot be recorded")
                raise

    async def _get_sandbox(self, place: Place) -> Sandbox:
        """The sandbox for the current wards."""
        if self._sandbox is None or self._wards != place.wards:
            from cantrip_acp.gates.sandbox_options import command_sandbox

            self._sandbox = await command_sandbox(place.wards, place.workspace, place.folders)
            self._wards = place.wards
        return self._sandbox

    async def _share(self, sandbox: Sandbox) -> None:
        """Share a network with later commands: that of the entity's running command or Python, or a new one."""
        if self.shared is not None:
            sandbox.join(self.shared)
            return
        try:
            await sandbox.share_network(self._sandbox_pid())
            self.shared = sandbox
        except (SandboxError, OSError) as problem:
            self.note(f"services have a network of their own here, so commands do not reach them: {problem}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
